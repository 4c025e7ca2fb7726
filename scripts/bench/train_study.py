#!/usr/bin/env python3
"""What methods learn and what they make a model forget: tiny-16m by default, three tasks, several seeds.

    train_study.py sweep --data FOLDER --work FOLDER -o RECORDS   a learning rate for each method
    train_study.py run   --data FOLDER --work FOLDER -o RECORDS   the runs, at the best of these
    train_study.py table RECORDS                                  markdown of both

Methods: full, LoRA of rank 16 on q, k, v, up and down, and S2FT with the same number of values. S2FT has half of them
in heads and half in FFN channels, at random (s2ft-r) or with the smallest activations (s2ft-a-small). PEFT's LoRA
(peft) takes LoRA's rate and needs torch, transformers and peft. Tasks: lines of scripts/station-log.py, GSM8K (DATA/gsm8k/train.jsonl
and test.jsonl) and commonsense (DATA/llm_adapters/commonsense_18k_rebuilt.json and the test sets). Every method takes
the same number of steps of the same size. A sweep draws 200 validation records from the training file. A run is judged once,
at its end. Its loss is that of the test file; commonsense keeps 200 records out. Exact match is of the first 200 records,
accuracy of --cases questions of each of seven sets. Perplexity is of the five longest documents of
DATA/heldout_documents.txt (divided by lines of U+001E), the first 80,000 characters of each. One JSON line a run is appended to RECORDS; what is
there already is not run again. A run leaves its metrics.jsonl in --work, for scripts/plot.py loss.
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "recipes/models/tiny-16m"
N_JUDGED = 200
SWEEP_SEED = 100  # none of the runs'
SWEEP_STEPS = 100
RATES = [3e-4, 1e-3, 3e-3, 1e-2]
RANK = 16
METHODS = ["full", "lora", "s2ft-r", "s2ft-a-small", "peft"]
SETS = ["boolq", "piqa", "siqa", "winogrande", "arc_e", "arc_c", "obqa"]


def settings_of(method, model):
    """Settings of s2ft-train. S2FT trains rows as long as the model is wide, with as many values as LoRA's."""
    c = json.loads((model / "config.json").read_text())
    width, ffn, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    head = c.get("head_dim") or width // heads
    q, kv = heads * head, c["num_key_value_heads"] * head
    rows = RANK * (width + q + 2 * (width + kv) + 2 * (width + ffn)) / width
    slices = ["train.method=s2ft", f"train.select.ratios={{o: {rows / 2 / q:.6f}, d: {rows / 2 / ffn:.6f}}}"]
    return {"full": ["train.method=full"],
            "lora": ["train.method=lora", f"train.lora.rank={RANK}", f"train.lora.alpha={2 * RANK}"],
            "s2ft-r": slices + ["train.select.strategy=random"],
            "s2ft-a-small": slices + ["train.select.strategy=activation", "train.select.side=small"]}[method]


class StationLog:
    name, steps = "station-log", 200
    batch, length, template = 16, 256, "plain"
    generate = ["-n", "128", "--stop", "\n"]

    def __init__(self, args):
        folder = args.work / "station-log"
        run([sys.executable, ROOT / "scripts/station-log.py", "make", folder, "--heldout", N_JUDGED])
        self.train, self.test = folder / "train.jsonl", folder / "heldout.jsonl"
        self.prompts = folder / "heldout-prompts.jsonl"

    def judged(self, args, common):
        answers = answers_of(args, self, common)
        said = run([sys.executable, ROOT / "scripts/station-log.py", "score", self.test, answers])
        return {"exact": int(re.search(r"exact match (\d+) of", said)[1]), "of": N_JUDGED}


class Gsm8k:
    name, steps = "gsm8k", 300
    batch, length, template = 8, 512, "plain"
    generate = ["-n", "256"]
    ANSWER = re.compile(r"####\s*(-?[\d,.]+)")

    def __init__(self, args):
        self.train, self.test = args.data / "gsm8k/train.jsonl", args.data / "gsm8k/test.jsonl"
        self.prompts = args.work / "gsm8k-prompts.jsonl"
        write_lines(self.prompts, [{"prompt": row["question"] + "\n"} for row in lines_of(self.test)[:N_JUDGED]])

    def number(self, text):
        found = self.ANSWER.search(text)
        return found and found[1].replace(",", "").rstrip(".")

    def judged(self, args, common):
        answers, texts = answers_of(args, self, common), {}
        for event in lines_of(answers):
            if event.get("event") in ("token", "finish"):
                texts[event["seq"]] = texts.get(event["seq"], "") + event.get("text", "")
        wanted = [self.number(row["answer"]) for row in lines_of(self.test)[:N_JUDGED]]
        right = sum(self.number(texts.get(i, "")) == number for i, number in enumerate(wanted))
        return {"exact": right, "of": N_JUDGED}


