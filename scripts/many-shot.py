#!/usr/bin/env python3
"""Makes long prompts of many examples from question sets, as questions for pig-eval --task or --data.

    scripts/many-shot.py commonsense LLM-Adapters/dataset -o FOLDER    one FILE.jsonl per set, with choices
    scripts/many-shot.py gsm8k FOLDER_OF_TRAIN_AND_TEST -o FOLDER      gsm8k.jsonl, with the worked solutions

Examples come first, from other questions of the set (gsm8k: from train.jsonl), the same for all questions of a file
and about --bytes long. The question follows. Choices are the texts of the set's answers, without their numbers, so
that they are judged by log-probability. Draws depend on --seed only."""
import argparse
import json
import random
import re
from pathlib import Path

SETS = ["boolq", "piqa", "social_i_qa", "winogrande", "ARC-Easy", "ARC-Challenge", "openbookqa"]
CHOICE = re.compile(r"\s*(?:Answer|Solution|Option)(\d): ")


def commonsense(path):
    """Question, choices and the index of the right one of each record of a set that has this form."""
    for record in json.loads(path.read_text(encoding="utf-8")):
        text = re.split(r"\s*Answer format:", record["instruction"])[0]
        text = re.sub(r"^Please [^:]*(?:question|sentence)s?: ", "", text)
        question, *parts = CHOICE.split(text)
        choices = [" ".join(part.split()) for part in parts[1::2]] or ["true", "false"]
        answer = record["answer"]
        right = choices.index(answer) if answer in choices else int(re.sub(r"\D", "", answer)) - 1
        if len(set(choices)) == len(choices) and all(choices):
            yield question.strip(), choices, right


def shots(examples, n_bytes):
    text = ""
    for question, answer in examples:
        if len(text.encode()) >= n_bytes:
            break
        text += f"Question: {question}\nAnswer: {answer}\n\n"
    return text


def write(path, lines):
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    print(f"{path}: {len(lines)} questions")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["commonsense", "gsm8k"])
    parser.add_argument("sets", type=Path, help="folder of the sets")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-n", type=int, default=100, help="questions a file")
    parser.add_argument("--bytes", type=int, default=14000, help="of examples")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    draw = random.Random(options.seed)
    if options.kind == "gsm8k":
        train, test = ([(r["question"], re.sub(r"<<.*?>>", "", r["answer"])) for r in map(json.loads, (
            options.sets / f"{part}.jsonl").read_text(encoding="utf-8").splitlines())] for part in ("train", "test"))
        draw.shuffle(train)
        draw.shuffle(test)
        before = shots(train, options.bytes)
        return write(options.output / "gsm8k.jsonl", [
            {"prompt": f"{before}Question: {question}\nAnswer:", "answer": f" {answer}"}
            for question, answer in test[:options.n]])
    for name in SETS:
        records = list(commonsense(options.sets / name / "test.json"))
        draw.shuffle(records)
        before = shots([(q, choices[right]) for q, choices, right in records[options.n:]], options.bytes)
        write(options.output / f"{name.lower()}.jsonl", [
            {"prompt": before, "question": f"Question: {question}\nAnswer:", "choices": choices, "answer": right}
            for question, choices, right in records[:options.n]])


if __name__ == "__main__":
    main()
