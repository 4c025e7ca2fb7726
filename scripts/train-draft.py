#!/usr/bin/env python3
"""Trains a small draft model for a GGUF model of the Llama family, on text that this model writes.

    train-draft.py MODEL.gguf -o draft.gguf
    sequoia-generate -m MODEL.gguf -s spec.draft.path=draft.gguf --chat -p "Explain tides."

The target writes chats of several turns, both sides of them, and plain text. The draft then learns the target's
distribution at every token of these texts (distillation by cross entropy). Its embedding starts from the principal
components of the target's. The draft has the target's tokenizer, since the file repeats it. With --text, the texts stay
in a file, and a later run reads them from there.

The last line of the output is JSON with sizes, tokens and seconds. On held-out texts, alpha is the share of drafted
tokens that would be accepted at temperature 1, and top1 the share of equal best tokens.
Needs torch, numpy and gguf. On a GPU the defaults take four minutes.
"""
import argparse
import json
import math
import pathlib
import random
import re
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
# First words of a user; the target writes the rest. Without digits, since only such text is encoded here.
ANY = ["", "", "", "", "Write", "Explain", "What", "How", "Why", "Describe", "Compose an email", "Summarize", "Imagine you are",
       "Give me", "Can you", "I want to", "Compare", "Write a short story about"]
CODE = ["Write a Python function that", "Write a Python function to", "Complete this Python function:\n\ndef",
        "Complete the following code:\n\nfrom typing import List\n\n\ndef", "Implement", "Fix this code:\n\ndef"]
MATH = ["A", "If", "Tom", "Maria has", "A store sells", "How many", "There are", "Every day", "Solve this problem step by step:",
        "John bought"]
TEXT = ["", "", "", "The", "In", "Chapter", "import", "def", "#"]
TEMPERATURES, USER_TEMPERATURE = (0.0, 0.6, 1.0), 0.8
N_HELD_OUT = 16