class Commonsense:
    name, steps = "commonsense", 300
    batch, length, template = 16, 512, "s2ft-train-compat"

    def __init__(self, args):
        self.sets = args.data / "llm_adapters"
        records = json.loads((self.sets / "commonsense_18k_rebuilt.json").read_text(encoding="utf-8"))
        random.Random(0).shuffle(records)
        self.train, self.test = args.work / "commonsense-train.jsonl", args.work / "commonsense-test.jsonl"
        write_lines(self.train, records[N_JUDGED:])
        write_lines(self.test, records[:N_JUDGED])

    def judged(self, args, common):
        said = run([args.bin / "pig-eval", *common, "--sets", self.sets, "-s", f"eval.tasks=[{','.join(SETS)}]",
                    "-s", f"eval.cases={args.cases}"])
        by_set = {r["quality"]["task"]: r["quality"]["correct"] for r in map(json.loads, json_lines(said))
                  if r["quality"]["task"] in SETS}
        return {"accuracy": statistics.fmean(by_set.values()), "accuracy_of_sets": by_set, "of": args.cases}


TASKS = {task.name: task for task in (StationLog, Gsm8k, Commonsense)}


def json_lines(text):
    return [line for line in text.split("\n") if line.startswith("{")]


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout + done.stderr


def prose_of(args):
    documents = re.split(r"\n?\x1e\n?", (args.data / "heldout_documents.txt").read_text(encoding="utf-8"))
    longest = sorted(documents, key=len, reverse=True)[:5]
    path = args.work / "prose.txt"
    path.write_text("\n".join(text[:80000] for text in longest), encoding="utf-8")
    return path


def train(args, task, folder, seed, settings):
    """Trains in `folder`, with one validation, at the end; returns figures of the run."""
    settings = [f"data.template={task.template}", "train.epochs=null", "train.micro_tokens=2Ki", f"train.batch={task.batch}",
                f"train.max_tokens={task.length}", *settings]
    command = [args.bin / "s2ft-train", "-m", args.model, "--data", task.train, "-o", folder, "--overwrite",
               "--device", args.device, "-t", args.threads, "--seed", seed, "--no-progress"]
    start = time.time()
    said = run(command + [part for setting in settings for part in ("-s", setting)])
    seconds = time.time() - start
    rows = lines_of(folder / "metrics.jsonl")
    steps = [row for row in rows if "loss" in row]
    losses = [row["loss"] for row in steps]
    return {"model": args.model.name, "settings": [s for s in settings if not s.startswith("data.val_path")],
            "trained_values": int(re.search(r"^train +\S+ +(\d+) of", said, re.M)[1]),
            "steps": len(losses), "tokens": sum(row.get("tokens", 0) for row in rows), "seconds": round(seconds, 1),
            "step_ms": round(1e3 * statistics.median(row["seconds"] for row in steps), 2),
            "losses_of_10_steps": [round(statistics.fmean(losses[i:i + 10]), 5) for i in range(0, len(losses), 10)],
            "validation_loss": next(row["val_loss"] for row in rows if "val_loss" in row)}


def ids_of(args, task, data):
    """Samples of a file as token ids, which PEFT's run takes."""
    path = args.work / f"{task.name}-{data.stem}-ids.jsonl"
    if not path.exists():
        path.write_text(run([args.bin / "s2ft-train", "-m", args.model, "--data", data, "-s", f"data.template={task.template}",
                             "-s", f"train.max_tokens={task.length}", "--show-samples", 1000000, "--format", "jsonl", "-q"]))
    return path


def train_peft(args, task, folder, seed, rate, steps):
    start = time.time()
    said = run([sys.executable, pathlib.Path(__file__).with_name("peer_training.py"), "--load", args.model, "--device",
                args.device, "--threads", args.threads, "--method", "lora-f32", "--rank", RANK, "--batch", task.batch, "--tokens",
                task.length, "--steps", steps, "--lr", rate, "--seed", seed, "--data", ids_of(args, task, task.train),
                "--validate", ids_of(args, task, task.test), "--save", folder / "model"])
    line = json.loads(json_lines(said)[-1])
    if "error" in line:
        sys.exit(line["error"])
    return {"model": args.model.name, "trained_values": line["trained"], "steps": steps, "step_ms": line["ms"],
            "peak_bytes": line["peak_bytes"], "seconds": round(time.time() - start, 1),
            "validation_loss": line["validation_loss"], "torch": line["torch"], "gpu": line.get("gpu")}


def answers_of(args, task, common):
    answers = pathlib.Path(tempfile.mkstemp(dir=args.work, suffix=".jsonl")[1])
    answers.write_text(run([args.bin / "pig-generate", *common, "--prompts", task.prompts, *task.generate]))
    return answers


