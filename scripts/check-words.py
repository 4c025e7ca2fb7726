#!/usr/bin/env python3
"""Checks the English of pages, help texts, error messages, test names and comments.
scripts/words.txt lists the rules and how often each may be broken. A count may only fall. The exit
status is 1 if a count has risen."""

import argparse
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

KINDS = ("page", "help", "error", "test", "comment", "source")  # source: C++ with its names, and pages
CPP = {".h", ".cpp", ".cu", ".cuh", ".inl"}
HASH = {".py", ".sh", ".yaml"}  # files whose comments begin with #
STYLE = Path("docs/style.md")  # quotes the words that it advises against
MOST_WORDS = 25
SHOWN = 30  # places printed for a count that has risen

# S1: a sentence begins with a clause or with a pronoun in place of a noun. Questions are fine.
CLAUSE = re.compile(
    r"(?:what|whatever|whether|which|whichever|whose|whoever|who|whom|where|wherever|how|those|the rest"
    r"|that(?! (?:is|was|means|would|makes|can|way)\b)|such(?! an?\b)|as (?:many|much|few|little))"
    r"\b(?![^?]*\?$)", re.I)
# S2: a help text does not begin with a noun.
NO_NOUN = re.compile(
    r"(?:that|of|which|what|whether|as|how|where|when|who|whose|if|by|in|for|from|at|with|without|to|so"
    r"|also|then|is|are|may|must|has|have|it|they|this|these|those|such|the same)\b", re.I)
VALUES = re.compile(r"[\w, ]{1,30}: ")  # "model, self: beams" holds for two values of another key
# S3: a fragment.
FRAGMENT = re.compile(
    r"(?:of|the same (?:of|as|after|for|with|in|where|by|on|from|without|when))\b", re.I)
# S7: "alone" for "only". "Each runs alone" is fine.
ALONE = re.compile(r"\balone\b" + "".join(rf"(?<!\b{word}\salone)" for word in (
    "adapter", "and", "are", "draft", "drafts", "each", "either", "is", "it", "itself", "left", "let",
    "model", "one", "process", "run", "running", "runs", "stands", "target", "two")), re.I)

CODE = re.compile(
    r"<!--.*?-->|</?[a-z][^>]*>|\]\([^)]*\)|`[^`]*`|\{[^{}]*\}|https?://\S+|(?<!\w)--?[a-z][\w-]*"
    r"|[^\s(]*[A-Za-z]\w*(?:::|[/._=])\S*\w(?:\(\))?", re.S)
SENTENCE_END = re.compile(r"[.!?][\"')\]*]*\s+(?=[\"'(\[*]*[A-Z0-9`])")


class Text(NamedTuple):
    path: Path
    line: int
    body: str
    is_sentence: bool = True  # not a heading or a row of a table


def prose(body):
    """Puts ` in place of code, names and paths. Lines stay the same."""
    body = re.sub(r"\b(e\.g|i\.e|etc)\.", "", body)
    return CODE.sub(lambda match: "`" + "\n" * match.group().count("\n"), body)


def sentences(text):
    """Yields the line and the words of each sentence of prose."""
    body, begin = text.body, 0
    for end in [match.end() for match in SENTENCE_END.finditer(body)] + [len(body)]:
        yield text.line + body.count("\n", 0, begin), body[begin:end].strip("\"'([*_ \n")
        begin = end


ITEM = re.compile(r"\s*(?:[-*+]|\d+\.)\s+")
LABEL = re.compile(r"\s?\w[\w, ]{0,20}?\s{2,}(?=\S)")  # "errors   kind usage" in a comment


def paragraphs(path, number, lines, is_page=False):
    """Yields the paragraphs and list items of a page or a comment, headings and rows of tables."""
    block, begin, fenced, in_list = [], number, False, False
    for number, line in enumerate([*lines, ""], number):
        fence = is_page and line.lstrip().startswith("```")
        fenced ^= fence
        item = ITEM.match(line)
        indented = is_page and line.startswith("    ") and not block and not in_list
        is_code = fence or fenced or indented
        is_row = not is_code and line.lstrip().startswith(("|", "#"))
        skipped = is_code or is_row or not line.strip()
        if block and (skipped or item or (not is_page and LABEL.match(line))):
            yield Text(path, begin, "\n".join(block))
            block = []
        if is_row:
            yield Text(path, number, line, is_sentence=False)
        if line.strip():
            in_list = bool(item) or (in_list and line.startswith(" "))
        if skipped:
            continue
        if not block:
            begin = number
            line = line[item.end():] if item else line if is_page else LABEL.sub("", line, 1)
        block.append(line.lstrip("> "))


STRING = r'"(?:\\.|[^"\\\n])*"'
CPP_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|\b\d+'[\d']+|'(?:\\.|[^'\\\n])+'|R\"\(.*?\)\""
    rf"|(?P<purpose>\.purpose =\s*)?(?P<string>{STRING}(?:\s*{STRING})*)"
    r"|(?P<open>\b(?:throw )?\w+\(|[({])|[)}]", re.S)
