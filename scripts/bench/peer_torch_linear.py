#!/usr/bin/env python3
"""Times the products of an 8B model's layers in PyTorch, as bench_gpu_coded_linear times ours: bf16, int4 in groups of 128
(tinygemm) and fp8 with one scale (cuBLASLt). Prints one JSON line a format and number of rows."""
import argparse
import json

import torch

SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]  # outputs, inputs
GROUP = 128


def bf16(out, inputs):
    w = torch.rand(out, inputs, device="cuda").sub(0.5).bfloat16()
    return lambda x: torch.nn.functional.linear(x, w)


def int4(out, inputs):
    codes = torch.randint(0, 256, (out, inputs // 2), dtype=torch.uint8, device="cuda")
    packed = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
    scales = torch.rand(inputs // GROUP, out, 2, device="cuda").bfloat16()
    return lambda x: torch.ops.aten._weight_int4pack_mm(x, packed, GROUP, scales)


def fp8(out, inputs):
    w = torch.rand(out, inputs, device="cuda").sub(0.5).to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    return lambda x: torch._scaled_mm(x.to(torch.float8_e4m3fn), w.t(), scale_a=one, scale_b=one,
                                      out_dtype=torch.bfloat16)


def milliseconds(layers, rows):
    """Median time of all products of all layers, replayed as a graph."""
    inputs = {n: torch.rand(rows, n, device="cuda").sub(0.5).bfloat16() for _, n in SHAPES}

    def run():
        for layer in layers:
            for product, (_, n) in zip(layer, SHAPES):
                product(inputs[n])

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(21):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--layers", type=int, default=32)
args = parser.parse_args()
for name, make in ("bf16", bf16), ("int4", int4), ("fp8", fp8):
    layers = [[make(*shape) for shape in SHAPES] for _ in range(args.layers)]
    for rows in 1, 4, 16, 64:
        print(json.dumps({"kind": "torch_linear", "torch": torch.__version__, "format": name, "rows": rows,
                          "ms": round(milliseconds(layers, rows), 4)}), flush=True)
    del layers
    torch.cuda.empty_cache()