def judged(args, task, model, prose):
    """Figures of the task's test, and perplexity of the prose. `model` is flags."""
    common = [*model, "--device", args.device, "-t", args.threads, "--no-progress", "-q", "--format", "jsonl"]
    said = json.loads(run([args.bin / "pig-eval", *common, "--task", "perplexity", "--data", prose,
                           "-s", "run.context=2048"]).splitlines()[-1])
    return {**task.judged(args, common), "perplexity": said["quality"]["ppl"]["mean"],
            "prose_tokens": said["quality"]["n_tokens"], "commit": said["git_commit"], "isa": said["cpu_isa"],
            "cpu": args.cpu or said["host"]["cpu_model"], "threads": args.threads, "device": args.device}


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


def in_parallel(args, records, works):
    """Runs works {key: function}, --jobs at a time, unless their records are there."""
    def one(work):
        key, body = work
        records.add(key, body())

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, [(key, body) for key, body in works.items() if not records.has(key)]))


def sweep(args, records):
    works = {}
    for task in tasks_of(args):
        for method in args.methods:
            for rate in args.rates:
                def body(task=task, method=method, rate=rate):
                    folder, n = args.work / "sweep" / task.name / f"{method}-{rate:g}", args.sweep_steps
                    figures = train(args, task, folder, SWEEP_SEED,
                                    [*settings_of(method, args.model), f"train.optimizer.lr={rate:g}", f"train.steps={n}",
                                     "data.val_size=200", f"eval.every={n}", f"train.save_every={n}"])
                    keep_metrics(folder)
                    return figures
                works["sweep", task.name, method, SWEEP_SEED, rate] = body
    in_parallel(args, records, works)


def run_all(args, records):
    prose, tasks, works = prose_of(args), tasks_of(args), {}
    for task in tasks:
        def base(task=task):
            folder = args.work / task.name / "base"
            figures = train(args, task, folder, 0,
                            [*settings_of("lora", args.model), "train.optimizer.lr=0", "train.steps=1",
                             f"data.val_path={task.test}"])
            keep_metrics(folder)
            return {**figures, **judged(args, task, ["-m", args.model], prose)}
        works["base", task.name, "none", 0, 0] = base
        if "peft" in args.methods:  # before several runs want them
            ids_of(args, task, task.train), ids_of(args, task, task.test)
    for seed in args.seeds:  # so that a study that is cut short has seeds of every method
        for task in tasks:
            for method in args.methods:
                rate = records.best_rate(task.name, "lora" if method == "peft" else method)

                def body(seed=seed, task=task, method=method, rate=rate):
                    folder, n = args.work / task.name / f"{method}-{seed}", args.steps or task.steps
                    if method == "peft":
                        figures = train_peft(args, task, folder, seed, rate, n)
                        model = ["-m", args.model, "-s", f"model.adapters=[{{path: {folder / 'model'}}}]"]
                    else:
                        figures = train(args, task, folder, seed,
                                        [*settings_of(method, args.model), f"train.optimizer.lr={rate:g}", f"train.steps={n}",
                                         f"data.val_path={task.test}", f"eval.every={n}", f"train.save_every={n}"])
                        model = ["-m", folder / "model"]
                    figures |= judged(args, task, model, prose)
                    keep_metrics(folder)
                    return figures
                works["run", task.name, method, seed, rate] = body
    in_parallel(args, records, works)


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
        right = "accuracy" if task == "commonsense" else "exact match"
        print(f"| | values trained | rate | steps | seeds | test loss | {right}, % | perplexity of prose |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for method in ["none", *METHODS]:
            rows = [row for row in of_task if row["kind"] in ("base", "run") and row["method"] == method]
            if not rows:
                continue
            losses = spread([row["validation_loss"] for row in rows], ".4f")
            exact = spread([100 * (row["accuracy"] if "accuracy" in row else row["exact"] / row["of"]) for row in rows], ".1f")
            forgetting = spread([row["perplexity"] for row in rows], ".1f")
            what = (f"{rows[0].get('model', 'tiny-16m')} as it is | | | | " if method == "none" else
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
        command.add_argument("--data", type=pathlib.Path, required=True)
        command.add_argument("--model", type=pathlib.Path, default=MODEL)
        command.add_argument("--device", default="cpu")
        command.add_argument("--jobs", type=int, default=1, help="runs at a time")
        command.add_argument("--cases", type=int, default=200, help="questions of each set")
        command.add_argument("--steps", type=int, help="steps of a run; default: the task's")
        command.add_argument("--sweep-steps", type=int, default=SWEEP_STEPS)
        command.add_argument("--work", type=pathlib.Path, required=True)
        command.add_argument("-o", dest="records", type=pathlib.Path, required=True)
        command.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
        command.add_argument("--tasks", nargs="+", choices=TASKS, default=["station-log", "gsm8k"])
        command.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS[:-1])
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
