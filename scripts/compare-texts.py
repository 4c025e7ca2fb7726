#!/usr/bin/env python3
"""Compares what two builds of pig-generate and sequoia-generate write: 200 texts of the embedded
models, greedy and sampled, in bf16 and f32, in batches that shrink and batches that are refilled,
under several cache policies, with token trees, chains and prompt lookup; on a GPU also with layers
streamed from host memory.

    scripts/compare-texts.py OLD_BIN_DIR NEW_BIN_DIR [--device cpu|cuda] [--out FILE.jsonl]

Token ids, texts, log-probabilities, rounds and summaries must be equal; times, rates, memory and
versions are left out. Prints one line a group of cases, then each text that differs: the position
of its first difference, both tokens there, and how far the log-probabilities of the two builds lie
apart. Exit status: 0 all equal, 1 something differs, 2 command line, or a build failed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "recipes" / "models"
DOCUMENT = ROOT / "recipes" / "demo" / "lighthouse-logbook.txt"
DOCUMENT_CHARACTERS = 14000  # about 3,500 tokens
N_TEXTS = 200

PROMPTS = [
    "Once upon a time",
    "The lamp was lit at dusk, and",
    "In the morning the keeper went down to the landing. He",
    "Dear Sir, I write to you because",
    "1. Fill the cistern. 2. Trim the wick. 3.",
    "Q: Who brought the oil to the rock? A:",
    "The wind came from the north",
    "def area(width, height):\n    return",
    "\"You are late,\" said the old man. \"",
    "A list of what was lost in the storm: one boat, two",
    "When the fog came in, nobody",
    "The the the the the the",
    "The special magic value for amber-anchor is 417. The special magic value for amber-anchor is",
    "It was",
    "On Monday it rained. On Tuesday it rained. On Wednesday it",
    "Her first voyage took her from Saltby harbour to the outer islands, where she",
]
QUESTIONS = [f"What is the special magic value for {name}?"
             for name in ("amber-anchor", "calm-candle", "brave-bridge", "dusty-desert")]
CHAIN_OF_5 = {"format": "sequoia-tree/1", "size": 6, "levels": 6, "widths": [1] * 6,
              "branch_counts": [1, 1, 1, 1, 1, 0], "parents": [-1, 0, 1, 2, 3, 4],
              "child_positions": [0, 1, 1, 1, 1, 1]}

GREEDY = {"sampling.temperature": 0}
WARM = {"sampling.temperature": 0.6, "sampling.top_p": 0.9}
HOT = {"sampling.temperature": 1}
BF16, F32 = {"model.compute": "bf16"}, {"model.compute": "f32"}

# Not compared: what depends on the clock, on the process and on the build, and names of models,
# which hold folders.
UNCOMPARED = {"t_ms", "speedup", "frac_of_mem_read", "peak_bytes", "planned_peak_bytes", "model",
              "draft", "version"}
UNCOMPARED_ENDINGS = ("_s", "_ms", "gbps", "ms_per_token")


@dataclass
class Case:
    group: str
    tool: str
    settings: dict
    prompts: list
    tokens: int = 48
    document: bool = False   # prompts follow the document
    stop: list = field(default_factory=list)
    saved: bool = False      # a first run saves its prefill state, which prompts continue
    tree: str = ""           # of sequoia-generate: tree, chain, or none

    def name(self):
        settings = " ".join(f"{key}={value}" for key, value in self.settings.items())
        parts = [self.tool, settings, f"{len(self.prompts)} prompts"]
        return " ".join(parts + ["after a document"] * self.document + ["saved"] * self.saved)


def plain_cases():
    def case(group, *settings, **rest):
        merged = {key: value for part in settings for key, value in part.items()}
        return Case(group, "pig-generate", merged, **rest)

    eight, other = PROMPTS[:8], PROMPTS[8:]
    return [
        case("greedy", GREEDY, BF16, prompts=eight),
        case("greedy", GREEDY, F32, prompts=other),
        case("greedy", GREEDY, BF16, prompts=PROMPTS[:1], tokens=160),
        case("greedy", GREEDY, F32, prompts=PROMPTS[3:4], tokens=160),
        case("sampled", WARM, BF16, prompts=eight),
        case("sampled", HOT, F32, prompts=other),
        case("sampled", HOT, BF16, {"sampling.top_k": 40, "sampling.min_p": 0.02}, prompts=other),
        case("penalties", {"sampling.temperature": 0.8, "sampling.repetition_penalty": 1.2}, BF16,
             prompts=eight),
        case("penalties", GREEDY, F32, {"sampling.repetition_penalty": 1.3}, prompts=other),
        case("batch that shrinks", HOT, BF16, prompts=PROMPTS, stop=[".", "\n"]),
        case("batch that is refilled", GREEDY, BF16, {"run.batch": 4}, prompts=PROMPTS[:12],
             stop=["."], tokens=32),
        case("document", GREEDY, BF16, prompts=QUESTIONS, document=True, tokens=16),
        case("streaming", GREEDY, BF16, {"cache.kind": "streaming", "cache.recent": 512},
             prompts=QUESTIONS, document=True, tokens=32),
        case("streaming", HOT, F32, {"cache.kind": "streaming", "cache.recent": 100,
                                     "cache.reposition": "true"},
             prompts=QUESTIONS, document=True, tokens=32),
        case("saved state", GREEDY, BF16, prompts=QUESTIONS[:1], document=True, saved=True,
             tokens=24),
        case("saved state", HOT, F32, prompts=QUESTIONS[1:2], document=True, saved=True, tokens=24),
    ]


def sparse_cases():
    kinds = ["topk", "oracle_sampling", "quest", "lsh", "hybrid"]
    return [Case("sparse policies", "pig-generate",
                 {**(HOT if i % 2 else GREEDY), **(F32 if kind == "quest" else BF16),
                  "cache.kind": kind, "cache.dense_layers": "[0]"},
                 QUESTIONS, document=True, tokens=24) for i, kind in enumerate(kinds)]


def speculation_cases():
    def case(group, *settings, tree="tree", **rest):
        merged = {key: value for part in settings for key, value in part.items()}
        return Case(group, "sequoia-generate", merged, tree=tree, **rest)

    eight, other = PROMPTS[:8], PROMPTS[8:]
    lookup = {"spec.draft": "ngram"}
    return [
        case("trees", GREEDY, BF16, prompts=eight),
        case("trees", GREEDY, F32, prompts=other),
        case("trees", WARM, BF16, prompts=other),
        case("trees", HOT, F32, prompts=eight),
        case("trees", GREEDY, F32, prompts=PROMPTS[:1], tokens=160),
        case("trees", HOT, BF16, prompts=PROMPTS[3:4], tokens=160),
        case("chains", GREEDY, F32, prompts=eight, tree="chain"),
        case("chains", HOT, BF16, prompts=other, tree="chain"),
        case("prompt lookup", GREEDY, BF16, lookup, prompts=QUESTIONS, document=True, tree=""),
        case("prompt lookup", WARM, F32, lookup, prompts=QUESTIONS, document=True, tree=""),
        case("trees, batch that shrinks", HOT, F32, prompts=PROMPTS[4:], stop=[".", "\n"]),
        case("trees, batch that is refilled", GREEDY, BF16, {"run.batch": 4}, prompts=PROMPTS[:10],
             stop=["."], tokens=32),
    ]


def offload_cases():
    offload = {"model.offload": 4}
    return [
        Case("streamed layers", "pig-generate", {**GREEDY, **F32, **offload}, PROMPTS[:8]),
        Case("streamed layers", "sequoia-generate", {**GREEDY, **F32, **offload}, PROMPTS[:6],
             tree="tree"),
        Case("streamed layers", "sequoia-generate", {**HOT, **BF16, **offload}, PROMPTS[6:12],
             tree="tree"),
    ]


def cases_of(device):
    cases = plain_cases() + (sparse_cases() if device == "cpu" else offload_cases())
    cases += speculation_cases()
    n_texts = sum(len(case.prompts) for case in cases)
    assert n_texts == N_TEXTS, f"the cases write {n_texts} texts"
    return cases


class Failed(Exception):
    pass


class Build:
    """The tools of one folder."""

    def __init__(self, folder, device, threads, scratch):
        self.folder, self.device, self.threads, self.scratch = folder, device, threads, scratch
        self.seconds = 0.0

    def events(self, tool, arguments):
        """What a run prints, one JSON object a line."""
        command = [str(self.folder / tool), "-m", str(MODELS / "tiny-16m"), "--device", self.device,
                   "--threads", str(self.threads), "--format", "jsonl", "--quiet", *arguments]
        start = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT,
                                  check=False)
        except (OSError, subprocess.TimeoutExpired) as e:
            raise Failed(f"{' '.join(command)}\n  {e}") from e
        self.seconds += time.monotonic() - start
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}\n  exit status {done.returncode}: "
                         f"{done.stderr.strip()}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def run(self, case, seed):
        arguments = ["--seed", str(seed), "-n", str(case.tokens)]
        for key, value in case.settings.items():
            arguments += ["-s", f"{key}={value}"]
        for text in case.stop:
            arguments += ["--stop", text]
        if case.tool == "pig-generate":
            arguments += ["-s", "output.top_logprobs=20"]
        elif case.tree:
            arguments += ["-s", f"draft.path={MODELS / 'tiny-2m'}", "-s",
                          f"tree.path={self.scratch / case.tree}.json"]
        document = self.scratch / "document.txt"
        if case.saved:
            state = self.scratch / "saved.state"
            state.unlink(missing_ok=True)
            compute = case.settings["model.compute"]
            self.events(case.tool, ["-f", str(document), "-n", "0", "-s", f"output.state={state}",
                                    "-s", f"model.compute={compute}"])
            arguments += ["-s", f"model.state={state}", "-p", case.prompts[0]]
        elif case.document:
            questions = self.scratch / "questions.txt"
            questions.write_text("\n".join(case.prompts) + "\n", encoding="utf-8")
            arguments += ["-f", str(document), "--questions", str(questions)]
        elif len(case.prompts) == 1:
            arguments += ["-p", case.prompts[0]]
        else:
            prompts = self.scratch / "prompts.jsonl"
            write_prompts(prompts, case.prompts)
            arguments += ["--prompts", str(prompts)]
        return self.events(case.tool, arguments)


def write_prompts(path, prompts):
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
    path.write_text("".join(lines), encoding="utf-8")


def comparable(value):
    """A record without the fields that may differ from run to run."""
    if isinstance(value, dict):
        return {key: comparable(part) for key, part in value.items()
                if key not in UNCOMPARED and not key.endswith(UNCOMPARED_ENDINGS)}
    if isinstance(value, list):
        return [comparable(part) for part in value]
    return value


def by_sequence(events):
    """Events of each sequence in order, and the summary."""
    sequences, summary = {}, {}
    for event in events:
        if event["event"] == "summary":
            summary = event
        else:
            sequences.setdefault(event["seq"], []).append(event)
    return sequences, summary


def tokens_of(events):
    return [event for event in events if event["event"] == "token"]


def written(events):
    """Ids and text of a sequence and why it ended."""
    tokens = tokens_of(events)
    finish = next(event for event in events if event["event"] == "finish")
    return ([token["id"] for token in tokens],
            "".join(token["text"] for token in tokens) + finish["text"], finish["reason"])


def by_kind(events):
    """What is compared of a sequence's tokens, of its rounds, and so on."""
    kinds = {}
    for event in events:
        kinds.setdefault(event["event"], []).append(comparable(event))
    return kinds


