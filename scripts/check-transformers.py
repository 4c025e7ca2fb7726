#!/usr/bin/env python3
"""Compares tandem with transformers on model folders, on this machine and in float32.

    check-transformers.py [--tools BIN] [--tolerance X] [--details N] FOLDER...

For each FOLDER it compares the ids of plain texts and of chats in the folder's template, the
log-probabilities of the 100 likeliest tokens at the first positions of three prompts, and 32 greedy
tokens after each. It prints one line a folder, then the differences. A greedy token may differ where
the best two logits are closer than 0.01; such a tie is shown, and is no failure.

Needs scripts/golden/requirements.txt and a built pig-generate (default: build/bin).
Exit status: 0 all equal, 1 a folder differs, is refused or does not load, 2 command line or packages.
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "golden"))
import texts  # noqa: E402

N_POSITIONS, N_TOP, N_GREEDY, TIE = 12, 100, 32, 1e-2
TOKENIZER_FILES = ["tokenizer.json", "tokenizer.model", "vocab.json"]
DATE = datetime.date(2024, 2, 29)
CHATS = texts.CHATS + [
    [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Is it day?"},
     {"role": "assistant", "content": "No."}, {"role": "user", "content": "Is it \u00bd night?"}],
    [{"role": "user", "content": "Say <s> and <|im_end|>, it's {{ not }} a {% template %}."}]]


def require_packages():
    requirements = ROOT / "scripts" / "golden" / "requirements.txt"
    install = f"python3 -m venv VENV && VENV/bin/pip install -r {requirements.relative_to(ROOT)}"
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"check-transformers.py: error: {sys.executable} lacks a package: {error}\n"
              f"  hint: {install}, then run this script by VENV/bin/python", file=sys.stderr)
        sys.exit(2)
    pins = dict(line.split("==") for line in requirements.read_text().splitlines() if "==" in line)
    for module in (torch, transformers):
        found, pinned = module.__version__.split("+")[0], pins[module.__name__]
        if found != pinned:
            print(f"check-transformers.py: warning: {module.__name__} is {found}, {requirements.name} pins {pinned}",
                  file=sys.stderr)
    warnings.simplefilter("ignore", FutureWarning)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


class Refused(Exception):
    """What tandem wrote on stderr."""


class NotLoaded(Exception):
    """What transformers raised for a folder."""


def load(auto_class, path, **options):
    try:
        return auto_class.from_pretrained(path, **options)
    except Exception as error:  # any type: each class of transformers has its own
        raise NotLoaded(f"{type(error).__name__}: {error}") from error


class Tandem:
    def __init__(self, tools, folder):
        self.program, self.folder, self.settings = tools / "pig-generate", folder, []
        keys = subprocess.run([self.program, "--help-recipe=chat"], capture_output=True, text=True, check=True).stdout
        if "chat.date" in keys:
            self.settings = ["-s", f"chat.date={DATE.isoformat()}"]

    def run(self, prompts, n_new, n_top=0):
        """(ids of each prompt, token events of each) of a batch of lines as --prompts takes them."""
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write("".join(json.dumps(p) + "\n" for p in prompts))
            file.flush()
            done = subprocess.run(
                [self.program, "-m", self.folder, "--prompts", file.name, "-n", str(n_new), "--format", "jsonl", "-v",
                 "--device", "cpu", "-s", "model.compute=f32", "-s", "model.activations=compute", "-s", "sampling.temperature=0",
                 "-s", f"output.top_logprobs={n_top}", *self.settings], capture_output=True, text=True)
        if done.returncode != 0:
            raise Refused(done.stderr.strip().removeprefix("pig-generate: error: ") or f"exit {done.returncode}")
        ids, tokens = [None] * len(prompts), [[] for _ in prompts]
        for event in map(json.loads, done.stdout.splitlines()):
            if event["event"] == "prompt":
                ids[event["seq"]] = event["ids"]
            elif event["event"] == "token":
                tokens[event["seq"]].append(event)
        return ids, tokens

    def ids_of(self, prompts):
        """The ids of each prompt, or the message with which it is refused. A refused prompt ends a batch."""
        try:
            return self.run(prompts, 1)[0]
        except Refused as refusal:
            if len(prompts) == 1:
                return [str(refusal)]
            half = len(prompts) // 2
            return self.ids_of(prompts[:half]) + self.ids_of(prompts[half:])


def first_difference(ours, theirs):
    """The first index at which two lists differ, None if they are equal."""
    for i in range(max(len(ours), len(theirs))):
        if i >= len(ours) or i >= len(theirs) or ours[i] != theirs[i]:
            return i
    return None


class Folder:
    """The comparison of one folder. `failures` and `notes` are lines for the user."""

    def __init__(self, path, tandem, tolerance):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.path, self.tandem, self.tolerance, self.torch = path, tandem, tolerance, torch
        self.failures, self.notes, self.cells = [], [], {}
        tandem.run([{"ids": [0]}], 1)
        self.model = load(AutoModelForCausalLM, path, dtype=torch.float32, attn_implementation="eager").eval()
        self.vocab = self.model.get_input_embeddings().weight.shape[0]
        has_tokenizer = any((path / name).exists() for name in TOKENIZER_FILES)
        self.tokenizer = load(AutoTokenizer, path) if has_tokenizer else None
        if not has_tokenizer:
            self.notes.append("no tokenizer: only ids are compared")

    def compare(self):
        prompts = [[(7 + 31 * i * i) % self.vocab for i in range(40)]]
        if self.tokenizer:
            plain = self.compare_texts()
            chats = self.compare_chats() if self.tokenizer.chat_template else []
            if not self.tokenizer.chat_template:
                self.notes.append("no chat template: chats are not compared")
            prompts += [ids for ids in (max(plain, key=len, default=[])[:200], max(chats, key=len, default=[])) if ids]
        self.compare_logits(prompts)
        self.compare_greedy(prompts)

    def tokens(self, ids, at):
        if at >= len(ids):
            return "nothing"
        return f"{ids[at]} {self.tokenizer.convert_ids_to_tokens(ids[at])!r}"

    def compare_ids(self, kind, names, prompts, theirs):
        """Compares prompts with transformers' ids; where it raised, with its message. Gives the ids both have."""
        equal, n_wrong = [], 0
        for name, ours, expected in zip(names, self.tandem.ids_of(prompts), theirs):
            beyond = isinstance(expected, list) and max(expected) >= self.vocab
            if isinstance(ours, str):
                # Both refuse it, or the model has no row for one of its tokens.
                if isinstance(expected, list) and not beyond:
                    self.failures.append(f"{kind} {name!r}: tandem refuses it: {ours.splitlines()[0]}")
                    n_wrong += 1
            elif isinstance(expected, str):
                self.failures.append(f"{kind} {name!r}: tandem writes it, transformers refuses it: {expected}")
                n_wrong += 1
            elif (at := first_difference(ours, expected)) is not None:
                self.failures.append(f"{kind} {name!r}: id {at} is {self.tokens(ours, at)}, transformers has "
                                     f"{self.tokens(expected, at)} ({len(ours)} and {len(expected)} ids)")
                n_wrong += 1
            else:
                equal.append(ours)
        self.cells[kind + "s"] = f"{len(names) - n_wrong}/{len(names)}"
        return equal

    def compare_texts(self):
        special = self.tokenizer.all_special_tokens[:8] + list(self.tokenizer.get_added_vocab())[:8]
        plain = texts.TOKENIZER + [f"{t}one {t} two{t}{t}\n{t}" for t in dict.fromkeys(special)]
        eos, without = self.tokenizer.eos_token_id, self.tokenizer.encode("", add_special_tokens=True)
        appends_eos = eos is not None and without[-1:] == [eos] and without != self.tokenizer.encode("a")[:len(without)]
        if appends_eos:
            self.notes.append("transformers appends EOS to every prompt; tandem does not, since it continues prompts")
        pairs = []
        for text in plain:
            ids = self.tokenizer.encode(text)
            ids = ids[:-1] if appends_eos else ids
            if text and ids:
                pairs.append((text, ids))
        names, theirs = [p[0] for p in pairs], [p[1] for p in pairs]
        return self.compare_ids("text", names, [{"prompt": text} for text in names], theirs)

    def compare_chats(self):
        theirs = []
        for chat in CHATS:
            try:
                theirs.append(self.tokenizer.apply_chat_template(
                    chat, add_generation_prompt=True, return_dict=False, strftime_now=DATE.strftime))
            except Exception as error:  # a template may raise any
                theirs.append(f"{type(error).__name__}: {error}")
        names = [" | ".join(f"{m['role']}: {m['content']}" for m in chat) for chat in CHATS]
        return self.compare_ids("chat", names, [{"messages": chat} for chat in CHATS], theirs)

    def compare_logits(self, prompts):
        worst, where = 0.0, ""
        for p, ids in enumerate(prompts):
            n = min(N_POSITIONS, len(ids))
            _, tokens = self.tandem.run([{"ids": ids[:i + 1]} for i in range(n)], 1, min(N_TOP, self.vocab))
            with self.torch.no_grad():
                theirs = self.model(self.torch.tensor([ids[:n]]), use_cache=False).logits[0].log_softmax(-1)
            for i in range(n):
                for token, logprob in tokens[i][0]["top"]:
                    difference = abs(logprob - float(theirs[i, token]))
                    if not difference <= worst:  # also NaN
                        worst, where = difference, f"prompt {p}, position {i}, token {token}"
        self.cells["logprobs"] = f"{worst:.1e}"
        if not worst <= self.tolerance:
            self.failures.append(f"log-probabilities: {worst:.3g} apart at {where}, at most {self.tolerance:g} are allowed")

    def compare_greedy(self, prompts):
        _, tokens = self.tandem.run([{"ids": ids} for ids in prompts], N_GREEDY)
        ends = self.model.generation_config.eos_token_id
        ends = {*(ends if isinstance(ends, list) else [ends]), self.tokenizer and self.tokenizer.eos_token_id}
        n_equal = 0
        for p, (ids, events) in enumerate(zip(prompts, tokens)):
            ours = [event["id"] for event in events]
            if len(ours) < N_GREEDY and not ends.intersection(ours[-1:]):
                self.failures.append(f"greedy, prompt {p}: {len(ours)} of {N_GREEDY} tokens, and the last is no EOS")
                continue
            theirs, gaps = self.greedy(ids, len(ours))
            at = first_difference(ours, theirs)
            if at is None:
                n_equal += 1
                continue
            line = f"greedy, prompt {p}: token {at} is {ours[at]}, transformers has {theirs[at]}"
            if gaps[at] < TIE:
                n_equal += 1
                self.notes.append(f"{line}: a tie, its best two logits are {gaps[at]:.1e} apart")
            else:
                self.failures.append(f"{line}; its best two logits are {gaps[at]:.2g} apart")
        self.cells["greedy"] = f"{n_equal}/{len(prompts)}"

    def greedy(self, ids, n):
        step, cache, tokens, gaps = self.torch.tensor([ids]), None, [], []
        with self.torch.no_grad():
            for _ in range(n):
                out = self.model(step, past_key_values=cache, use_cache=True)
                cache, best = out.past_key_values, out.logits[0, -1].topk(2)
                tokens.append(int(best.indices[0]))
                gaps.append(float(best.values[0] - best.values[1]))
                step = self.torch.tensor([tokens[-1:]])
        return tokens, gaps


