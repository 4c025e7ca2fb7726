#!/usr/bin/env python3
"""Two tasks in one model: adapters alone, fused, switched and mixed.

    scripts/many-tasks.py FOLDER [-o RECORDS.jsonl] [--bin build/bin] [--device cpu]

Trains adapters of tiny-16m for both tasks of station-log.py (heads and channels that are apart, that overlap
as chance has it, and low-rank factors), then has pig-generate answer the held-out lines of both tasks: by each
adapter alone, by both fused into the weights, and by both as named adapters, mixed in one batch or switched
between requests. A record a combination and task: how many of the held-out answers are right to the letter, and
which share of their fields or words. Runs
that FOLDER already has are taken as they are: five of them, some 15 minutes on two cores. Exit status 1
where a text of a mixed or switched run is not that of its adapter alone (in f32).
"""
import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("station_log", SCRIPTS / "station-log.py")
station_log = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(station_log)
MODEL = "tiny-16m"
TASKS = ["log", "telegram"]
KINDS = {"disjoint": ("run-log", "run-telegram-disjoint"),
         "overlapping": ("run-log", "run-telegram-overlap"),
         "low rank": ("lora-log", "lora-telegram")}
WEIGHTS = [1.0, 0.7, 0.5]


class Machine:
    def __init__(self, options):
        self.options = options
        self.folder = options.folder

    def run(self, tool, *arguments, output=None):
        command = [str(self.options.bin / tool), *arguments]
        with open(output, "wb") if output else open("/dev/null", "wb") as out:
            if subprocess.run(command, stdout=out, check=False).returncode != 0:
                sys.exit(f"many-tasks.py: failed: {' '.join(command)}")

    def make(self):
        for seed, task in enumerate(TASKS):
            if not (self.folder / task).exists():
                subprocess.run([sys.executable, str(SCRIPTS / "station-log.py"), "make", str(self.folder / task), "--task", task,
                                "--seed", str(seed)], check=True)

    def train(self, run, task, *settings):
        if (self.folder / run / "adapter").exists():
            return
        flags = [flag for setting in settings for flag in ("-s", setting)]
        self.run("s2ft-train", "-r", "s2ft/tiny-16m", "--data", str(self.folder / task / "train.jsonl"),
                 "-o", str(self.folder / run), "--device", self.options.device, *flags)

    def train_all(self):
        self.train("run-log", "log")
        self.train("run-telegram-disjoint", "telegram", f"train.select.exclude=[{self.folder / 'run-log'}]")
        self.train("run-telegram-overlap", "telegram")
        self.train("lora-log", "log", "train.method=lora")
        self.train("lora-telegram", "telegram", "train.method=lora")

    def answers(self, name, prompts, adapters, *settings):
        """Texts by prompt."""
        output = self.folder / f"answers {name}.jsonl"
        flags = [flag for setting in settings for flag in ("-s", setting)]
        self.run("pig-generate", "-m", MODEL, "--prompts", str(prompts), "-n", "80", "-q", "--format", "jsonl", "--device",
                 self.options.device, "-s", f"model.adapters={json.dumps(adapters)}", "-s", "model.compute=f32", *flags,
                 output=output)
        texts, summary = {}, {}
        for line in output.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] in ("token", "finish"):
                texts[event["seq"]] = texts.get(event["seq"], "") + event.get("text", "")
            if event["event"] == "summary":
                summary = event
        return [texts[i] for i in sorted(texts)], summary


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--bin", type=Path, default=SCRIPTS.parent / "build/bin")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(options)
    machine.make()
    machine.train_all()

    expected = {t: [json.loads(line)["output"] for line in (options.folder / t / "heldout.jsonl").read_text().splitlines()]
                for t in TASKS}
    mixed = options.folder / "mixed-prompts.jsonl"
    mixed.write_text(subprocess.run([sys.executable, str(SCRIPTS / "station-log.py"), "mix",
                                     *(f"{t}={options.folder / t}" for t in TASKS)], check=True, capture_output=True,
                                    text=True).stdout, encoding="utf-8")
    records, apart = [], 0

    def add(kind, use, task, texts, **more):
        n_exact, right, n_parts = station_log.counted(expected[task], texts)
        records.append({"schema": "tandem.result/1", "tool": "many-tasks", "status": "ok", "model": MODEL, "compute": "f32", "device": options.device, "kind": kind,
                        "use": use, "task": task, "exact": n_exact, "of": len(expected[task]),
                        "parts": round(right / n_parts, 4), **more})
        print(f"{kind:12} {use:22} {task:9} {n_exact} of {len(expected[task])}, parts {100 * right / n_parts:.1f} %", flush=True)

    for kind, runs in KINDS.items():
        paths = {task: str(options.folder / run) for task, run in zip(TASKS, runs)}
        alone = {}
        for task in TASKS:
            for asked in TASKS:
                texts, _ = machine.answers(f"{kind} {task} {asked}", options.folder / asked / "heldout-prompts.jsonl",
                                           [{"path": paths[task]}])
                if asked == task:
                    alone[task] = texts
                add(kind, f"{task} alone", asked, texts)
        for weight in WEIGHTS:
            for task in TASKS:
                texts, _ = machine.answers(f"{kind} fused {weight} {task}", options.folder / task / "heldout-prompts.jsonl",
                                           [{"path": paths[t], "weight": weight} for t in TASKS])
                add(kind, f"fused at {weight:g}", task, texts, weight=weight)
        named = [{"name": t, "path": paths[t]} for t in TASKS]
        for use in ("mix", "switch"):
            texts, summary = machine.answers(f"{kind} {use}", mixed, named, f"run.adapters={use}", "run.batch=8")
            for i, task in enumerate(TASKS):
                of_task = texts[i::len(TASKS)]
                same = sum(a == b for a, b in zip(alone[task], of_task, strict=True))
                apart += len(of_task) - same
                add(kind, use, task, of_task, same_as_alone=same, batch=8,
                    switches=summary.get("adapters", {}).get("switches"))
    if options.output:
        options.output.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    if apart:
        sys.exit(f"many-tasks.py: {apart} texts of mixed or switched runs differ from the text with only their adapter")


if __name__ == "__main__":
    main()
