#!/usr/bin/env python3
"""Writes tests/data/golden/tokenizer_flags.json: ids that AutoTokenizer gives for each kind of tokenizer file,
class, model type and flag of tokenizer_config.json.

    VENV/bin/python scripts/golden/tokenizer_flags.py [--check]      (VENV: see make_golden.py)

With --folders OUT it writes model folders instead, for scripts/check-transformers.py: models of
tests/data/models with tokenizers of these kinds and a chat template.
"""

import argparse
import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import sentencepiece.sentencepiece_model_pb2 as proto
import tokenizers
import transformers
from transformers import AutoTokenizer

from make_golden import ROOT, write_json

MARK = "\u2581"
TEXTS = ["hello world", " hello", "  a  b ", "", " ", "\nhello", MARK + "hello", "<s>hello</s> world", "<s> hello",
         "a<|end|>b <|end|> c", "hello[T] hello", "<unk>a", "it's 12 a\u0301", "<pad>a b<|endoftext|>[new]", "a<|end|></s><|end|>[T]", "\u00e9\U0001f600\t."]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BASE = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
# Tokenizer, model, class and flags of the folders that --folders writes.
FOLDERS = [("sp", "llama-3.2-tied", "LlamaTokenizer", {"add_prefix_space": False, "add_bos_token": True}),
           ("sp", "mistral-plain", "LlamaTokenizer", {"legacy": False}),
           ("characters", "llama-2", "LlamaTokenizer", {"legacy": True}),
           ("characters", "llama-3.2-tied", "LlamaTokenizer", {"split_special_tokens": True}),
           ("legacy", "mistral-window", "LlamaTokenizer", {}),
           ("bytes", "llama-3.1", "PreTrainedTokenizerFast", {}),
           ("bytes", "qwen2-tied", None, {"add_prefix_space": True}),
           ("vocab", "qwen3-tied", "Qwen2Tokenizer", {}),
           ("vocab", "llama-3.2-tied", "GPT2Tokenizer", {"add_prefix_space": True})]
TEMPLATE = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}


def added(token, content, special):
    return {"id": token, "content": content, "special": special, "normalized": False, "lstrip": False,
            "rstrip": False, "single_word": False}


def sentencepiece_pieces():
    """Scores that fall and rise with the id, so that the order of merges shows."""
    joined = ["he", "ll", "lo", MARK + "h", MARK + "w", "wo", "or", "ld", MARK + "he", "llo", MARK + "wor", "hell",
              MARK + MARK, MARK + "a", "in", "hello", MARK + "hello", "ab", MARK + "b"]
    pieces = [["<unk>", 0, UNKNOWN], ["<s>", 0, CONTROL], ["</s>", 0, CONTROL], ["<|end|>", 0, USER_DEFINED],
              ["[T]", 0, CONTROL]]
    pieces += [[f"<0x{byte:02X}>", 0, BYTE] for byte in range(256)]
    pieces += [[piece, -((7 * i) % len(joined)), NORMAL] for i, piece in enumerate(joined)]
    return pieces + [[c, -100 - i, NORMAL] for i, c in enumerate(MARK + "helowrdabcinst'12<>/")]


def write_sentencepiece(path, pieces, dummy_prefix=True):
    model = proto.ModelProto()
    for text, score, kind in pieces:
        model.pieces.add(piece=text, score=score, type=kind)
    model.trainer_spec.model_type, model.trainer_spec.byte_fallback = 2, True
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = dummy_prefix
    model.normalizer_spec.remove_extra_whitespaces = False
    path.write_bytes(model.SerializeToString())


def character_json(pieces):
    """A tokenizer.json of byte fallback with Metaspace, whose class would not be asked for."""
    with tempfile.TemporaryDirectory() as folder:
        write_sentencepiece(Path(folder) / "tokenizer.model", pieces)
        llama = load(folder, {"tokenizer_class": "LlamaTokenizer", **BASE}, "llama")
    file = json.loads(llama.backend_tokenizer.to_str())
    return file | {"post_processor": TEMPLATE}


