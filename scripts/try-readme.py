#!/usr/bin/env python3
"""Runs the commands of README.md, docs/ and recipes/README.md, and the examples of every tool's --help.

    scripts/try-readme.sh                  all of them, in some three minutes on two slow cores
    scripts/try-readme.sh --whole          with whole documents, and benchmarks and training to their end
    scripts/try-readme.sh --list           what would be run, and how
    scripts/try-readme.sh --only REGEX     only these
    scripts/try-readme.sh docs/gpu.md      only this page
    scripts/try-readme.sh --self-test      faults in a copy of README.md are found

Commands are the lines of fences marked sh, and of indented blocks. They run as they are printed. Each page has a
scratch folder, which looks like a checkout with build/bin; what commands write stays in there. No command sees a
GPU. One is ok if it ends with status 0 within its time. RULES, below, says which are left out or changed, and why,
and the report repeats it line by line; a rule that no command needs is a fault. A command that writes no file runs
once, on the first page that has it. A comment before a block changes what the block is:

    <!-- printed by: COMMAND -->  output of COMMAND: it is run, and compared but for times and sizes; a line of
                                  three dots stands for any lines
    <!-- fails with: STATUS -->   commands that end with this exit status
    <!-- no commands -->          an indented list or drawing

Exit status: 0 all ran as they should, 1 some did not, 2 a wrong flag.
"""
import argparse
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = "recipes/demo/lighthouse-logbook.txt"
# What a fresh checkout has, without what its user has made there since.
CHECKOUT = ("apps", "kernels", "lib", "records", "scripts", "tests", "CMakeLists.txt", "CMakePresets.json", "README.md")
PAGES = ("README.md", "docs/**/*.md", "recipes/README.md")
NOTES = "docs/notes/"  # history: commands of older versions


# What a rule does with the commands that its pattern finds. All rules that find a command are applied, in turn.
@dataclass
class Skip:
    """Not run."""
    why: str


@dataclass
class Needs:
    """Not run unless the program, or the module of Python, is here."""
    what: str

    def here(self):
        return shutil.which(self.what) or importlib.util.find_spec(self.what)


@dataclass
class Add:
    """Run with more at its end."""
    text: str
    why: str
    whole: bool = False  # also in a --whole run


@dataclass
class Replace:
    """Run with another text in the place of one."""
    old: str
    new: str
    why: str
    whole: bool = False


@dataclass
class Status:
    """Other exit statuses are right, too."""
    also: tuple
    why: str


@dataclass
class Ranks:
    """A second process runs the same with run.rank=1, as the text asks for."""
    why: str = "rank 1 in the background"


@dataclass
class WholeDocument:
    """Reads all of the demo document, of which the others get the beginning."""