def rotated(x, cos, sin):
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Llama(torch.nn.Module):
    """Tied embedding; rotary pairs are neighbours, as in GGUF files."""

    def __init__(self, width, ffn, layers, heads, kv_heads, head_dim, vocab, theta, eps):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.theta, self.eps = heads, kv_heads, head_dim, theta, eps
        sizes = {"attn_q": (heads * head_dim, width), "attn_k": (kv_heads * head_dim, width),
                 "attn_v": (kv_heads * head_dim, width), "attn_output": (width, heads * head_dim),
                 "ffn_gate": (ffn, width), "ffn_up": (ffn, width), "ffn_down": (width, ffn),
                 "attn_norm": (width,), "ffn_norm": (width,)}
        self.embedding = torch.nn.Parameter(torch.empty(vocab, width))
        self.norm = torch.nn.Parameter(torch.ones(width))
        self.layers = torch.nn.ModuleList(
            torch.nn.ParameterDict({name: torch.ones(size) if len(size) == 1 else torch.randn(size) * 0.02
                                    for name, size in sizes.items()}) for _ in range(layers))
        for layer in self.layers:
            for name in ("attn_output", "ffn_down"):
                layer[name].data /= math.sqrt(2 * layers)

    def tensors(self):
        """Parameters by their names in GGUF files."""
        yield "token_embd.weight", self.embedding
        yield "output_norm.weight", self.norm
        for i, layer in enumerate(self.layers):
            for name, value in layer.items():
                yield f"blk.{i}.{name}.weight", value

    def turns(self, first, n, device):
        """Cosines and sines of positions from `first` on."""
        pairs = torch.arange(self.head_dim // 2, device=device) * 2 / self.head_dim
        angle = torch.arange(first, first + n, device=device)[:, None] * self.theta ** -pairs[None, :]
        return angle.cos(), angle.sin()

    def forward(self, ids, cache=None, first=0):
        """States before the head. `cache` is (keys, values) of each layer, filled up to `first`."""
        x, turns = F.embedding(ids, self.embedding), self.turns(first, ids.shape[1], ids.device)
        for i, w in enumerate(self.layers):
            y = F.rms_norm(x, x.shape[-1:], w["attn_norm"], self.eps)
            heads = lambda name: F.linear(y, w[name]).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            q, k = rotated(torch.cat((heads("attn_q"), heads("attn_k")), 1), *turns).split((self.heads, self.kv_heads), 1)
            v = heads("attn_v")
            if cache is not None:
                last = first + ids.shape[1]
                for kept, new in zip(cache[i], (k, v)):
                    kept[:, :, first:last] = new
                k, v = (kept[:, :, :last] for kept in cache[i])
            if ids.shape[1] > 1:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
            else:  # the query heads of a KV head as its rows
                y = F.scaled_dot_product_attention(q.reshape(len(ids), self.kv_heads, -1, self.head_dim), k, v)[:, None]
            x = x + F.linear(y.flatten(2), w["attn_output"])
            y = F.rms_norm(x, x.shape[-1:], w["ffn_norm"], self.eps)
            x = x + F.linear(F.silu(F.linear(y, w["ffn_gate"])) * F.linear(y, w["ffn_up"]), w["ffn_down"])
        return F.rms_norm(x, x.shape[-1:], self.norm, self.eps)

    def logits(self, states):
        return F.linear(states, self.embedding)


class Vocabulary:
    """Enough of a byte-level BPE for ASCII text without digits."""

    def __init__(self, reader):
        tokens = reader.fields["tokenizer.ggml.tokens"].contents()
        self.id_of = {token: i for i, token in enumerate(tokens)}
        self.rank = {tuple(m.split(" ")): i for i, m in enumerate(reader.fields["tokenizer.ggml.merges"].contents())}

    def encode(self, text):
        ids = []
        for word in re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+(?=\s\S)|\s+", text):
            parts = ["\u0120" if c == " " else "\u010a" if c == "\n" else c for c in word]
            while len(parts) > 1:
                best = min(range(len(parts) - 1), key=lambda i: self.rank.get((parts[i], parts[i + 1]), math.inf))
                if (parts[best], parts[best + 1]) not in self.rank:
                    break
                parts[best:best + 2] = ["".join(parts[best:best + 2])]
            ids += [self.id_of[part] for part in parts]
        return ids


def read_target(path, device, dtype):
    reader = gguf.GGUFReader(path)
    field = lambda name: reader.fields["llama." + name].contents()
    heads = field("attention.head_count")
    width = field("embedding_length")
    tensors = {t.name: t for t in reader.tensors}
    if "output.weight" in tensors:
        raise SystemExit(f"train-draft.py: error: {path}: expected a head that is tied to the embedding, found output.weight")
    model = Llama(width, field("feed_forward_length"), field("block_count"), heads, field("attention.head_count_kv"),
                  width // heads, len(reader.fields["tokenizer.ggml.tokens"].data), field("rope.freq_base"),
                  field("attention.layer_norm_rms_epsilon"))
    with torch.no_grad():
        for name, parameter in model.tensors():
            parameter.copy_(torch.from_numpy(gguf.dequantize(tensors[name].data, tensors[name].tensor_type).copy()))
    return model.to(device, dtype).requires_grad_(False), reader


def beginnings(reader, n, draw):
    """Ids that n texts begin with, and whether each is a chat."""
    vocabulary = Vocabulary(reader)
    mark = lambda role: [vocabulary.id_of["<|im_start|>"], *vocabulary.encode(role + "\n")]
    end = [vocabulary.id_of["<|im_end|>"], *vocabulary.encode("\n")]
    chat = [*mark("system"), *vocabulary.encode(SYSTEM), *end, *mark("user")]
    found = []
    for _ in range(n):
        kind = draw.choice(["any", "any", "code", "math", "text"])
        words = vocabulary.encode(draw.choice({"any": ANY, "code": CODE, "math": MATH, "text": TEXT}[kind]))
        found.append(([vocabulary.id_of["<|endoftext|>"], *words], False) if kind == "text" else ([*chat, *words], True))
    turns = [[*end[1:], *mark(role)] for role in ("user", "assistant")]
    return found, turns, end[0]


def padded(rows, length, device):
    return torch.tensor([ids + [0] * (length - len(ids)) for ids in rows], device=device)


@torch.no_grad()
def write_texts(target, reader, args, draw):
    """Ids of texts that the target writes, a row each. A turn that ends is followed by the other side's."""
    texts, start, length, batch = [], time.time(), args.length, args.together
    while sum(map(len, texts)) < args.texts and (not texts or time.time() - start < args.write_seconds):
        starts, turns, end = beginnings(reader, batch, draw)
        device, dtype = target.embedding.device, target.embedding.dtype
        widest = max(len(ids) for ids, _ in starts)
        queue = padded([ids for ids, _ in starts], widest, device)  # tokens to come
        left = torch.tensor([len(ids) for ids, _ in starts], device=device)
        at = torch.zeros_like(left)
        is_chat = torch.tensor([chat for _, chat in starts], device=device)
        answers = torch.zeros_like(is_chat)  # true while the assistant writes
        heat = torch.tensor([draw.choice(TEMPERATURES[0 if chat else 1:]) for _, chat in starts], device=device)
        turn_ids = padded(turns, max(map(len, turns)), device)
        turn_left = torch.tensor([len(ids) for ids in turns], device=device)
        cache = [[torch.empty(batch, target.kv_heads, length, target.head_dim, device=device, dtype=dtype)
                  for _ in range(2)] for _ in target.layers]
        text = torch.empty(batch, length, dtype=torch.long, device=device)
        drawn = queue[:, 0]
        for i in range(length):
            given = at < left
            token = torch.where(given, queue.gather(1, at.clamp(max=widest - 1)[:, None])[:, 0], drawn)
            at += given
            text[:, i] = token
            ended = ~given & is_chat & (token == end)
            answers ^= ended
            queue[:, :turn_ids.shape[1]] = torch.where(ended[:, None], turn_ids[answers.long()],
                                                       queue[:, :turn_ids.shape[1]])
            left = torch.where(ended, turn_left[answers.long()], left)
            at = torch.where(ended, 0, at)
            logits = target.logits(target(token[:, None], cache, i))[:, 0].float()
            t = torch.where(is_chat & ~answers, USER_TEMPERATURE, heat)[:, None]
            noise = -torch.empty_like(logits).exponential_().log()
            drawn = (logits + t * noise).argmax(-1)  # Gumbel; the best token where t is 0
        texts.append(text.cpu().numpy().astype(np.uint16 if target.embedding.shape[0] <= 1 << 16 else np.int32))
    return np.concatenate(texts)


def make_draft(target, args):
    draft = Llama(args.width, args.ffn, args.layers, args.heads, args.kv_heads, args.width // args.heads,
                  target.embedding.shape[0], target.theta, target.eps)
    e = target.embedding.float()
    _, components = torch.linalg.eigh(e.T @ e)  # ascending
    draft.embedding.data = (e @ components[:, -args.width:]).contiguous()
    return draft.to(target.embedding.device)


def train(target, draft, texts, args):
    device = target.embedding.device
    amp = torch.autocast(device.type, torch.bfloat16)
    matrices = [p for p in draft.parameters() if p.dim() > 1 and p is not draft.embedding]
    others = [p for p in draft.parameters() if p.dim() == 1 or p is draft.embedding]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95), fused=True)
    draw, start, steps, recent = np.random.default_rng(0), time.time(), 0, []
    while (share := (time.time() - start) / args.seconds) < 1:
        rows = np.sort(draw.choice(len(texts), args.batch, replace=False))
        ids = torch.from_numpy(texts[rows].astype(np.int64)).to(device)
        with torch.no_grad():
            wanted = target.logits(target(ids)).float().softmax(-1)
        with amp:
            logits = draft.logits(draft(ids))
        loss = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(0, 1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1, 20 * share, 0.5 * (1 + math.cos(math.pi * share)) + 0.01)
        optimizer.step()
        steps += 1
        recent.append(loss.detach())
        if steps % 100 == 0:
            print(f"step {steps}, {time.time() - start:.0f} s, loss {torch.stack(recent).mean():.4f}", flush=True)
            recent = []
    return steps


