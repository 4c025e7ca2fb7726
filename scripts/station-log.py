#!/usr/bin/env python3
"""Two small tasks to learn: lines of a lighthouse's log become JSON, or a telegram.

    scripts/station-log.py make FOLDER [--task log|telegram] [--train N] [--heldout N] [--seed N]
    scripts/station-log.py score FOLDER/heldout.jsonl ... EVENTS.jsonl
    scripts/station-log.py mix NAME=FOLDER ... > prompts.jsonl

make writes train.jsonl and heldout.jsonl, records {"instruction", "output"} of which no line is in
both, and heldout-prompts.jsonl for `pig-generate --prompts`, written as data.template plain writes
them. The same seed gives the same files everywhere. score compares what pig-generate wrote with
--format jsonl for these prompts, or for those of several tasks in turn, with the outputs that were held out: a
record is right if its text is the output, character by character. mix prints the held-out prompts of several tasks in turn, each with
the name of the adapter that it is for. Exit status: 0, 1 where an answer is missing.
"""

import argparse
import json
import random
import sys
from pathlib import Path

DIRECTIONS = {"north": "N", "north-east": "NE", "east": "E", "south-east": "SE",
              "south": "S", "south-west": "SW", "west": "W", "north-west": "NW"}
SEAS = ["calm", "rippled", "smooth", "slight", "moderate", "rough", "very rough", "high", "very high"]
NUMBERS = ["nought", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
           "eleven", "twelve"]
SHIPS = ["brig", "schooner", "steamer", "ketch", "barque", "cutter", "trawler"]
FIRST = ["Good", "Grey", "Brave", "Silver", "Northern", "Patient", "Merry", "Golden", "Swift", "Quiet",
         "Bonny", "Second", "Red", "Gallant", "Lonely", "Early"]
LAST = ["Intent", "Petrel", "Heron", "Margaret", "Star", "Venture", "Tern", "Harvest", "Hope",
        "Albatross", "Maid", "Curlew", "Fortune", "Isabel", "Morning", "Lass"]
REMARKS = ["Quill burned the porridge.", "The clock was set by the noon signal.", "Hale counted the stairs.",
           "Drained the receiver.", "Bosun slept on the logbook.", "Two panes cleaned of salt.",
           "The potatoes are in leaf.", "Oil poured and signed for.", "Rook moved the long brush.",
           "The kettle sings on the stove.", "Snow on the gallery rail.", "No mail."]


