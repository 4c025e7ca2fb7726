#!/usr/bin/env python3
"""Writes tests/data/golden/chat: Jinja and chat templates with the texts that transformers renders.

    python3 -m venv VENV && VENV/bin/pip install transformers==5.24.0 jinja2==3.1.6
    VENV/bin/python scripts/golden/chat_templates.py [--check]

Tests read the committed files and never run Python.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

import jinja2
import transformers
from transformers.utils import chat_template_utils

import jinja_cases

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "tests" / "data" / "golden" / "chat"
VERSIONS = {"transformers": "5.24.0", "jinja2": "3.1.6"}
DATE = datetime.datetime(2024, 7, 26)


class FixedDate(datetime.datetime):
    """Stands in for datetime inside transformers, so that strftime_now does not depend on the day."""

    @classmethod
    def now(cls, tz=None):
        return DATE


def byte_spans(text, spans):
    """UTF-8 offsets of character spans."""
    return [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in spans]


def outcome(render):
    """The fields of a case that say what a template gives: text and spans, or how it fails."""
    try:
        text, spans = render()
    except Exception as error:
        if type(error) is jinja2.TemplateError:  # subclasses are Jinja's own errors
            return {"raises": str(error)}
        return {"error": True, "reason": type(error).__name__}
    return {"text": text} | ({"spans": byte_spans(text, spans)} if spans else {})


def render_plain(template, variables):
    """Renders without transformers' own variables; the spans are those of the generation tag."""
    compiled = chat_template_utils._compile_jinja_template(template)
    blocks, spans = [], []
    with compiled.environment.activate_tracker(blocks, spans):
        for block in compiled.generate(**variables):
            blocks.append(block)
    return "".join(blocks), spans


def jinja_file():
    cases = []
    for group, templates in jinja_cases.GROUPS.items():
        for case in templates:
            template, variables = (case, {}) if isinstance(case, str) else case
            cases.append({"group": group, "template": template}
                         | ({"variables": variables} if variables else {})
                         | outcome(lambda: render_plain(template, variables)))
    return {"format": "tandem.jinja/1"} | facts() | {"cases": cases}


def facts():
    return VERSIONS | {"made_by": "scripts/golden/chat_templates.py", "date": f"{DATE:%Y-%m-%d}"}


def text_of(content):
    """JSON with a line for each case."""
    def text(value):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def lines(values):
        return "[\n" + ",\n".join(map(text, values)) + "\n]"

    parts = [f"{text(k)}:{lines(v) if k == 'cases' else text(v)}" for k, v in content.items()]
    return "{" + ",\n".join(parts) + "}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the committed files with a new run")
    args = parser.parse_args()
    for name, version in VERSIONS.items():
        if sys.modules[name].__version__ != version:
            raise SystemExit(f"expected {name} {version}, found {sys.modules[name].__version__}")
    chat_template_utils.datetime = FixedDate
    OUTPUT.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, content in {"jinja.json": jinja_file()}.items():
        path, text = OUTPUT / name, text_of(content)
        if not args.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
        print(f"{path}: {len(text.encode())} bytes", file=sys.stderr)
    if stale:
        raise SystemExit(f"differ from a new run: {', '.join(stale)}; run without --check to rewrite them")


if __name__ == "__main__":
    main()