def fields_apart(old, new, path=""):
    """Names and values of the fields in which two records differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from fields_apart(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}.length", len(old), len(new)
        for i, (a, b) in enumerate(zip(old, new)):
            yield from fields_apart(a, b, f"{path}[{i}]")
    elif old != new:
        yield path, old, new


def logprob(token, token_id):
    """Of a token of the vocabulary at the position of an event, if the event tells it."""
    return dict([[token["id"], token["logprob"]]] + token.get("top", [])).get(token_id)


def apart_at(old, new, at):
    """What both builds say of the tokens at the first position where the sequences differ."""
    before = [abs(a["logprob"] - b["logprob"]) for a, b in zip(old[:at], new[:at])]
    found = {"position": at, "logprobs_apart_before": max(before, default=0.0)}
    if at >= len(old) or at >= len(new):
        return found | {"old_tokens": len(old), "new_tokens": len(new)}
    a, b = old[at], new[at]
    found |= {"old": {"id": a["id"], "text": a["text"], "logprob": a["logprob"]},
              "new": {"id": b["id"], "text": b["text"], "logprob": b["logprob"]}}
    apart = [abs(x - y) for x, y in ((logprob(a, i), logprob(b, i)) for i in (a["id"], b["id"]))
             if x is not None and y is not None]
    margin = [x - y for x, y in ((logprob(a, a["id"]), logprob(a, b["id"])),) if y is not None]
    return found | ({"logprobs_apart": max(apart)} if apart else {}) \
        | ({"old_margin": margin[0]} if margin else {})


def compare(case, old, new):
    """Records of the sequences of a case, then that of the run."""
    (old_sequences, old_summary), (new_sequences, new_summary) = by_sequence(old), by_sequence(new)
    for sequences in (old_sequences, new_sequences):
        if sorted(sequences) != list(range(len(case.prompts))) or not any(map(tokens_of, sequences.values())):
            raise Failed(f"{case.name()}: expected tokens of {len(case.prompts)} sequences, found events of "
                         f"{sorted(sequences)}")
    for seq in range(len(case.prompts)):
        a, b = old_sequences[seq], new_sequences[seq]
        record = {"group": case.group, "case": case.name(), "seq": seq}
        ids_a, text_a, end_a = written(a)
        ids_b, text_b, end_b = written(b)
        same = (ids_a, text_a, end_a) == (ids_b, text_b, end_b)
        record |= {"tokens": len(ids_a), "text_equal": same}
        if not same:
            pairs = enumerate(zip(ids_a, ids_b))
            at = next((i for i, (x, y) in pairs if x != y), min(len(ids_a), len(ids_b)))
            record |= apart_at(tokens_of(a), tokens_of(b), at)
            record |= {"old_text": text_a, "new_text": text_b, "old_end": end_a, "new_end": end_b}
        fields = list(fields_apart(by_kind(a), by_kind(b)))
        record["fields_equal"] = not fields
        if same and fields:
            record["fields"] = [{"field": f, "old": x, "new": y} for f, x, y in fields[:5]]
            numbers = [abs(x - y) for f, x, y in fields
                       if f.endswith(".logprob")]
            record["logprobs_apart"] = max(numbers, default=0.0)
        yield record
    fields = list(fields_apart(comparable(old_summary), comparable(new_summary)))
    yield {"group": case.group, "case": case.name(), "summary_equal": not fields,
           **({"fields": [{"field": f, "old": x, "new": y} for f, x, y in fields]} if fields
              else {})}


def describe(record):
    where = f"{record['group']}: {record['case']}"
    if "seq" not in record:
        fields = "; ".join(f"{f['field']} {f['old']} -> {f['new']}" for f in record["fields"])
        return f"{where}: summary: {fields}"
    where += f": sequence {record['seq']}"
    if record["text_equal"]:
        first = record["fields"][0]
        return (f"{where}: text equal, but {first['field']} {first['old']} -> {first['new']}; "
                f"logprobs at most {record['logprobs_apart']:.2g} apart")
    line = f"{where}: first difference at token {record['position']}"
    if "old" in record:
        line += ": " + " against ".join(
            f"{side['id']} {side['text']!r} (logprob {side['logprob']:.5f})"
            for side in (record["old"], record["new"]))
        if "logprobs_apart" in record:
            line += f", logprobs of the same token {record['logprobs_apart']:.2g} apart"
        if "old_margin" in record:
            line += f", the two tokens {record['old_margin']:.2g} apart in the old build"
    else:
        line += f": {record['old_tokens']} against {record['new_tokens']} tokens"
    return line + f"; before it at most {record['logprobs_apart_before']:.2g} apart"


def print_groups(records):
    groups = list(dict.fromkeys(record["group"] for record in records))
    width = max(map(len, groups))
    for group in groups:
        texts = [r for r in records if r["group"] == group and "seq" in r]
        runs = [r for r in records if r["group"] == group and "seq" not in r]
        print(f"{group:{width}}  texts equal {sum(r['text_equal'] for r in texts)} of {len(texts)}"
              f", records {sum(r['fields_equal'] for r in texts)} of {len(texts)}"
              f", summaries {sum(r['summary_equal'] for r in runs)} of {len(runs)}")


def print_differences(records):
    """Every text and summary that differs; of texts that are equal but for other fields, the one
    of a group whose log-probabilities lie farthest apart."""
    for record in records:
        if not record.get("text_equal", True) or not record.get("summary_equal", True):
            print(describe(record))
    for group in dict.fromkeys(record["group"] for record in records):
        others = [r for r in records if r["group"] == group and "logprobs_apart" in r
                  and r["text_equal"]]
        if others:
            print(f"{describe(max(others, key=lambda r: r['logprobs_apart']))}; "
                  f"{len(others)} such texts in this group")


def is_equal(record):
    return all(value for key, value in record.items() if key.endswith("_equal"))


def write_inputs(scratch):
    text = DOCUMENT.read_text(encoding="utf-8")
    needles = "".join(f"The special magic value for {name} is {value}. " for name, value in
                      (("amber-anchor", 417), ("calm-candle", 902), ("brave-bridge", 588)))
    half = DOCUMENT_CHARACTERS // 2
    (scratch / "document.txt").write_text(
        text[:half] + "\n\n" + needles + "\n\n" + text[half:2 * half], encoding="utf-8")
    (scratch / "chain.json").write_text(json.dumps(CHAIN_OF_5), encoding="utf-8")
    tree = ROOT / "recipes" / "sequoia" / "tree-8.json"
    (scratch / "tree.json").write_text(tree.read_text(encoding="utf-8"), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD_BIN_DIR")
    parser.add_argument("new", type=Path, metavar="NEW_BIN_DIR")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads of the tools, 0 = physical cores")
    parser.add_argument("--out", type=Path, metavar="FILE.jsonl",
                        help="write a record a text and a run")
    options = parser.parse_args()

    cases = cases_of(options.device)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_inputs(scratch)
        builds = [Build(path.resolve(), options.device, options.threads, scratch)
                  for path in (options.old, options.new)]
        try:
            for seed, case in enumerate(cases):
                records += compare(case, *(build.run(case, seed) for build in builds))
        except Failed as e:
            print(f"compare-texts.py: error: {e}", file=sys.stderr)
            sys.exit(2)

    for record in records:
        record["device"] = options.device
    if options.out:
        options.out.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    print_groups(records)
    print_differences(records)
    n_texts = sum("seq" in record for record in records)
    n_equal = sum(record.get("text_equal", False) for record in records)
    print(f"{options.device}: {n_equal} of {n_texts} texts equal, "
          f"{sum(r.get('tokens', 0) for r in records)} tokens; "
          f"old {builds[0].seconds:.0f} s, new {builds[1].seconds:.0f} s")
    sys.exit(0 if all(map(is_equal, records)) else 1)


if __name__ == "__main__":
    main()
