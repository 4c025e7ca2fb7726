#!/usr/bin/env python3
"""Times causal attention of PyTorch's cuDNN and FlashAttention backends, as bench_gpu_attention_prefill and
bench_gpu_backward time ours: one JSON line a setting and backend. `--wait FILE` imports and warms up first, then waits for
the file, so that nothing else is timed beside it."""
import argparse
import json
import os
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

# name, keys before the rows, rows, head dimension, heads, KV heads
SETTINGS = [
    ("4k", 0, 4096, 128, 32, 8),
    ("8k", 0, 8192, 128, 32, 8),
    ("32k", 0, 32768, 128, 32, 8),
    ("96k", 0, 98304, 128, 32, 8),
    ("chunk2048at30000", 30000, 2048, 128, 32, 8),
    ("4k-d64", 0, 4096, 64, 32, 8),
    ("32k-d64", 0, 32768, 64, 32, 8),
]
# name, sequences, rows, head dimension, heads, KV heads
BACKWARD_SETTINGS = [
    ("backward-4k", 1, 4096, 128, 32, 8),
    ("backward-2x1k-mha", 2, 1024, 128, 32, 32),
    ("backward-16k", 1, 16384, 128, 32, 8),
    ("backward-4k-d64", 1, 4096, 64, 32, 8),
]
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def time_setting(backend, base, rows, d, heads, kv_heads, grouped):
    n = base + rows
    q = torch.rand(1, heads, rows, d, device="cuda").mul(2).sub(1).bfloat16()
    k = torch.rand(1, kv_heads, n, d, device="cuda").mul(2).sub(1).bfloat16()
    v = torch.rand(1, kv_heads, n, d, device="cuda").mul(2).sub(1).bfloat16()
    if not grouped:  # a backend without groups gets a copy of the keys for every head
        expand = lambda x: x[:, :, None].expand(1, kv_heads, heads // kv_heads, n, d).reshape(1, heads, n, d)
        k, v = expand(k), expand(v)
    how = {"attn_mask": causal_lower_right(rows, n)} if base else {"is_causal": True}
    flops = 4.0 * d * heads * (rows * base + rows * (rows + 1) / 2)
    ms = []
    with sdpa_kernel(backend):
        for i in range(-3, 10 if flops > 2e13 else 30):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            scaled_dot_product_attention(q, k, v, enable_gqa=grouped, **how)
            end.record()
            torch.cuda.synchronize()
            if i >= 0:
                ms.append(start.elapsed_time(end))
    return summary(ms, flops)


def time_backward(backend, seqs, rows, d, heads, kv_heads, grouped, deterministic):
    def random(n_heads):
        return torch.rand(seqs, n_heads, rows, d, device="cuda").mul(2).sub(1).bfloat16().requires_grad_()

    q, k, v = random(heads), *(random(kv_heads if grouped else heads) for _ in "kv")
    flops = 10.0 * d * heads * seqs * rows * (rows + 1) / 2
    torch.use_deterministic_algorithms(deterministic)
    ms = []
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(q, k, v, enable_gqa=grouped, is_causal=True)
        dout = torch.rand_like(out)
        for i in range(-3, 30):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
            end.record()
            torch.cuda.synchronize()
            if i >= 0:
                ms.append(start.elapsed_time(end))
    return summary(ms, flops)


def summary(ms, flops):
    ms.sort()
    median = ms[len(ms) // 2]
    return {"ms": round(median, 4), "min_ms": round(ms[0], 4), "tflops": round(flops / median * 1e-9, 1)}


def grouped_or_not(line, timed):
    """The line with the times of `timed(grouped)`, without groups where the backend refuses them."""
    for grouped in (True, False):
        try:
            line |= {"grouped": grouped} | timed(grouped)
            line.pop("error", None)
            break
        except RuntimeError as error:
            line["error"] = str(error).splitlines()[0]
    torch.cuda.empty_cache()
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wait", metavar="FILE")
    parser.add_argument("settings", nargs="*", help="names of settings; default: all")
    args = parser.parse_args()
    print(json.dumps({"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
                      "device": torch.cuda.get_device_name()}), flush=True)
    while args.wait and not os.path.exists(args.wait):
        time.sleep(0.05)
    for name, *shape in SETTINGS:
        if args.settings and name not in args.settings:
            continue
        for backend, which in BACKENDS.items():
            grouped_or_not({"setting": name, "backend": backend},
                           lambda grouped: time_setting(which, *shape, grouped))
    for name, *shape in BACKWARD_SETTINGS:
        if args.settings and name not in args.settings:
            continue
        for backend, which in BACKENDS.items():
            for deterministic in (False, True):
                grouped_or_not({"setting": name, "backend": backend, "deterministic": deterministic},
                               lambda grouped: time_backward(which, *shape, grouped, deterministic))


if __name__ == "__main__":
    main()
