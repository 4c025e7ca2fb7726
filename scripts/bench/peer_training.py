#!/usr/bin/env python3
"""Times training steps of transformers with PEFT, as train_step.py times s2ft-train: one JSON line a method.

    peer_training.py --shape llama-2-7b --batch 2 --tokens 1024 --method lora full --steps 10
    peer_training.py --shape llama-3.1-8b --method lora --batch 8 --data ids.jsonl --tokens 512 --steps 20
                     batches padded to their longest; tokens that are not padding count
    peer_training.py --load FOLDER --data ids.jsonl --steps 300 --lr 1e-3 --validate test.jsonl --save ADAPTER
                     a run in random order, whose rate falls to 0
    peer_training.py --shape tiny-16m --device cpu --threads 2 --method lora full --batch 16 --data ids.jsonl
                     on two cores of a CPU

Random weights in bf16, attention by scaled_dot_product_attention, fused AdamW. LoRA of rank 32 on q, k, v, up and
down without dropout, its weights in bf16; `lora-f32`: in f32, PEFT's default. `compile`: under torch.compile;
`liger`: with liger-kernel's norms, RoPE, SwiGLU and loss. Peaks are of allocated bytes after the first step.
Needs torch, transformers and peft; a method whose library is missing or fails says so in its line.
"""
import argparse
import json
import pathlib
import random
import statistics
import time

SHAPES = {
    "llama-2-7b": dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
                       num_key_value_heads=32, vocab_size=32000),
    "tiny-16m": dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6,
                     num_key_value_heads=2, head_dim=64, vocab_size=8192, tie_word_embeddings=True),
    "llama-3.1-8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                         num_attention_heads=32, num_key_value_heads=8, vocab_size=128256),
}
TARGETS = ["q_proj", "k_proj", "v_proj", "up_proj", "down_proj"]


def batches_of(args, torch):
    """Token ids and targets of each step, and how many tokens are real."""
    if args.data is None:
        while True:
            ids = torch.randint(0, SHAPES[args.shape]["vocab_size"], (args.batch, args.tokens), device=args.device)
            yield ids, ids, torch.ones_like(ids), ids.numel()
    records = [json.loads(line) for line in args.data.open(encoding="utf-8")]
    if args.lr:
        random.Random(args.seed).shuffle(records)
    for at in range(0, len(records) - args.batch + 1, args.batch):
        yield padded(args, records[at:at + args.batch], torch)


def padded(args, batch, torch):
    """Ids, targets, mask and the number of rows of records."""
    longest = max(len(r["ids"]) for r in batch)
    ids = torch.zeros(args.batch, longest, dtype=torch.long)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for row, record in enumerate(batch):
        n = len(record["ids"])
        ids[row, :n] = torch.tensor(record["ids"])
        mask[row, :n] = 1
        for begin, end in record["supervised"]:
            labels[row, begin:end] = ids[row, begin:end]
    # A sample of n tokens is n - 1 rows, as s2ft-train counts them.
    return ids.to(args.device), labels.to(args.device), mask.to(args.device), int(mask.sum()) - args.batch


def make_model(args, method, torch):
    import transformers

    if "liger" in method:
        from liger_kernel.transformers import apply_liger_kernel_to_llama
        apply_liger_kernel_to_llama()
    if args.load:
        model = transformers.LlamaForCausalLM.from_pretrained(args.load, dtype=torch.bfloat16,
                                                              attn_implementation="sdpa").to(args.device)
    else:
        config = transformers.LlamaConfig(**SHAPES[args.shape], max_position_embeddings=8192, use_cache=False)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(args.device):
            model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
        torch.set_default_dtype(torch.float32)
    if method.startswith("lora"):
        import peft
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0, target_modules=TARGETS,
                                   task_type="CAUSAL_LM"),
            autocast_adapter_dtype="f32" in method)
    model.train()
    return model


def time_method(args, method, torch):
    model = make_model(args, method, torch)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=args.lr or 1e-4, weight_decay=0.0, fused=True)
    run = torch.compile(model) if "compile" in method else model
    seconds, real = [], []
    on_gpu = args.device.startswith("cuda")
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    for step, (ids, labels, mask, n) in zip(range(args.steps), batches_of(args, torch)):
        if step == 1 and on_gpu:
            torch.cuda.reset_peak_memory_stats()
        wait()
        start = time.perf_counter()
        if args.lr:
            optimizer.param_groups[0]["lr"] = args.lr * (1 - step / args.steps)
        whole = args.data is None
        loss = run(input_ids=ids, labels=labels, attention_mask=None if whole else mask).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        seconds.append(time.perf_counter() - start)
        real.append(n)
    seconds, real = seconds[2:], real[2:]
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    found = {"validation_loss": validation_loss(args, model, torch)} if args.validate else {}
    if args.save:
        model.save_pretrained(args.save)
    return {**found, "ms": round(statistics.median(seconds) * 1e3, 2), "tokens_per_s": round(sum(real) / sum(seconds)),
            "peak_bytes": peak,
            "trained": sum(p.numel() for p in trained)}


def validation_loss(args, model, torch):
    """Mean over the supervised tokens of a file."""
    model.eval()
    loss = n = 0
    records = [json.loads(line) for line in args.validate.open(encoding="utf-8")]
    with torch.inference_mode():
        for at in range(0, len(records), args.batch):
            ids, labels, mask, _ = padded(args, records[at:at + args.batch], torch)
            supervised = int((labels[:, 1:] != -100).sum())
            loss += supervised * model(input_ids=ids, labels=labels, attention_mask=mask).loss.item()
            n += supervised
    return loss / n


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="llama-2-7b")
    parser.add_argument("--load", metavar="FOLDER", help="a model in place of random weights")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, help="number of CPU threads")
    parser.add_argument("--method", nargs="*", default=["lora"],
                        help="lora, full, with -f32, -compile or -liger behind it")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--lr", type=float, help="of the first step; default: 1e-4 at every step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validate", type=pathlib.Path)
    parser.add_argument("--save", metavar="FOLDER")
    parser.add_argument("--data", type=pathlib.Path)
    args = parser.parse_args()

    import gc

    import torch

    on_gpu = args.device.startswith("cuda")
    if args.threads:
        torch.set_num_threads(args.threads)
    # The last ones change the library for good.
    for method in sorted(args.method, key=lambda name: "liger" in name):
        line = {"tool": "transformers", "method": method, "shape": pathlib.Path(args.load).name if args.load else args.shape, "batch": args.batch,
                "tokens": args.tokens, "data": args.data.name if args.data else "random",
                "torch": torch.__version__,
                **({"gpu": torch.cuda.get_device_name()} if on_gpu else {"threads": torch.get_num_threads()})}
        try:
            line |= time_method(args, method, torch)
        except Exception as error:  # a peer that fails is a result
            line["error"] = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(line), flush=True)
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