VISITOR = re.compile(r"fields\(V& (\w+)\)")
FLAG = re.compile(r'"--?[A-Za-z]')
ERROR_CALL = re.compile(r"throw .*|\w*([Ee]rror|Failure)|TANDEM_D?CHECK|make|refused?\w*|fail|reject"
                        r"|problem|hint|field|add_context|warn")
TEST_CALL = re.compile(r"TEST_CASE\w*|SUBCASE")


def cpp_texts(path, code):
    """Yields kind and text of comments and of strings. The call around a string says its kind."""
    visitors = set(VISITOR.findall(code))
    is_test = path.parts[0] == "tests"
    calls = [None]  # kind of the strings in each open bracket
    comment, first, last, column = [], 0, -1, 0
    line, at = 1, 0
    for token in CPP_TOKEN.finditer(code):
        word = token.group()
        line += code.count("\n", at, token.start())
        at = token.start()
        if token["comment"]:
            before = code[code.rfind("\n", 0, at) + 1:at]
            if line != last + 1 or len(before) != column or before.strip():
                yield from (("comment", text) for text in paragraphs(path, first, comment))
                comment, first, column = [], line, len(before)
            lines = word.removesuffix("*/").split("\n")
            comment += [re.sub(r"^\s*(?://[/<!]*|/?\*+)(?: namespace.*)?", "", part) for part in lines]
            last = line + len(lines) - 1
        elif token["string"]:
            before = code[max(0, at - 80):at].rstrip()
            if FLAG.match(word) and before.endswith(("(", "{", ".names =")):
                calls[-1] = calls[-1] or "help"
            kind = "help" if token["purpose"] else calls[-1]
            body = "".join(part[1:-1] for part in re.findall(STRING, token["string"]))
            if kind and " " in body and (kind == "test" or not is_test):
                body = body.replace("\\n", " ").replace('\\"', '"')
                # A string after + goes on with a sentence.
                yield kind, Text(path, line, "` " * before.endswith("+") + body)
        elif token["open"]:
            call = word[:-1]
            calls.append("test" if TEST_CALL.fullmatch(call) else
                         "error" if ERROR_CALL.fullmatch(call) else
                         "help" if call in visitors else calls[-1])
        elif word in ")}" and len(calls) > 1:
            calls.pop()
    yield from (("comment", text) for text in paragraphs(path, first, comment))


HASH_TOKEN = re.compile(
    r"(?:^|(?<=[ \t]))#[ !][^\n]*|^[ \t]*(?:\"\"\".*?\"\"\"|def test_\w+)", re.M | re.S)


def hash_texts(path, code):
    """Yields kind and text of comments, docstrings and test names."""
    comment, first, last = [], 0, -1
    line, at = 1, 0
    for token in HASH_TOKEN.finditer(code):
        word = token.group().strip()
        line += code.count("\n", at, token.start())
        at = token.start()
        if word.startswith("def"):
            yield "test", Text(path, line, word.removeprefix("def test_").replace("_", " "))
            continue
        if not word.startswith("#") or line != last + 1:
            yield from (("comment", text) for text in paragraphs(path, first, comment))
            comment, first = [], line
        comment += word.strip('"# ').split("\n")
        last = line + word.count("\n")
    yield from (("comment", text) for text in paragraphs(path, first, comment))


def texts(root):
    """Yields kind and text of everything below root, without build folders."""
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not re.match(r"\.|build\b|out$|__pycache__", f)]
        paths += [Path(folder, name).relative_to(root) for name in names]
    for path in sorted(paths):
        is_page, is_cpp = path.suffix == ".md", path.suffix in CPP
        if not (is_page or is_cpp or path.suffix in HASH) or path == STYLE:
            continue
        body = (root / path).read_text(encoding="utf-8")
        if is_page:
            yield from (("page", text) for text in paragraphs(path, 1, body.split("\n"), True))
        else:
            yield from (cpp_texts if is_cpp else hash_texts)(path, body)
        in_code = (is_page or is_cpp) and path.parts[0] in ("apps", "kernels", "lib")
        if in_code or path == Path("README.md"):
            yield "source", Text(path, 1, body)


def faults(kind, text):
    """Yields rule, line and sentence; for the rule 'length' the number of words of each sentence."""
    begins = True
    for line, sentence in sentences(text):
        for _ in ALONE.finditer(sentence):
            yield "S7", line, sentence
        if not text.is_sentence:
            continue
        n_words = sum(bool(re.search(r"\w", word)) for word in sentence.split())
        yield "length", line, n_words
        if CLAUSE.match(sentence):
            yield "S1", line, sentence
        if kind == "help" and begins and NO_NOUN.match(VALUES.sub("", sentence)):
            yield "S2", line, sentence
        if FRAGMENT.match(sentence):
            yield "S3", line, sentence
        if n_words > MOST_WORDS:
            yield "S6", line, f"({n_words} words) {sentence}"
        begins = False


GAP = r"(?:\s|//+|#)+"  # a line of a comment may end within a phrase


