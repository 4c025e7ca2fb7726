#!/usr/bin/env python3
"""Counts words that a stranger from the field stumbles over, in lib, kernels, apps and README.md.
scripts/words.txt says how often each may occur; a count may only fall. Prints one line a finding;
exit status 1 if there is any."""

import argparse
import re
import sys
from pathlib import Path

SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".inl", ".md"}
# The words of a phrase may stand on two lines of a comment.
GAP = r"(?:\s|//+|#)+"


def pattern_of(forms):
    """Matches the forms as words of prose, and as words of names such as node_law and NodeLaw."""
    any_case = "|".join(GAP.join(map(re.escape, form.split())) for form in forms)
    in_name = "|".join(re.escape(form.capitalize()) for form in forms if form.isalpha())
    prose = rf"(?<![A-Za-z])(?i:{any_case})(?![a-z])"
    return re.compile(prose + (rf"|(?<=[a-z0-9])(?:{in_name})(?![a-z])" if in_name else ""))


class Word:
    """A line of words.txt: '34  law, laws: distribution'."""

    LINE = re.compile(r"(\d+)\s+([^:]+): (.+)")

    def __init__(self, line, where):
        match = self.LINE.fullmatch(line.strip())
        if not match:
            sys.exit(f"{where}: expected 'COUNT  WORD, WORD: what to say', found '{line.strip()}'")
        self.most, self.name, self.instead = int(match[1]), match[2].strip(), match[3].strip()
        self.pattern = pattern_of([form.strip() for form in self.name.split(",")])

    def line(self, most):
        return f"{most:4}  {self.name}: {self.instead}"


def sources(root):
    files = [root / "README.md"] if (root / "README.md").is_file() else []
    for folder in ("apps", "kernels", "lib"):
        files += (p for p in (root / folder).rglob("*") if p.suffix in SUFFIXES)
    return sorted(files)


def places(text, word):
    for match in word.pattern.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--words", type=Path, default=Path(__file__).with_name("words.txt"))
    parser.add_argument("--list", metavar="WORD", help="show where a word of words.txt occurs")
    parser.add_argument("--update", action="store_true", help="lower the counts in words.txt")
    options = parser.parse_args()

    lines = options.words.read_text(encoding="utf-8").splitlines()
    words = {i: Word(line, f"{options.words}:{i + 1}") for i, line in enumerate(lines)
             if line.strip() and not line.startswith("#")}
    texts = {p.relative_to(options.root): p.read_text(encoding="utf-8")
             for p in sources(options.root)}
    if not texts:
        sys.exit(f"{options.root}: no sources found")

    if options.list:
        for word in words.values():
            if options.list in map(str.strip, word.name.split(",")):
                for path, text in texts.items():
                    for number, found in places(text, word):
                        print(f"{path}:{number}: {' '.join(found.split())}")
        return

    risen = fallen = 0
    for i, word in words.items():
        n = sum(len(word.pattern.findall(text)) for text in texts.values())
        if n > word.most:
            risen += 1
            print(f"{word.name}: {n}, {n - word.most} more than the {word.most} allowed; "
                  f"instead: {word.instead} (check-words.py --list {word.name.split(',')[0]!r})")
        if n < word.most:
            fallen += 1
            lines[i] = word.line(n)
    if options.update:
        options.words.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif fallen:
        print(f"{fallen} counts have fallen: lower them with check-words.py --update")
    print(f"{len(texts)} files, {len(words)} words, {risen} findings")
    sys.exit(1 if risen else 0)


if __name__ == "__main__":
    main()
