#!/usr/bin/env python3
"""What methods learn and what they make the model forget: tiny-16m, two tasks, several seeds, on the CPU.

    train_study.py sweep --gsm8k FOLDER --prose FILE --work FOLDER -o RECORDS   a learning rate for each method
    train_study.py run   --gsm8k FOLDER --prose FILE --work FOLDER -o RECORDS   the runs, at the best of these
    train_study.py table RECORDS                                                markdown of both

Methods: full, LoRA of rank 16 on q, k, v, up and down, and S2FT with as many values: a quarter of
the heads and 3/32 of the channels of each layer, at random (s2ft-r) or those of the smallest
activations (s2ft-a-small). Tasks: lines of scripts/station-log.py, and GSM8K (FOLDER holds its
train.jsonl and test.jsonl). Every method takes the same steps of the same batches. A sweep draws 200
validation records from the training file; a run is judged on the test file alone, once, at its end:
loss, exact match of the first 200 records, and perplexity of the five longest documents of --prose
(divided by lines of U+001E), the first 80,000 characters of each. One JSON line a run is appended to
RECORDS; what is there already is not run again. Of a run's folder in --work its metrics.jsonl stays,
for scripts/plot.py loss.
"""
import argparse
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "recipes/models/tiny-16m"
N_JUDGED = 200
SWEEP_SEED = 100  # none of the runs'
SWEEP_STEPS = 100
RATES = [3e-4, 1e-3, 3e-3, 1e-2]
# 12 heads of 64 columns and 96 channels a layer are 1,536 columns of 384: what LoRA of rank 16 trains.
SLICES = ["train.method=s2ft", "train.select.ratios={o: 0.25, d: 0.09375}"]
METHODS = {
    "full": ["train.method=full"],
    "lora": ["train.method=lora", "train.lora.rank=16", "train.lora.alpha=32"],
    "s2ft-r": SLICES + ["train.select.strategy=random"],
    "s2ft-a-small": SLICES + ["train.select.strategy=activation", "train.select.side=small"],
}


class StationLog:
    name, steps = "station-log", 200
    settings = ["train.batch=16", "train.max_tokens=256"]
    generate = ["-n", "128", "--stop", "\n"]

    def __init__(self, args):
        folder = args.work / "station-log"
        run([sys.executable, ROOT / "scripts/station-log.py", "make", folder, "--heldout", N_JUDGED])
        self.train, self.test = folder / "train.jsonl", folder / "heldout.jsonl"
        self.prompts = folder / "heldout-prompts.jsonl"

    def right(self, answers):
        said = run([sys.executable, ROOT / "scripts/station-log.py", "score", self.test, answers])
        return int(re.search(r"exact match (\d+) of", said)[1])


class Gsm8k:
    name, steps = "gsm8k", 300
    settings = ["train.batch=8", "train.max_tokens=512"]
    generate = ["-n", "256"]
    ANSWER = re.compile(r"####\s*(-?[\d,.]+)")

    def __init__(self, args):
        self.train, self.test = args.gsm8k / "train.jsonl", args.gsm8k / "test.jsonl"
        self.prompts = args.work / "gsm8k-prompts.jsonl"
        write_lines(self.prompts, [{"prompt": row["question"] + "\n"} for row in lines_of(self.test)[:N_JUDGED]])

    def number(self, text):
        found = self.ANSWER.search(text)
        return found and found[1].replace(",", "").rstrip(".")

    def right(self, answers):
        texts = {}
        for event in lines_of(answers):
            if event.get("event") in ("token", "finish"):
                texts[event["seq"]] = texts.get(event["seq"], "") + event.get("text", "")
        wanted = [self.number(row["answer"]) for row in lines_of(self.test)[:N_JUDGED]]
        return sum(self.number(texts.get(i, "")) == number for i, number in enumerate(wanted))


TASKS = {task.name: task for task in (StationLog, Gsm8k)}


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout + done.stderr