DRY = "--dry-run"
NO_GPU = "-s run.plan_for=h200 --dry-run"
# As little training as makes an adapter.
STEP = "-s train.steps=1 -s train.epochs=null -s train.batch=2"
ONE_STEP = f"{STEP} -s data.val_size=null"
RULES = [
    (r"^git clone ", Skip("fetches the repository that this is a checkout of")),
    (r"quickstart\.sh", Skip("installs packages and builds; what it prints is tried below it")),
    (r"^(\./)?scripts/(test|install-deps)\.sh", Skip("installs packages, builds and runs all tests: CI does")),
    (r"get-smollm2\.sh", Skip("downloads a model, which the test `golden` reads")),
    (r"^cmake --preset ", Skip("builds: CI does")),
    (r"^cmake --install ", Skip("the test `install` does")),
    (r"^sha256sum |^tar -xf tandem-|^sudo apt |^scripts/release", Skip("the test `release` does")),
    (r"^scripts/gpu-bundle|gpu-check ", Skip("needs a build with CUDA, and a GPU")),
    (r"peers\.sh ", Skip("installs other programs")),
    (r"^srun |^#!/bin/bash|^sbatch ", Skip("needs Slurm")),
    (r"^parallel ", Needs("parallel")),
    (r" --chat --system ", Skip("reads turns from a terminal: the tests of `cli/chat` do")),
    (r"-r RECIPE ", Replace("RECIPE", "pig/tiny-16m", "a recipe that is here", whole=True)),
    (r"scripts/plot\.py ", Needs("matplotlib")),
    (r"^pig-generate -m tiny-16m -r pig/hybrid-tiny-16m ", WholeDocument()),
    (r"^pig-generate -m tiny-16m -r pig/hybrid-tiny-16m ",
     Add("--no-progress", "slow machines would print more", whole=True)),
    (r"--device cuda(?!.*--dry-run)", Add(NO_GPU, "needs a GPU", whole=True)),
    (r"model\.offload=auto(?!.*--dry-run)", Add(f"--device cuda {NO_GPU}", "needs a GPU", whole=True)),
    (r"^(?!.*--dry-run).*run\.rank=0", Ranks()),
    (r"run\.rendezvous=127\.0\.0\.1:29500", Replace("29500", "PORT", "a port that is free", whole=True)),
    (r"-m synthetic:llama-3.1-8b --dry-run|magicdec/llama3-8b .*random_kv", Status((5,), "5 where it does not fit")),
    # Benchmarks and checks that take minutes.
    (r"^magicdec-bench (?!.*(--predict|--dry-run))", Add(DRY, "measures for minutes")),
    (r"^sequoia-bench (?!.*--dry-run)", Add(DRY, "measures for minutes")),
    (r"^spec-check (?!.*--dry-run)", Add(DRY, "writes 12,000 texts")),
    (r"^magicdec-acceptance ", Add(DRY, "measures for minutes")),
    (r"^pig-bench (?!.*(--dry-run|--from))", Add(DRY, "measures for minutes")),
    (r"^pig-eval (?!.*(--dry-run|recipes/demo/(facts|choices)|\[channels\]))", Add(DRY, "measures for minutes")),
    (r"kernel-bench (?!.*--dry-run)", Add(DRY, "measures for minutes")),
    (r"^triforce-generate .*spec\.draft=auto", Add(DRY, "times rounds for minutes, once on a machine")),
    (r"^sequoia-tree-search --measure", Add(DRY, "times rounds for minutes")),
    (r"^(build/bin/)?s2ft-train (?!.*(--dry-run|--show-samples|val_size))", Add(ONE_STEP, "trains for minutes")),
    (r"^s2ft-train .*val_size=200", Replace("=200", "=20", "200 samples take seconds")),
    (r"^s2ft-train .*val_size=", Add(STEP, "trains for minutes")),
    (r"^s2ft-train .*my-model/s2ft ", Add("-s train.optimizer.lr=1e-3", "tries learning rates")),
    (r"station-log\.py make ", Add("--train 300 --heldout 10", "thousands of records take minutes")),
    (r"--prompts \S+ -n 80", Replace("-n 80", "-n 2", "answers of 80 tokens take a minute")),
    (r"^scripts/many-tasks\.py ", Skip("trains for minutes")),
    (r"Qwen3-8B .*chat\.thinking", Add("-s chat.template=recipes/demo/chat.jinja", "a template with reasoning", whole=True)),
    (r"--show-samples 100 ", Replace("100", "2", "a stand-in of few records", whole=True)),
]

# What commands read that is not in the checkout, run in the scratch folder: of every page, and by page.
# tiny-16m stands for models that have to be downloaded.
PAGE_PREPARE = [
    """mkdir -p ~/models && for name in Llama-3.1-8B-Instruct Qwen3-8B; do
         ln -s "$PWD/recipes/models/tiny-16m" ~/models/$name
       done""",
    "ln -s recipes/models/tiny-16m MODEL && ln -s recipes/models/tiny-2m SMALL_MODEL",
    f"ln -s {DOCUMENT} FILE",
    "mkdir build-cuda-release && ln -s ../build/bin build-cuda-release/bin",
]
STATION_LOG = "python3 scripts/station-log.py make station-log --train 300 --heldout 10"
TRAIN = f"s2ft-train -r s2ft/tiny-16m --data station-log/train.jsonl {ONE_STEP}"
PROMPTS = """printf '{"prompt": "%s"}\\n' 'Once upon a time' 'The lamp' 'The sea' > prompts.jsonl"""
# A question of each set.
SETS = """for set in boolq:true piqa:solution1 social_i_qa:answer1 hellaswag:ending1 winogrande:option1 \\
               ARC-Easy:answer1 ARC-Challenge:answer1 openbookqa:answer1 MultiArith:3 gsm8k:3 AddSub:3 AQuA:A \\
               SingleEq:3 SVAMP:3 mawps:3; do
             folder=LLM-Adapters/dataset/${set%:*}
             mkdir -p $folder
             echo '[{"instruction": "How many?", "answer": "'${set#*:}'"}]' > $folder/test.json
           done"""
