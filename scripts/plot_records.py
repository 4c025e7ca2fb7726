"""Reads what the tools write, for plot.py: records, logs of cases of pig-eval, and a description of anything else."""
import json
import math
import os
import sys
from collections import Counter, defaultdict

USAGE, INPUT = 2, 4  # exit statuses, those of the C++ tools
SPECULATION = ["speedup", "pareto", "acceptance", "prediction"]
Z = 1.959963984540054  # 97.5 % quantile of the normal distribution


def fail(where, text, hint=None, status=INPUT):
    """Ends with an error: the place, what was expected and found there, and what to do."""
    print(f"plot.py: error: {where}: {text}" + (f"\n  hint: {hint}" if hint else ""), file=sys.stderr)
    sys.exit(status)


def note(text):
    print(f"plot.py: note: {text}", file=sys.stderr)


def sparse_policies(record):
    """The policies of a recipe of pig-eval that read some of the FFN's channels, by name."""
    policies = record["recipe"]["effective"].get("eval", {}).get("policies", [])
    return {p["name"]: p for p in policies if p.get("sparse", {}).get("kind", "none") != "none"}


def plots_of(record):
    """The plots that draw a record, the most telling one first."""
    tool, quality = record.get("tool"), record.get("quality", {})
    if tool == "pig-bench":
        return ["speed", "places"] if "decode_step" in record.get("timing", {}) else []
    if tool == "pig-eval":
        draws = ["quality"] if "reads" in quality and "protocol" in quality else []
        is_judged = "ratio_ci95_low" in quality or quality.get("task") == "perplexity"
        return draws + (["channels"] if is_judged and sparse_policies(record) else [])
    if tool == "magicdec-acceptance" and "acceptance" in record:
        along_output = record["acceptance"].get("drafted", {}).get("by_output")
        return ["acceptance"] + (["output"] if along_output else [])
    if tool in ("magicdec-bench", "sequoia-bench"):
        measured = record["workload"].get("phase", "").startswith(("plain", "rounds "))
        channels = ["channels"] if "channels" in record.get("spec", {}) else []
        return SPECULATION + ["nested"] + channels if measured else []
    return ["adapters"] if tool == "many-tasks" else []


def kind_of(line):
    """A noun for a line of JSON, and the plots that draw it."""
    if not isinstance(line, dict):
        return "values that are no JSON objects", []
    if line.get("schema") == "tandem.result/1":
        if line.get("status") not in ("ok", "partial"):
            return f"failed records of {line.get('tool')}", []
        phase = line.get("workload", {}).get("phase", "").split(" ")[0]
        phase = phase or line.get("quality", {}).get("task", "")
        return f"{phase} records of {line.get('tool')}".lstrip(), plots_of(line)
    if is_flat(line):
        return f"flat records of {line['tool']}", []
    if "event" in line:
        return "events of a generation", []
    if "step" in line and any(key in line for key in ("loss", "val_loss", "range_test")):
        return "metrics of a run of s2ft-train", ["loss"]
    keys = ", ".join(list(line)[:4])
    return f"objects of another program (keys {keys}{', ...' if len(line) > 4 else ''})", []


def holds(path, lines):
    """A sentence about the lines of a file, and the command that draws it."""
    if not lines:
        return f"{path} is empty", "the tools write records to the file of -o"
    kinds, more = [kind_of(line) for line in lines], ""
    if is_log(lines):
        text = f"{path} is a log of {len(lines) - 1} cases of pig-eval"
        kinds = [("", plots_of(record)) for record in records_of_log(path, lines)]
        more = f"pig-eval with the same recipe, -o {path} --resume --format jsonl prints complete records"
    else:
        counts = Counter(noun for noun, _ in kinds)
        text = ", ".join(f"{n} {noun if n > 1 else noun.replace('s of ', ' of ', 1)}"
                         for noun, n in counts.most_common(3))
        text = f"{path} holds {text}" + (", ..." if len(counts) > 3 else "")
    plots = list(dict.fromkeys(plot for _, draws in kinds for plot in draws))
    if plots:
        others = f" (or {', '.join(plots[1:])})" if plots[1:] else ""
        return text, f"plot.py {plots[0]} {path} -o {plots[0]}.svg{others}" + (f"; {more}" if more else "")
    if any(isinstance(line, dict) and (line.get("schema") == "tandem.result/1" or is_flat(line)) for line in lines):
        return text, f"plot.py xy {path} --fields lists the fields that plot.py xy can draw"
    return text, more or "plot.py draws records of the benchmarks and of pig-eval, and runs of s2ft-train"


def read_lines(path):
    """The JSON values of a file, one a line or in an array. A last line that a killed run tore is left out."""
    if os.path.isdir(path):
        is_run = os.path.exists(os.path.join(path, "metrics.jsonl"))
        fail(path, "expected a file of records, found " + ("a run of s2ft-train" if is_run else "a folder"),
             f"plot.py loss {path} -o loss.svg" if is_run else None)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as e:
        fail(path, e.strerror, "the tools write records to the file of -o")
    except UnicodeDecodeError:
        fail(path, "expected lines of JSON, found a binary file", "the tools write records to the file of -o")
    if text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            pass
    values, lines = [], text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            values += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError:
            if number < len(lines) or text.endswith("\n"):
                fail(f"{path}:{number}", f"expected a line of JSON, found '{line[:40]}'",
                     "the tools write records to the file of -o, or with --format jsonl")
    return values


def wilson_interval(right, n):
    share, scale = right / n, 1 + Z * Z / n
    centre = (share + Z * Z / (2 * n)) / scale
    half = Z / scale * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return 0.0 if right == 0 else centre - half, 1.0 if right == n else centre + half