def prose_of(args):
    documents = re.split(r"\n?\x1e\n?", args.prose.read_text(encoding="utf-8"))
    longest = sorted(documents, key=len, reverse=True)[:5]
    path = args.work / "prose.txt"
    path.write_text("\n".join(text[:80000] for text in longest), encoding="utf-8")
    return path


def train(args, task, folder, seed, settings):
    """Trains in `folder`, with one validation, at the end; returns figures of the run."""
    settings = ["data.template=plain", "train.epochs=null", "train.micro_tokens=2Ki", *task.settings, *settings]
    command = [args.bin / "s2ft-train", "-m", MODEL, "--data", task.train, "-o", folder, "--overwrite", "--device", "cpu",
               "-t", args.threads, "--seed", seed, "--no-progress"]
    start = time.time()
    said = run(command + [part for setting in settings for part in ("-s", setting)])
    seconds = time.time() - start
    rows = lines_of(folder / "metrics.jsonl")
    losses = [row["loss"] for row in rows if "loss" in row]
    return {"settings": [s for s in settings if not s.startswith("data.val_path")],
            "trained_values": int(re.search(r"^train +\S+ +(\d+) of", said, re.M)[1]),
            "steps": len(losses), "tokens": sum(row.get("tokens", 0) for row in rows), "seconds": round(seconds, 1),
            "losses_of_10_steps": [round(statistics.fmean(losses[i:i + 10]), 5) for i in range(0, len(losses), 10)],
            "validation_loss": next(row["val_loss"] for row in rows if "val_loss" in row)}


def judged(args, task, model, prose):
    """Exact match on the task's test file, and perplexity of the prose."""
    answers = args.work / f"{task.name}-answers.jsonl"
    common = ["-m", model, "--device", "cpu", "-t", args.threads, "--no-progress", "-q", "--format", "jsonl"]
    answers.write_text(run([args.bin / "pig-generate", *common, "--prompts", task.prompts, *task.generate]))
    said = json.loads(run([args.bin / "pig-eval", *common, "--task", "perplexity", "--data", prose,
                           "-s", "run.context=2048"]).splitlines()[-1])
    return {"exact": task.right(answers), "of": N_JUDGED, "perplexity": said["quality"]["ppl"]["mean"],
            "prose_tokens": said["quality"]["n_tokens"], "commit": said["git_commit"], "isa": said["cpu_isa"],
            "cpu": args.cpu or said["host"]["cpu_model"], "threads": args.threads}


class Records:
    KEY = ("kind", "task", "method", "seed", "lr")

    def __init__(self, path):
        self.path, self.rows = path, lines_of(path) if path.exists() else []

    def has(self, key):
        return any(all(row.get(name) == value for name, value in zip(self.KEY, key)) for row in self.rows)

    def add(self, key, figures):
        self.rows.append({**dict(zip(self.KEY, key)), **figures})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")
        print(" ".join(map(str, key)), f"loss {figures['validation_loss']:.4f}", flush=True)

    def best_rate(self, task, method):
        swept = [row for row in self.rows if (row["kind"], row["task"], row["method"]) == ("sweep", task, method)]
        if not swept:
            sys.exit(f"{self.path}: expected a sweep of {method} on {task}, found none: run train_study.py sweep first")
        return min(swept, key=lambda row: row["validation_loss"])["lr"]


def sweep(args, records):
    for task in tasks_of(args):
        for method in args.methods:
            for rate in args.rates:
                key = ("sweep", task.name, method, SWEEP_SEED, rate)
                if records.has(key):
                    continue
                folder = args.work / "sweep" / task.name / f"{method}-{rate:g}"
                n = SWEEP_STEPS
                figures = train(args, task, folder, SWEEP_SEED,
                                [*METHODS[method], f"train.optimizer.lr={rate:g}", f"train.steps={n}", "data.val_size=200",
                                 f"eval.every={n}", f"train.save_every={n}"])
                records.add(key, figures)
                keep_metrics(folder)