PREPARE = {
    "docs/guide/evaluation.md": [SETS, STATION_LOG, f"{TRAIN} -o run"],
    "docs/guide/speculation.md": [PROMPTS],
    "docs/gpu.md": ["cp recipes/sequoia/tree-8.json tree.json"],
    "docs/parallel.md": [STATION_LOG],
    "recipes/README.md": [
        SETS,
        STATION_LOG,
        "cp station-log/train.jsonl train.jsonl && rm -r station-log",
        "head -200 train.jsonl > math_10k.json && cp math_10k.json commonsense_170k.json",
    ],
    "pig-eval": [SETS],
    "s2ft-train": [
        STATION_LOG,
        "cp station-log/train.jsonl train.jsonl",
        "ln -s recipes/models/tiny-16m Llama-3.1-8B",
        """echo '[{"instruction": "2 + 2?", "output": "4"}, {"instruction": "2 + 3?", "output": "5"}]' \\
             > math_10k.json""",
    ],
    "s2ft-adapter": [STATION_LOG, f"{TRAIN} -o run", f"{TRAIN} -o other"],
    "sequoia-generate": ["cp recipes/sequoia/tree-8.json tree.json"],
    "sequoia-tree-search": [
        PROMPTS,
        "sequoia-tree-search -r sequoia/trees-reference -s tree.sizes=[32] -o recorded.json",
        "sequoia-acceptance -r sequoia/acceptance-tiny-16m --prompts prompts.jsonl -n 40"
        " -s accept.tree=recorded.json -s accept.record=rounds.bin -o accept.json",
    ],
}
BEGINNING = 4000  # characters of the demo document in a run that is not --whole


@dataclass
class Command:
    page: str
    line: int  # 0: in a help text
    text: str
    prints: str = ""  # what the page shows of it
    status: tuple = (0,)
    skip: str = ""
    ranks: bool = False
    whole_document: bool = False
    notes: list = field(default_factory=list)

    def __post_init__(self):
        self.printed = self.text
        self.text = re.sub(r"\s\s+# .*$", "", self.text)  # so that more may follow

    def where(self):
        return f"{self.page}:{self.line}" if self.line else f"{self.page} --help"


def joined(lines):
    """(number, command) of each command: lines that end in a backslash, a pipe or && go on in the next."""
    text, begin = "", 0
    for number, line in lines:
        begin = begin or number
        text += ("\n" if text else "") + line.strip()
        if text and not re.search(r"(\\|\||&&)$", text):
            yield begin, text
            text, begin = "", 0
    if text:
        yield begin, text


def commands_of_lines(page, lines, status=(0,)):
    for number, text in joined((n, line) for n, line in lines if line.strip() and not line.lstrip().startswith("#")):
        yield Command(page, number, text, status=status)


def commands_of_block(name, block, comment, shell):
    """The commands of a block of (number, line), or the one that prints it."""
    if match := re.fullmatch(r"printed by: (.*)", comment):
        yield Command(name, block[0][0], match[1], prints="\n".join(line for _, line in block).rstrip() + "\n")
    elif not shell or comment == "no commands":
        pass
    elif block[0][1].startswith("#!"):
        yield Command(name, block[0][0], "\n".join(line for _, line in block).strip())
    else:
        match = re.fullmatch(r"fails with: (\d+)", comment)
        yield from commands_of_lines(name, block, (int(match[1]),) if match else (0,))


def commands_of_page(name, text):
    """The commands of a page's fences and indented blocks, and those that print what such a block shows."""
    lines = list(enumerate(text.splitlines(), 1))
    at, comment, before = 0, "", ""
    while at < len(lines):
        number, line = lines[at]
        if line.startswith("```"):
            end = next((i for i in range(at + 1, len(lines)) if lines[i][1].startswith("```")), None)
            if end is None:
                raise SystemExit(f"{name}:{number}: expected a fence with an end, found none")
            if end > at + 1:
                shell = line[3:] in ("sh", "bash", "console")
                yield from commands_of_block(name, lines[at + 1:end], comment, shell)
            at, comment, before = end + 1, "", ""
            continue
        if match := re.fullmatch(r"<!-- (.*) -->", line):
            comment = match[1]
        elif line.startswith("    ") and not before.strip():
            block = []
            while at < len(lines) and (lines[at][1].startswith("    ") or not lines[at][1].strip()):
                block.append((lines[at][0], lines[at][1][4:]))
                at += 1
            yield from commands_of_block(name, block, comment, True)
            comment = ""
            continue
        elif line.strip():
            comment = ""
        before = line
        at += 1