@torch.no_grad()
def acceptance(target, draft, texts):
    """Mean of sum(min(p, q)), and of equal best tokens."""
    overlap, equal = [], []
    for row in texts:
        ids = torch.from_numpy(row.astype(np.int64)).to(target.embedding.device)[None]
        p, q = (m.logits(m(ids)).float().softmax(-1) for m in (target, draft))
        overlap.append(torch.minimum(p, q).sum(-1).mean().item())
        equal.append((p.argmax(-1) == q.argmax(-1)).float().mean().item())
    return {"alpha": round(float(np.mean(overlap)), 4), "top1": round(float(np.mean(equal)), 4)}


def write_draft(draft, reader, path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    n_heads, vocab = draft.heads, draft.embedding.shape[0]
    writer.add_vocab_size(vocab)
    writer.add_context_length(reader.fields["llama.context_length"].contents())
    writer.add_embedding_length(draft.norm.shape[0])
    writer.add_block_count(len(draft.layers))
    writer.add_feed_forward_length(draft.layers[0]["ffn_gate"].shape[0])
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(draft.kv_heads)
    writer.add_rope_dimension_count(draft.head_dim)
    writer.add_rope_freq_base(draft.theta)
    writer.add_layer_norm_rms_eps(draft.eps)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind,
                                 sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for name, value in draft.tensors():
        value = value.detach().cpu()
        if value.dim() == 1:
            writer.add_tensor(name, value.float().numpy())
        else:
            writer.add_tensor(name, value.bfloat16().contiguous().view(torch.int16).numpy().view(np.uint16),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="target, a GGUF file")
    parser.add_argument("-o", dest="output", required=True, help="GGUF file of the draft")
    parser.add_argument("--text", type=pathlib.Path, help="file of the texts' ids (.npy), read if it exists")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--ffn", type=int, default=768)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--texts", type=int, default=12288, help="number of texts")
    parser.add_argument("--length", type=int, default=768, help="tokens of a text")
    parser.add_argument("--together", type=int, default=2048, help="texts that are written together")
    parser.add_argument("--write-seconds", type=float, default=90, help="seconds after which no more texts are begun")
    parser.add_argument("--seconds", type=float, default=150, help="duration of training")
    parser.add_argument("--batch", type=int, default=32, help="texts of a training step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would prepare for every length
    on_gpu = args.device.startswith("cuda")
    target, reader = read_target(args.model, args.device, torch.bfloat16 if on_gpu else torch.float32)
    start = time.time()
    if args.text and args.text.exists():
        texts = np.load(args.text)
    else:
        texts = write_texts(target, reader, args, random.Random(0))
        if args.text:
            np.save(args.text, texts)
    write_s = time.time() - start
    print(f"{texts.size} tokens of {len(texts)} texts in {write_s:.0f} s", flush=True)
    draft = make_draft(target, args)
    start = time.time()
    steps = train(target, draft, texts[N_HELD_OUT:], args)
    train_s = time.time() - start
    write_draft(draft, reader, args.output)
    print(json.dumps({"kind": "train_draft", "target": pathlib.Path(args.model).name, "width": args.width,
                      "layers": args.layers, "ffn": args.ffn, "parameters": sum(p.numel() for p in draft.parameters()),
                      "texts": len(texts), "text_tokens": int(texts.size), "write_s": round(write_s, 1),
                      "steps": steps, "step_tokens": args.batch * texts.shape[1], "train_s": round(train_s, 1),
                      **acceptance(target, draft, texts[:N_HELD_OUT]), "torch": torch.__version__,
                      **({"gpu": torch.cuda.get_device_name()} if on_gpu else {})}))


if __name__ == "__main__":
    main()