def run_all(args, records):
    prose = prose_of(args)
    tasks = tasks_of(args)
    for task in tasks:
        key = ("base", task.name, "none", 0, 0)
        if not records.has(key):
            folder = args.work / task.name / "base"
            figures = train(args, task, folder, 0, ["train.optimizer.lr=0", "train.steps=1", f"data.val_path={task.test}"])
            records.add(key, {**figures, **judged(args, task, MODEL, prose)})
            keep_metrics(folder)
    for seed in args.seeds:  # so that a study that is cut short has seeds of every method
        for task in tasks:
            for method in args.methods:
                rate = records.best_rate(task.name, method)
                key = ("run", task.name, method, seed, rate)
                if records.has(key):
                    continue
                folder, n = args.work / task.name / f"{method}-{seed}", task.steps
                figures = train(args, task, folder, seed,
                                [*METHODS[method], f"train.optimizer.lr={rate:g}", f"train.steps={n}",
                                 f"data.val_path={task.test}", f"eval.every={n}", f"train.save_every={n}"])
                records.add(key, {**figures, **judged(args, task, folder / "model", prose)})
                keep_metrics(folder)


def tasks_of(args):
    return [TASKS[name](args) for name in args.tasks]


def keep_metrics(folder):
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "metrics.jsonl":
            path.unlink()


def spread(values, form):
    """Mean and sample deviation; of fewer than three, the values."""
    if len(values) < 3:
        return ", ".join(format(value, form) for value in values)
    return f"{format(statistics.fmean(values), form)} ± {format(statistics.stdev(values), form)}"


def table(args, records):
    for task in dict.fromkeys(row["task"] for row in records.rows):
        of_task = [row for row in records.rows if row["task"] == task]
        swept = [row for row in of_task if row["kind"] == "sweep"]
        rates = sorted({row["lr"] for row in swept})
        print(f"## {task}\n")
        print("| | values trained | rate | steps | seeds | test loss | exact match, % | perplexity of prose |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for method in ["none", *METHODS]:
            rows = [row for row in of_task if row["kind"] in ("base", "run") and row["method"] == method]
            if not rows:
                continue
            losses = spread([row["validation_loss"] for row in rows], ".4f")
            exact = spread([100 * row["exact"] / row["of"] for row in rows], ".1f")
            forgetting = spread([row["perplexity"] for row in rows], ".1f")
            what = ("tiny-16m as it is | | | | " if method == "none" else
                    f"{method} | {rows[0]['trained_values']:,} | {rows[0]['lr']:g} | {rows[0]['steps']} | {len(rows)}")
            print(f"| {what} | {losses} | {exact} | {forgetting} |")
        print("\nSweep of the learning rate: loss of 200 records of the training file after "
              f"{swept[0]['steps'] if swept else 0} steps.\n")
        print("| | " + " | ".join(f"{rate:g}" for rate in rates) + " |")
        print("|---|" + "---:|" * len(rates))
        for method in METHODS:
            found = {row["lr"]: row["validation_loss"] for row in swept if row["method"] == method}
            print(f"| {method} | " + " | ".join(f"{found[r]:.4f}" if r in found else "" for r in rates) + " |")
        print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, body in (("sweep", sweep), ("run", run_all)):
        command = commands.add_parser(name)
        command.add_argument("--gsm8k", type=pathlib.Path, required=True)
        command.add_argument("--prose", type=pathlib.Path, required=True)
        command.add_argument("--work", type=pathlib.Path, required=True)
        command.add_argument("-o", dest="records", type=pathlib.Path, required=True)
        command.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
        command.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
        command.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
        command.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
        command.add_argument("--rates", nargs="+", type=float, default=RATES)
        command.add_argument("--threads", type=int, default=1)
        command.add_argument("--cpu", help="the processor, where the machine hides its name")
        command.set_defaults(body=body)
    command = commands.add_parser("table")
    command.add_argument("records", type=pathlib.Path)
    command.set_defaults(body=table)
    args = parser.parse_args()
    if hasattr(args, "work"):
        args.work.mkdir(parents=True, exist_ok=True)
    args.body(args, Records(args.records))


if __name__ == "__main__":
    main()