def commands_of_help(tool, text):
    match = re.search(r"^examples:\n((?:  .*\n)+)", text, re.M)
    if not match:
        raise SystemExit(f"{tool} --help: has no examples")
    yield from commands_of_lines(tool, [(0, line) for line in match[1].splitlines()])


def in_short(command):
    """The command on one line."""
    return re.sub(r"\s*\\?\n\s*", " ", command.printed)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def apply_rules(command, whole, used):
    for index, (pattern, rule) in enumerate(RULES):
        if not re.search(pattern, in_short(command)):
            continue
        used.add(index)
        if isinstance(rule, Skip):
            command.skip = rule.why
        elif isinstance(rule, Needs):
            if not rule.here():
                command.skip = f"needs {rule.what}"
        elif isinstance(rule, Status):
            command.status += rule.also
            command.notes.append(rule.why)
        elif isinstance(rule, Ranks):
            command.ranks = True
            command.notes.append(rule.why)
        elif isinstance(rule, WholeDocument):
            command.whole_document = True
        elif not whole or rule.whole:
            if isinstance(rule, Add):
                if rule.text in command.text:  # by another rule
                    continue
                command.text += f" {rule.text}"
                command.notes.append(f"with {rule.text}: {rule.why}")
            else:
                new = rule.new.replace("PORT", free_port() if "PORT" in rule.new else "")
                command.text = command.text.replace(rule.old, new, 1)
                command.notes.append(f"with {new} for {rule.old}: {rule.why}")


