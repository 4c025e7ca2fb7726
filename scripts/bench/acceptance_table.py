#!/usr/bin/env python3
"""Tables of magicdec-acceptance: alpha of drafts in rounds by what they read, and whether sums over
distributions agree with counting.

    acceptance_table.py FILE... > table.md

A row a draft and kind of prompts, a column a temperature: alpha by sums of min(p, q) along the drafted
tokens, with the standard error, and the share of drafted tokens that were accepted; of nested drafts alpha
of the rounds within after it. Below: how far alpha by counting lies from that by sums, in standard errors of
counting, tokens taken as independent."""

import argparse
import json
import math
import sys


def read(paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                if record.get("tool") == "magicdec-acceptance" and record.get("status") == "ok":
                    yield record


def cell(record):
    drafted = record["acceptance"]["drafted"]
    text = f"{drafted['alpha']:.3f} ± {drafted.get('alpha_stderr', 0):.3f}, {drafted['share_accepted']:.2f}"
    within = record["acceptance"].get("within")
    return text + (f"; {within['alpha']:.3f} ± {within.get('alpha_stderr', 0):.3f}" if within else "")


def deviations(record):
    """Counted minus summed alpha, in standard errors of counting; none where all or nothing is accepted."""
    pairs = [(record["acceptance"]["drafted"], record["spec"])]
    if "within" in record["acceptance"]:
        pairs.append((record["acceptance"]["within"], record["spec"]["within"]))
    for sums, counts in pairs:
        error = math.sqrt(counts["alpha"] * (1 - counts["alpha"]) / max(1, counts["tested"]))
        if error > 0:
            yield (counts["alpha"] - sums["alpha"]) / error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    records = [r for r in read(parser.parse_args().files) if "drafted" in r["acceptance"]]
    if not records:
        sys.exit("acceptance_table.py: error: expected records of acceptance in speculation steps, found none")
    temperatures = sorted({r["workload"]["temperature"] for r in records})
    rows = {}
    for r in records:
        work = r["workload"]
        rows.setdefault((work["prompts"], work["draft"]["name"]), {})[work["temperature"]] = cell(r)
    print("| prompts | draft | " + " | ".join(f"T = {t:g}" for t in temperatures) + " |")
    print("|---|---|" + "---|" * len(temperatures))
    for (prompts, draft), cells in rows.items():
        print(f"| {prompts} | {draft} | " + " | ".join(cells.get(t, "") for t in temperatures) + " |")
    for greedy in (False, True):
        away = [d for r in records if (r["workload"]["temperature"] == 0) == greedy for d in deviations(r)]
        if away:
            inside = sum(abs(d) <= 2 for d in away)
            print(f"\n{'Greedy' if greedy else 'Drawn'}: of {len(away)} alphas by counting {inside} lie within two "
                  f"standard errors of those by sums; the mean deviation is {sum(away) / len(away):+.2f}, the "
                  f"largest {max(away, key=abs):+.2f}.")


if __name__ == "__main__":
    main()