def mean_interval(tasks):
    """The interval of a mean over tasks of (right, n), as lib/eval/paired.cpp computes it."""
    shares = [(right + 1) / (n + 2) for right, n in tasks]
    variance = sum(p * (1 - p) / (n + 2) for p, (_, n) in zip(shares, tasks))
    mean, half = sum(right / n for right, n in tasks) / len(tasks), Z * math.sqrt(variance) / len(tasks)
    return max(0.0, mean - half), min(1.0, mean + half)


def mean_of(dicts):
    return {key: sum(d[key] for d in dicts) / len(dicts) for key in dicts[0]} if dicts else None


def is_log(lines):
    return bool(lines) and isinstance(lines[0], dict) and lines[0].get("schema") == "tandem.eval/1"


def is_flat(line):
    """True for a line of --format flat."""
    return (isinstance(line, dict) and "schema" not in line and isinstance(line.get("tool"), str) and "status" in line
            and not any(isinstance(value, (dict, list)) for value in line.values()))


def records_of_log(path, lines):
    """The records that pig-eval makes of a log of cases, without ratios to full attention."""
    try:
        return judged(lines)
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        fail(path, f"expected a log of cases of pig-eval, found one with a line that lacks {e}",
             "pig-eval --resume names the line")


def judged(lines):
    recipe = lines[0]["recipe"]
    settings = recipe["effective"]["eval"]
    kinds = {"full": "full", **{p["name"]: p.get("kind", "") for p in settings["policies"]}}
    cases, found, seen = defaultdict(lambda: defaultdict(list)), [], set()
    for line in lines[1:]:
        subject = tuple(str(line.get(key)) for key in ("task", "length", "case", "record"))
        if subject in seen:  # a line that is there twice counts once
            continue
        seen.add(subject)
        task, policies = line["task"], line.get("policies", {})
        for policy, by_protocol in line.get("correct", {}).items():
            for protocol, by_score in by_protocol.items():
                for score, right in by_score.items():
                    texts = {"group": "own"} if "record" in line else {"length": line["length"]}
                    of = {**texts, "protocol": protocol, "score": score}
                    reads = line.get("reads", {}).get(policy, {}).get(protocol, {}).get(score)
                    cases[policy, *of.items()][task].append((right, reads))
        for policy, value in policies.items():
            if "record" in line:
                cases[policy,][task].append((value["correct"], value.get("reads")))
            elif isinstance(value, dict):  # perplexity, attention: one line says all
                found.append({"task": task, "policy": policy, "reference": "full", **value})
    order = list(kinds)
    for (policy, *of), tasks in sorted(cases.items(), key=lambda item: order.index(item[0][0])):
        rows = []
        for task in [t for t in settings["tasks"] if t in tasks] + sorted(set(tasks) - set(settings["tasks"])):
            right, n = sum(r for r, _ in tasks[task]), len(tasks[task])
            rows.append((task, right / n, wilson_interval(right, n), n,
                         mean_of([reads for _, reads in tasks[task] if reads])))
        if of and len(rows) > 1:
            rows.append(("mean", sum(r[1] for r in rows) / len(rows),
                         mean_interval([(round(r[1] * r[3]), r[3]) for r in rows]), sum(r[3] for r in rows),
                         mean_of([r[4] for r in rows if r[4]])))
        for task, correct, (low, high), n, reads in rows:
            found.append({"task": task, "policy": policy, "kind": kinds.get(policy, ""), "reference": "full",
                          "n_cases": n, "correct": correct, "ci95_low": low, "ci95_high": high, **dict(of),
                          **({"reads": reads} if reads else {})})
    return [{"schema": "tandem.result/1", "tool": "pig-eval", "status": "ok", "recipe": recipe, "quality": q}
            for q in found]


def results_of(path, lines, flat=False):
    """The records of a file that hold a result, with `flat` those of --format flat too; those of a log of cases are
    made here."""
    if is_log(lines):
        return records_of_log(path, lines)
    return [line for line in lines if isinstance(line, dict) and line.get("status") in ("ok", "partial")
            and (line.get("schema") == "tandem.result/1" or flat and is_flat(line))]


def read_records(args, every=False):
    """The records of all files that the plot draws, or with `every` all, flat ones too. A file without any is an error
    if no other has one."""
    records, others = [], []
    for path in args.files:
        lines = read_lines(path)
        own = [record for record in results_of(path, lines, every) if every or args.command in plots_of(record)]
        records += own
        if not own:
            others.append(holds(path, lines))
    for text, _ in others if records else []:
        note(f"{text}: not part of plot {args.command}")
    if not records:
        text, hint = others[0]
        fail(args.command, f"expected {args.expects}; {text}", hint)
    return records


def latest(items, key, what):
    """One item a key, the last one, with a note if several runs repeat a key."""
    found = {}
    for item in items:
        found.pop(key(item), None)
        found[key(item)] = item
    if len(found) < len(items):
        note(f"{len(items) - len(found)} {what} repeat others: the last of each is drawn")
    return list(found.values())


def point_of(record):
    """The point of a sweep that a record measures: runs that repeat it have the same."""
    return record["model"]["name"], record.get("point"), str(record["workload"])


def chosen(values, wanted, name):
    """The one value to draw: the one asked for, or the only one there is."""
    values = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    if wanted is None and len(values) == 1:
        return values[0]
    if wanted in values:
        return wanted
    listed = ", ".join(str(v) for v in values)
    fail(f"--{name}", f"expected one of {listed}, found {'nothing' if wanted is None else wanted}",
         f"--{name} {values[0]}", USAGE)