class Scratch:
    """A folder that looks like a checkout, with programs in build/bin."""

    IN_PATH = 'export PATH="$PWD/build/bin:$PATH"\n'

    def __init__(self, folder, programs, whole):
        self.folder = folder
        self.whole = whole
        for name in CHECKOUT:
            (folder / name).symlink_to(ROOT / name)
        (folder / "build").mkdir()
        (folder / "build/bin").symlink_to(programs)
        (folder / "recipes/demo").mkdir(parents=True)
        for entry in (*(ROOT / "recipes").iterdir(), *(ROOT / "recipes/demo").iterdir()):
            copy = folder / entry.relative_to(ROOT)
            if not copy.exists():
                copy.symlink_to(entry)
        (folder / DOCUMENT).unlink()
        self.exports = ""
        self.env = {name: value for name, value in os.environ.items()
                    if not name.startswith("TANDEM_") and name != "XDG_CACHE_HOME"}
        self.env |= {"HOME": str(folder.parent / f"home-{folder.name}"),
                     "TANDEM_CACHE_DIR": str(folder.parent / "cache"), "CUDA_VISIBLE_DEVICES": ""}
        Path(self.env["HOME"]).mkdir()

    def prepare(self, text, limit):
        """What a command of PREPARE says, if it fails."""
        status, out, err = self.run(f"{self.IN_PATH}{text}", limit)
        return f"expected exit status 0, found {status}\n{out}{err}" if status != 0 else ""

    def run(self, text, limit, whole_document=False):
        """(status, standard output, standard error); status None where it took longer."""
        document = (ROOT / DOCUMENT).read_text(encoding="utf-8")
        cut = document if self.whole or whole_document else document[:BEGINNING]
        (self.folder / DOCUMENT).write_text(cut, encoding="utf-8")
        process = subprocess.Popen(
            ["bash", "-c", f"{self.exports}{text}"], cwd=self.folder, env=self.env, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        try:
            out, err = process.communicate(timeout=limit)
            return process.returncode, out, err
        except subprocess.TimeoutExpired:
            return None, "", ""
        finally:  # what it started, too
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def without_measures(text):
    """What a tool prints, without what differs between machines and runs."""
    text = re.sub(r"\d+ threads?, \w+", "N threads, ISA", text)
    text = re.sub(r"\d[\d.]*(?= (?:s|ms|tok/s|MiB|GB/s)\b)", "N", text)
    return text.rstrip()


def shows(shown, found):
    """Whether a page shows what was found; a line of three dots stands for any lines."""
    pattern = "\n".join(re.escape(part) for part in without_measures(shown).splitlines())
    pattern = re.sub(r"(?m)^\\\.\\\.\\\.\n?", r"(?:.*\n)*?", pattern + "\n")
    return re.fullmatch(pattern, without_measures(found) + "\n") is not None


def fault_of(command, scratch, limit):
    """Runs a command; what is wrong with it, or nothing."""
    text = command.text
    if command.ranks:
        other = text.replace("run.rank=0", "run.rank=1")
        text = f"{{ {other}; }} > rank1.log 2>&1 & {text} && wait $!"
    status, out, err = scratch.run(text, limit, command.whole_document)
    if status is None:
        return f"took longer than {limit} s"
    if status not in command.status:
        wanted = " or ".join(map(str, command.status))
        return f"expected exit status {wanted}, found {status}\n{(out[-500:] + err[-1500:]).strip()}"
    if command.text.startswith("export "):
        scratch.exports += command.text + "\n"
    if command.prints and not shows(command.prints, out + err):
        return f"expected\n{without_measures(command.prints)}\nfound\n{without_measures(out + err)}"
    return ""


def tools():
    return sorted(path.stem for path in (ROOT / "apps").glob("*-*.cpp"))


def pages(args):
    """(page, its commands) of the pages, or of the one that is named, and of every tool's help text."""
    paths = [args.page] if args.page else sorted({path for pattern in PAGES for path in ROOT.glob(pattern)},
                                                 key=lambda path: (path != ROOT / "README.md", path))
    for path in paths:
        inside = path.absolute().is_relative_to(ROOT)
        name = str(path.absolute().relative_to(ROOT)) if inside else path.name
        if name.startswith(NOTES):
            continue
        text = path.read_text(encoding="utf-8")
        missing = [tool for tool in tools() if f"| `{tool}` |" not in text]
        if name == "README.md" and missing:
            raise SystemExit(f"{name}: its table does not have {', '.join(missing)}")
        yield name, list(commands_of_page(name, text))
    for tool in tools() if not args.page else []:
        text = subprocess.run([args.bin / tool, "--help"], capture_output=True, text=True, check=True).stdout
        yield tool, list(commands_of_help(tool, text))


def writes(text):
    """Whether a command leaves something that a later one may need."""
    return re.search(r" -o |>|\bmake\b|^export |^cd |\.path=\S+\.json|output\.", text)


def try_all(args):
    began, used, done = time.monotonic(), set(), {}
    n = {"ok": 0, "changed": 0, "skipped": 0, "listed": 0, "repeated": 0, "FAILED": 0}

    def report(how, command, seconds, what):
        taken = f"{seconds:5.1f} s" if seconds is not None else "       "
        text = in_short(command)
        text = text if len(text) <= 100 else text[:97] + "..."
        print(f"{how:7} {taken}  {command.where()}  {text}", flush=True)
        for line in what.splitlines():
            print(f"{'':17}{line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="try-readme-") as temporary:
        for page, commands in pages(args):
            for command in commands:
                apply_rules(command, args.whole, used)
            if args.only:
                commands = [c for c in commands if c.printed.startswith("export ") or re.search(args.only, c.printed)]
            scratch = None
            for command in commands:
                if command.skip:
                    n["skipped"] += 1
                    report("skipped", command, None, command.skip)
                    continue
                if args.list:
                    n["listed"] += 1
                    report("listed", command, None, "\n".join(command.notes))
                    continue
                before = done.setdefault((command.printed, command.prints), command)
                if before is not command and not writes(command.printed):
                    n["repeated"] += 1
                    continue
                if scratch is None:
                    folder = Path(temporary) / page.replace("/", "-")
                    folder.mkdir()
                    scratch = Scratch(folder, args.bin, args.whole)
                    for text in (PAGE_PREPARE if page.endswith(".md") else []) + PREPARE.get(page, []):
                        if fault := scratch.prepare(text, args.limit):
                            n["FAILED"] += 1
                            report("FAILED", Command(page, 0, text), None, f"what the examples need: {fault}")
                    if page != "README.md":  # which says itself how the tools are found
                        scratch.exports = scratch.IN_PATH
                started = time.monotonic()
                fault = fault_of(command, scratch, args.limit)
                seconds = time.monotonic() - started
                notes = "\n".join(command.notes)
                if fault:
                    n["FAILED"] += 1
                    report("FAILED", command, seconds, f"{notes}\n{fault}".strip())
                else:
                    n["ok"] += 1
                    n["changed"] += bool(command.notes)
                    report("ok", command, seconds, notes)
    if not args.only and not args.page:
        for index in sorted(set(range(len(RULES))) - used):
            n["FAILED"] += 1
            print(f"FAILED          no command needs the rule {RULES[index][0]!r}")
    tried = f"{n['ok']} ok, {n['changed']} of them with a change" if not args.list else f"{n['listed']} listed"
    print(f"{tried}; {n['repeated']} repeated; {n['skipped']} skipped; {n['FAILED']} failed; "
          f"{time.monotonic() - began:.0f} s")
    return 1 if n["FAILED"] else 0


def self_test(args):
    """Puts faults into a copy of README.md: each must be found, and no other."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    end = "## Documentation"
    faults = [  # old, new, which command, what is reported
        ("", "", "^sequoia-generate .*-n 60", ""),
        ('tick tock" -n 60', 'tick tock" --tokens 60', "^sequoia-generate .*--tokens", "expected exit status 0, found 2"),
        ("generate -m tiny-16m --f", "generate -m tiny-61m --f", "^sequoia-generate .*tiny-61m", "expected exit status 0, found 4"),
        (end, f"    lib/cli  flags\n\n{end}", "^lib/cli", "expected exit status 0, found 126"),
        (end, f"<!-- no commands -->\n\n    lib/cli  flags\n\n{end}", "^lib/cli", ""),
        (end, f"<!-- fails with: 3 -->\n\n```sh\nfalse\n```\n\n{end}", "^false", "expected exit status 3, found 1"),
        (end, f"<!-- printed by: echo one -->\n\n    two\n\n{end}", "^echo", "expected\ntwo\nfound\none"),
        (end, f"<!-- printed by: seq 5 -->\n\n```text\n1\n...\n5\n```\n\n{end}", "^seq", ""),
        (end, f"<!-- printed by: seq 5 -->\n\n```text\n1\n...\n6\n```\n\n{end}", "^seq", "expected\n1\n...\n6\nfound"),
        (end, f"```sh\nsleep 60\n```\n\n{end}", "^sleep", "took longer than 2 s"),
        ("| `spec-check` |", "| `spec-checks` |", "^export", "does not have spec-check"),
    ]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="try-readme-") as temporary:
        page = Path(temporary) / "README.md"
        for old, new, only, said in faults:
            if old not in text:
                raise SystemExit(f"self-test: README.md no longer has {old!r}")
            page.write_text(text.replace(old, new), encoding="utf-8")
            limit = "2" if "sleep" in only else str(args.limit)
            run = subprocess.run([sys.executable, __file__, "--bin", args.bin, "--limit", limit, "--only", only, page],
                                 capture_output=True, text=True)
            output = run.stdout + run.stderr
            plain = re.sub(r"^ {17}", "", output, flags=re.M)
            right = said in plain and run.returncode == (1 if said else 0)
            print(f"{'ok' if right else 'FAILED':7} {said.splitlines()[-1] if said else 'no fault'}")
            if not right:
                wrong += 1
                print(output)
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", type=Path, help="only this page")
    parser.add_argument("--bin", type=Path, default=ROOT / "build/bin", metavar="FOLDER", help="the programs")
    parser.add_argument("--whole", action="store_true", help="run with the full documents and lengths (takes hours)")
    parser.add_argument("--limit", type=int, metavar="SECONDS", help="time limit of a command, default 100, or 3600 with --whole")
    parser.add_argument("--only", metavar="REGEX", help="the commands that match")
    parser.add_argument("--list", action="store_true", help="run nothing")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    args.bin = args.bin.absolute()
    args.limit = args.limit or (3600 if args.whole else 100)
    missing = [tool for tool in tools() if not (args.bin / tool).exists()]
    if missing:
        parser.error(f"{args.bin} has no {', '.join(missing)}: build them, or name another folder by --bin")
    return self_test(args) if args.self_test else try_all(args)


if __name__ == "__main__":
    sys.exit(main())