class Rule:
    """A line of words.txt: a count for each kind, '.' for a kind without one, 'NAME: what to say'."""

    def __init__(self, line, where):
        cells = line.split(None, len(KINDS))
        if not re.fullmatch(rf"(\s*(\d+|\.)\s){{{len(KINDS)}}}\s*[^:]+: .+", line):
            sys.exit(f"{where}: expected {len(KINDS)} counts and 'NAME: what to say', found '{line}'")
        self.most = {kind: int(n) for kind, n in zip(KINDS, cells) if n != "."}
        self.name, self.instead = cells[-1].split(": ", 1)
        self.forms = [form.strip() for form in self.name.split(",")]
        self.first_words = {form.split()[0].lower() for form in self.forms}
        # The forms as words of prose, and as words of names such as node_law and NodeLaw.
        any_case = "|".join(GAP.join(map(re.escape, form.split())) for form in self.forms)
        in_name = "|".join(form.capitalize() for form in self.forms if form.isalpha())
        names = rf"|(?<=[a-z0-9])(?:{in_name})(?![a-z])" if in_name else ""
        self.pattern = re.compile(rf"(?<![A-Za-z])(?i:{any_case})(?![a-z]){names}")

    def line(self, counts):
        cells = "".join(f"{counts.get(kind, '.'):>8}" for kind in KINDS)
        return f"{cells}  {self.name}: {self.instead}"

    def find(self, text, lowered):
        """Yields number and text of the line of each match."""
        # A pattern takes longer than a look for its first words.
        if any(word in lowered for word in self.first_words):
            for match in self.pattern.finditer(text.body):
                n = text.body.count("\n", 0, match.start())
                yield text.line + n, text.body.split("\n")[n].strip()


def find(root, words):
    """Returns the places of each rule and kind. words: rules of words, by kind."""
    places = defaultdict(list)
    for kind, text in texts(root):
        if kind != "source":
            text = text._replace(body=prose(text.body))
            for name, line, shown in faults(kind, text):
                places[name, kind].append((text.path, line, shown))
        lowered = text.body.lower()
        for rule in words[kind]:
            for line, shown in rule.find(text, lowered):
                places[rule.name, kind].append((text.path, line, shown))
    if not places:
        sys.exit(f"{root}: no texts found")
    return places


def show(places):
    for path, line, text in places:
        print(f"{path}:{line}: {' '.join(text.split())}")


def print_stats(rules, places):
    print("".join(f"{kind:>8}" for kind in KINDS))
    for rule in rules:
        print(rule.line({kind: len(places[rule.name, kind]) for kind in rule.most}))
    lengths = [[n for _, _, n in places["length", kind]] for kind in KINDS[:-1]]
    print("".join(f"{len(n):8}" for n in lengths) + "       .  sentences")
    print("".join(f"{sum(n) / max(1, len(n)):8.1f}" for n in lengths) + "       .  mean words a sentence")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--words", type=Path, default=Path(__file__).with_name("words.txt"))
    parser.add_argument("--list", nargs="+", metavar=("RULE", "KIND"), help="print the places of a rule")
    parser.add_argument("--stats", action="store_true", help="print all counts and mean words a sentence")
    parser.add_argument("--update", action="store_true", help="lower the counts in words.txt")
    options = parser.parse_args()

    lines = options.words.read_text(encoding="utf-8").splitlines()
    rules = {i: Rule(line, f"{options.words}:{i + 1}") for i, line in enumerate(lines)
             if line.strip() and not line.startswith("#")}
    words = [rule for rule in rules.values() if not re.fullmatch(r"S\d", rule.name)]
    places = find(options.root, {kind: [rule for rule in words if kind in rule.most] for kind in KINDS})

    if options.list:
        name, *kinds = options.list
        listed = [(rule.name, kind) for rule in rules.values() if name in (rule.name, *rule.forms)
                  for kind in rule.most if kind in (kinds or KINDS)]
        if not listed:
            sys.exit(f"--list: {options.words} has no counts of '{' '.join(options.list)}'")
        for key in listed:
            show(places[key])
        return
    if options.stats:
        print_stats(rules.values(), places)
        return

    risen = fallen = 0
    for i, rule in rules.items():
        counts = {kind: len(places[rule.name, kind]) for kind in rule.most}
        for kind, n in counts.items():
            if n > rule.most[kind]:
                risen += 1
                print(f"{rule.name}, {kind}: {n}, expected at most {rule.most[kind]}: {rule.instead}\n  --list "
                      f"'{rule.forms[0]}' {kind} prints all places; those in the files changed last:")
                found = places[rule.name, kind]
                changed = {path: (options.root / path).stat().st_mtime for path, _, _ in found}
                show(sorted(found, key=lambda place: changed[place[0]])[-SHOWN:])
        fallen += sum(n < rule.most[kind] for kind, n in counts.items())
        lines[i] = rule.line({kind: min(n, rule.most[kind]) for kind, n in counts.items()})
    if options.update:
        options.words.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif fallen:
        print(f"{fallen} counts have fallen: lower them with check-words.py --update")
    print(f"{len(rules)} rules, {risen} counts have risen")
    sys.exit(1 if risen else 0)


if __name__ == "__main__":
    main()