class Draw:
    """Choices that are the same in every version of Python: made of random() alone."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def below(self, n):
        return int(self.random() * n)

    def of(self, items):
        return items[self.below(len(items))]

    def shuffled(self, items):
        items = list(items)
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]
        return items


def clock(draw, hour, minute):
    """A time of day as keepers write it; the twelve hours of noon and midnight are not divided."""
    if hour % 12 == 0 or draw.below(2) == 0:
        return f"{hour:02}:{minute:02}"
    part = "morning" if hour < 12 else "afternoon" if hour < 18 else "evening"
    return f"{hour % 12}.{minute:02} in the {part}"


def telegram(fact):
    """What the mainland is told, in the fewest words."""
    words = [fact["time"].replace(":", ""), fact["wind"], str(fact["force"]), fact["sea"]]
    if fact["glass"] is not None:
        words.append(f"glass {fact['glass']}")
    if fact["ship"] is not None:
        words.append(f"{fact['ship']} to {fact['to']}")
    return " ".join(words + ["stop"]).upper()


def entry(draw, task):
    """One line of the log, and what it says."""
    hour, minute = draw.below(24), draw.below(60)
    wind, force, sea = draw.of(list(DIRECTIONS)), draw.below(13), draw.of(SEAS)
    fact = {"time": f"{hour:02}:{minute:02}", "wind": DIRECTIONS[wind], "force": force, "sea": sea,
            "glass": None, "ship": None, "to": None}
    strength = NUMBERS[force] if draw.below(2) else str(force)
    parts = [draw.of([f"Wind {wind}, force {strength}, sea {sea}.",
                      f"Sea {sea}, wind {wind}, force {strength}.",
                      f"Wind force {strength} from the {wind} and a {sea} sea."])]
    if draw.below(3):
        fact["glass"] = 960 + draw.below(81)
        parts.append(draw.of([f"Glass {fact['glass']}.", f"The glass stands at {fact['glass']}.",
                              f"Barometer {fact['glass']}."]))
    if draw.below(2):
        kind, to = draw.of(SHIPS), draw.of(list(DIRECTIONS))
        fact["ship"], fact["to"] = f"{draw.of(FIRST)} {draw.of(LAST)}", DIRECTIONS[to]
        parts.append(draw.of([f"The {kind} {fact['ship']} passed to the {to}.",
                              f"Passed, going {to}: {kind} {fact['ship']}.",
                              f"{kind.capitalize()} {fact['ship']} went by, bound {to}."]))
    if draw.below(3) == 0:
        parts.append(draw.of(REMARKS))
    line = f"{clock(draw, hour, minute)}. " + " ".join(draw.shuffled(parts))
    if task == "telegram":
        return "To send: " + line, telegram(fact)
    return line, json.dumps(fact, separators=(",", ":"))


def make(options):
    draw, lines = Draw(options.seed), {}
    while len(lines) < options.train + options.heldout:
        line, output = entry(draw, options.task)
        lines.setdefault(line, output)
    records = [{"instruction": line, "output": output} for line, output in lines.items()]
    options.folder.mkdir(parents=True, exist_ok=True)

    def write(name, rows):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (options.folder / name).write_text(text, encoding="utf-8")

    heldout = records[options.train:]
    write("train.jsonl", records[:options.train])
    write("heldout.jsonl", heldout)
    write("heldout-prompts.jsonl", [{"prompt": r["instruction"] + "\n"} for r in heldout])
    print(f"{options.folder}: {options.train} records to train on, {options.heldout} held out")


def rows_of(path):
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SystemExit(f"station-log.py: error: {path}: {error.strerror}")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def fields_of(text):
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def parts_of(text):
    """What an answer says: the fields of JSON, or words."""
    return fields_of(text) or dict(enumerate(text.split()))


def score(options):
    tasks = [[row["output"] for row in rows_of(path)] for path in options.heldout]
    texts = {}
    for event in rows_of(options.events):
        if event.get("event") in ("token", "finish"):
            texts[event["seq"]] = texts.get(event["seq"], "") + event.get("text", "")
    missing = len(tasks) * min(map(len, tasks)) - len(texts)
    for i, expected in enumerate(tasks):
        judge(options.heldout[i].parent.name, expected, [texts.get(k * len(tasks) + i, "") for k in range(len(expected))])
    if missing > 0:
        sys.exit(f"station-log.py: {options.events} lacks {missing} answers")


def counted(expected, answers):
    """Answers that are right to the letter; parts that are right, and all of them."""
    exact = n_fields = right_fields = 0
    for output, text in zip(expected, answers):
        found, wanted = parts_of(text), parts_of(output)
        exact += text == output
        n_fields += len(wanted)
        right_fields += sum(found.get(key, ...) == value for key, value in wanted.items())
    return exact, right_fields, n_fields


def judge(task, expected, answers):
    exact, right_fields, n_fields = counted(expected, answers)
    n = len(expected)
    print(f"{task}: exact match {exact} of {n} ({100 * exact / n:.1f} %), parts {100 * right_fields / n_fields:.1f} %")


def mix(options):
    tasks = [task.partition("=")[::2] for task in options.tasks]
    rows = [[dict(row, adapter=name) for row in rows_of(Path(folder) / "heldout-prompts.jsonl")]
            for name, folder in tasks]
    for turn in zip(*rows):
        for row in turn:
            print(json.dumps(row))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    maker = commands.add_parser("make", help="write the data")
    maker.add_argument("folder", type=Path)
    maker.add_argument("--task", choices=["log", "telegram"], default="log")
    maker.add_argument("--train", type=int, default=4000)
    maker.add_argument("--heldout", type=int, default=200)
    maker.add_argument("--seed", type=int, default=0)
    maker.set_defaults(run=make)
    scorer = commands.add_parser("score", help="judge generated text")
    scorer.add_argument("heldout", type=Path, nargs="+")
    scorer.add_argument("events", type=Path)
    scorer.set_defaults(run=score)
    mixer = commands.add_parser("mix", help="held-out prompts of several tasks, each with its adapter's name")
    mixer.add_argument("tasks", nargs="+", metavar="NAME=FOLDER")
    mixer.set_defaults(run=mix)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