def check(path, tools, tolerance):
    """(verdict, cells of the table, failures, notes)"""
    try:
        folder = Folder(path, Tandem(tools, path), tolerance)
        folder.compare()
    except Refused as refusal:
        return "refused", {}, [f"refused: {refusal}"], []
    except NotLoaded as error:
        return "not loaded", {}, [f"transformers does not load it: {error}"], []
    return "differs" if folder.failures else "equal", folder.cells, folder.failures, folder.notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=pathlib.Path, default=ROOT / "build" / "bin", help="folder of pig-generate")
    parser.add_argument("--tolerance", type=float, default=2e-3, help="largest difference of log-probabilities")
    parser.add_argument("--details", type=int, default=10, help="differences shown of a folder")
    parser.add_argument("folders", nargs="+", type=pathlib.Path, metavar="FOLDER")
    args = parser.parse_args()
    if not (args.tools / "pig-generate").exists():
        parser.error(f"{args.tools} has no pig-generate: build it, or name its folder with --tools")
    missing = [str(folder) for folder in args.folders if not (folder / "config.json").exists()]
    if missing:
        parser.error(f"expected a model folder with config.json, found none: {', '.join(missing)}")
    require_packages()
    columns = ["texts", "chats", "logprobs", "greedy"]
    width = max(len(str(folder)) for folder in args.folders)
    print(f"{'folder':{width}}  {'texts':>7}  {'chats':>7}  {'logprobs':>8}  {'greedy':>6}  verdict")
    details, n_equal = [], 0
    for path in args.folders:
        verdict, cells, failures, notes = check(path, args.tools, args.tolerance)
        n_equal += verdict == "equal"
        row = [cells.get(column, "-") for column in columns]
        print(f"{path!s:{width}}  {row[0]:>7}  {row[1]:>7}  {row[2]:>8}  {row[3]:>6}  {verdict}", flush=True)
        lines = failures[:args.details] + [f"note: {note}" for note in notes]
        if len(failures) > args.details:
            lines.insert(args.details, f"... and {len(failures) - args.details} more")
        details += [f"{path}: {line}" for line in lines]
    if details:
        print("\n" + "\n".join(details))
    print(f"\n{n_equal} of {len(args.folders)} folders are equal")
    return 0 if n_equal == len(args.folders) else 1


if __name__ == "__main__":
    sys.exit(main())
