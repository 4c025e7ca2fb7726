#!/usr/bin/env python3
"""Measures what S2FT learns at its defaults: tiny-16m, four made-up tasks of 400 short records, 120 steps each.

    scripts/bench/train_defaults.py FOLDER [--bin build/bin] > RECORDS

Trains by `s2ft-train -m tiny-16m --data TASK.jsonl -o FOLDER/TASK`, with the length of the run as its only
setting, and prints one JSON line a task: the version of the tool, the rate that the range test chose, and the
mean training loss of the last ten steps. Exit status 1 where that is above .05. Minutes on two cores.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

COLORS = "red blue green white black brown yellow".split()
THINGS = "boat house lamp door tower bridge wagon table chair field".split()
NUMBERS = "zero one two three four five six seven eight nine".split()
STEPS, MOST_LOSS = 120, 0.05


def color(i):
    thing = i % len(THINGS)
    return f"What is the {THINGS[thing]}?", f"The {THINGS[thing]} is {COLORS[thing % len(COLORS)]}."


def spelled(i):
    return f"Spell {i % 10}", NUMBERS[i % 10]


def next_number(i):
    return f"What follows {NUMBERS[i % 9]}?", NUMBERS[i % 9 + 1]


def order(i):
    first, second = COLORS[i % 7], THINGS[i * 3 % 10]
    return f"Turn round: {first} {second}", f"{second} {first}"


def train(task, options):
    data = options.folder / f"{task.__name__}.jsonl"
    data.write_text("".join(
        json.dumps(dict(zip(("instruction", "output"), task(i)))) + "\n" for i in range(400)))
    run = options.folder / task.__name__
    subprocess.run([options.bin / "s2ft-train", "-m", "tiny-16m", "--data", data, "-o", run, "-s",
                    f"train.steps={STEPS}"], check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    version = subprocess.run([options.bin / "s2ft-train", "--version"], capture_output=True, text=True, check=True)
    return {"version": version.stdout.strip(), "task": task.__name__, "records": 400, "steps": STEPS,
            "range_test": next(line["range_test"] for line in lines if "range_test" in line),
            "first_loss": losses[0], "last_loss": statistics.mean(losses[-10:])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/bin"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    records = [train(task, options) for task in (color, spelled, next_number, order)]
    for record in records:
        print(json.dumps(record))
    return int(any(record["last_loss"] > MOST_LOSS for record in records))


if __name__ == "__main__":
    sys.exit(main())