def legacy_json(file):
    steps = [{"type": "Prepend", "prepend": MARK},
             {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]
    return file | {"pre_tokenizer": None, "normalizer": {"type": "Sequence", "normalizers": steps}}


def gemma_json(file):
    """As Gemma's: spaces become marks, without one in front; the cut at spaces then finds none but in added tokens."""
    return file | {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
                   "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                     "invert": False},
                   "decoder": {"type": "Sequence", "decoders": [
                       {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"},
                       {"type": "Fuse"}]}}


def cut_json(file, behavior):
    """Words cut at marks that stay with the word before them or after them."""
    cut = {"type": "Split", "pattern": {"String": MARK}, "behavior": behavior, "invert": False}
    return gemma_json(file) | {"pre_tokenizer": cut}


def byte_json():
    """A byte-level tokenizer.json that cuts words as Llama 3 does and follows no class."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", "<|end|>", "[T]", *alphabet])}
    merges = [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"], ["\u0120", "hello"], ["\u0120", "a"], ["1", "2"],
              ["\u0120", "b"]]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
               r"\s*[\r\n]+|\s+(?!\S)|\s+")
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokens = [("<unk>", True), ("<s>", True), ("</s>", True), ("<|end|>", False), ("[T]", True)]
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added(i, *token) for i, token in enumerate(tokens)],
            "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, level]},
            "post_processor": TEMPLATE,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": False, "vocab": vocab, "merges": merges}}


def write_tokenizer(folder, files, config):
    if "pieces" in files:
        write_sentencepiece(folder / "tokenizer.model", files["pieces"], files["add_dummy_prefix"])
    elif "merges" in files:
        (folder / "vocab.json").write_text(json.dumps(files["vocab"]))
        lines = [" ".join(merge) for merge in files["merges"]]
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]))
    else:
        (folder / "tokenizer.json").write_text(json.dumps(files))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def load(folder, config, model_type):
    (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
    (Path(folder) / "config.json").write_text(json.dumps({"model_type": model_type}))
    return AutoTokenizer.from_pretrained(folder)


def flags(names):
    """The flags alone and in pairs; each absent, true and false."""
    for values in itertools.product((None, True, False), repeat=len(names)):
        yield {name: value for name, value in zip(names, values) if value is not None}


def cases(files):
    """tokenizer, model type, class and flags of each case."""
    prefix, both = ["add_prefix_space"], ["add_prefix_space", "legacy"]
    for tokenizer in ("sp", "characters"):
        for name in ("LlamaTokenizer", "PreTrainedTokenizerFast"):
            yield from ((tokenizer, "llama", name, f) for f in flags(both))
    yield from (("sp_plain", "llama", name, f) for name in ("LlamaTokenizer", None) for f in flags(["legacy"]))
    yield from (("legacy", "llama", name, f) for name in ("LlamaTokenizerFast", "TokenizersBackend")
                for f in flags(prefix))
    yield from (("characters", "llama", "CodeLlamaTokenizer", f) for f in flags(prefix))
    yield from ((tokenizer, "mistral", "LlamaTokenizer", f) for tokenizer in ("sp", "characters")
                for f in flags(["legacy"]))
    for tokenizer in ("bytes", "vocab"):
        yield from ((tokenizer, "llama", name, f) for name in ("GPT2Tokenizer", "Qwen2TokenizerFast")
                    for f in flags(prefix))
        yield from ((tokenizer, "qwen2", "PreTrainedTokenizerFast", f) for f in flags(prefix))
        yield from ((tokenizer, "qwen3", None, f) for f in flags(prefix))
    yield from (("bytes", "llama", name, f) for name in ("LlamaTokenizer", "PreTrainedTokenizerFast", None)
                for f in flags(prefix))
    for tokenizer in files:
        name = {"vocab": "GPT2Tokenizer", "bytes": None}.get(tokenizer, "LlamaTokenizer")
        yield from ((tokenizer, "llama", name, f | {"split_special_tokens": True}) for f in flags(["add_bos_token"]))
    for tokenizer in ("gemma", "characters"):
        yield from ((tokenizer, "gemma3_text", name, f) for name in ("GemmaTokenizer", "GemmaTokenizerFast")
                    for f in flags(prefix))
    yield from ((tokenizer, "gemma3_text", name, {}) for tokenizer in ("gemma", "with_previous", "with_next")
                for name in ("PreTrainedTokenizerFast", None))
    # Special tokens that the files lack get the ids after the last one.
    for tokenizer in files:
        missing = {"pad_token": "<pad>"}
        if "pieces" not in files[tokenizer]:
            missing["additional_special_tokens"] = ["b", "[new]"]
        name = {"vocab": "Qwen2Tokenizer", "bytes": "GPT2Tokenizer"}.get(tokenizer, "PreTrainedTokenizerFast")
        yield tokenizer, "llama", name, missing
    replaced = {str(token): {k: v for k, v in added(token, content, special).items() if k != "id"} | changes
                for token, content, special, changes in
                [(0, "<unk>", True, {}), (1, "<s>", True, {}), (2, "</s>", True, {"lstrip": True}),
                 (3, "<|end|>", False, {"rstrip": True}), (4, "[T]", True, {"lstrip": True, "rstrip": True})]}
    yield from ((tokenizer, "llama", name, {"added_tokens_decoder": replaced}) for tokenizer in ("bytes", "characters")
                for name in ("PreTrainedTokenizerFast", "LlamaTokenizer"))


def tokenizer_files():
    pieces = sentencepiece_pieces()
    characters, level = character_json(pieces), byte_json()
    return {"sp": {"pieces": pieces, "add_dummy_prefix": True}, "sp_plain": {"pieces": pieces, "add_dummy_prefix": False},
            "characters": characters, "legacy": legacy_json(characters), "gemma": gemma_json(characters),
            "with_previous": cut_json(characters, "MergedWithPrevious"),
            "with_next": cut_json(characters, "MergedWithNext"), "bytes": level,
            "vocab": {"vocab": level["model"]["vocab"], "merges": level["model"]["merges"]}}


def write_folders(files, out):
    template = ("{{ bos_token }}{% for m in messages %}[T]{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
                "{% if add_generation_prompt %}[T]assistant\n{% endif %}")
    for tokenizer, model, name, extra in FOLDERS:
        folder = out / "-".join([tokenizer, model, *extra])
        shutil.copytree(ROOT / "tests" / "data" / "models" / model, folder)
        config = BASE | ({"tokenizer_class": name} if name else {}) | {"chat_template": template} | extra
        write_tokenizer(folder, files[tokenizer], config)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folders", type=Path, metavar="OUT", help="write model folders there, and no golden values")
    parser.add_argument("--check", action="store_true", help="compare the committed file with a new run")
    args = parser.parse_args()
    files = tokenizer_files()
    if args.folders:
        return write_folders(files, args.folders)
    rows = []
    for tokenizer, model_type, name, extra in cases(files):
        config = BASE | ({"tokenizer_class": name} if name else {}) | extra
        with tempfile.TemporaryDirectory() as folder:
            write_tokenizer(Path(folder), files[tokenizer], config)
            loaded = load(folder, config, model_type)
            ids = [loaded(text)["input_ids"] for text in TEXTS]
        rows.append({"tokenizer": tokenizer, "model_type": model_type, "class": type(loaded).__name__, "config": config,
                     "ids": ids})
    versions = {m.__name__: m.__version__ for m in (transformers, tokenizers)}
    path = ROOT / "tests" / "data" / "golden" / "tokenizer_flags.json"
    content = {"versions": versions, "texts": TEXTS, "tokenizers": files, "cases": rows}
    if not args.check:
        return write_json(path, content)
    if json.loads(path.read_text(encoding="utf-8")) != json.loads(json.dumps(content)):
        raise SystemExit(f"{path.name} differs from a new run; run without --check to write it")


if __name__ == "__main__":
    main()
