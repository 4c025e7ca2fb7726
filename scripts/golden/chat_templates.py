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

import chat_cases
import jinja_cases

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "tests" / "data" / "golden" / "chat"
VERSIONS = {"transformers": "5.24.0", "jinja2": "3.1.6"}
DATE = datetime.datetime(2024, 7, 26)
FACTS = VERSIONS | {"made_by": "scripts/golden/chat_templates.py", "date": f"{DATE:%Y-%m-%d}"}
FILE_LIMIT = 1 << 20


class FixedDate(datetime.datetime):
    """Replaces datetime inside transformers, so that strftime_now does not depend on the day."""

    @classmethod
    def now(cls, tz=None):
        return DATE


def outcome(render, *args):
    """The fields that `render` returns, or those of a failure."""
    try:
        return render(*args)
    except Exception as error:
        if type(error) is jinja2.TemplateError:  # raise_exception; Jinja's own errors are subclasses
            return {"raises": str(error)}
        return {"error": True, "reason": type(error).__name__}


def text_fields(text, spans):
    """Text, and the UTF-8 offsets of its generation spans if it has any."""
    spans = [[len(text[:offset].encode()) for offset in span] for span in spans]
    return {"text": text} | ({"spans": spans} if spans else {})


def render_jinja(template, variables):
    compiled = chat_template_utils._compile_jinja_template(template)
    blocks, spans = [], []
    with compiled.environment.activate_tracker(blocks, spans):
        for block in compiled.generate(**variables):
            blocks.append(block)
    return text_fields("".join(blocks), spans)


def render_chat(tokenizer, messages, with_ids, **options):
    """The mask marks the ids that a trainer supervises, by transformers' rule for generation spans."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    spans = []
    if tracked := "endgeneration" in options["chat_template"]:
        _, [spans] = chat_template_utils.render_jinja_template(
            [chat_template_utils._normalize_chat_messages(messages)], return_assistant_tokens_mask=True,
            **tokenizer.special_tokens_map, **options)
    fields = text_fields(text, spans)
    if with_ids:
        tokens = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=tracked, **options)
        fields["ids"] = tokens["input_ids"]
        if tracked:
            fields["mask"] = tokens["assistant_masks"]
    return fields


def jinja_file():
    cases = []
    for group, templates in jinja_cases.GROUPS.items():
        for case in templates:
            template, variables = (case, {}) if isinstance(case, str) else case
            cases.append({"group": group, "template": template} | ({"variables": variables} if variables else {})
                         | outcome(render_jinja, template, variables))
    return {"format": "tandem.jinja/1"} | FACTS | {"cases": cases}


def template_entry(tokenizer, path):
    template = chat_cases.template_text(path)
    tokenizer.bos_token, tokenizer.eos_token = chat_cases.settings_of(path.stem)[0]

    def fields(chat, prompt, tools, documents, variables):
        return render_chat(
            tokenizer, chat_cases.CHATS[chat], chat in chat_cases.WITH_IDS, chat_template=template,
            add_generation_prompt=prompt, tools=chat_cases.TOOLS if tools else None,
            documents=chat_cases.DOCUMENTS if documents else None, **variables)

    names = ["chat", "add_generation_prompt", "tools", "documents", "variables"]
    return {"name": path.stem, "template": template, "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "cases": [dict(zip(names, case)) | outcome(fields, *case)
                      for case in chat_cases.cases_of(path.stem, template)]}


def load_tokenizer():
    tokenizer = transformers.AutoTokenizer.from_pretrained(ROOT / "recipes" / "models" / "tiny-2m")
    tokenizer.pad_token = None
    return tokenizer


def families_file():
    """The committed templates and chats with new ids; "raises" or "error" in place of ids that do not exist."""
    file = json.loads((OUTPUT / "four_families.json").read_text(encoding="utf-8"))
    tokenizer = load_tokenizer()

    def render(template, chat):
        return render_chat(tokenizer, chat, True, chat_template=template, add_generation_prompt=True)

    for entry in file["templates"].values():
        for name, chat in file["messages"].items():
            fields = outcome(render, entry["template"], chat)
            entry["ids"][name] = fields.get("ids", "raises" if "raises" in fields else "error")
    return file


def chat_file():
    tokenizer = load_tokenizer()
    return {"format": "tandem.chat-templates/1"} | FACTS | {
        "chats": chat_cases.CHATS, "tools": chat_cases.TOOLS, "documents": chat_cases.DOCUMENTS,
        "templates": [template_entry(tokenizer, path) for path in sorted(chat_cases.TEMPLATES.glob("*.jinja"))]}


def json_text(content):
    """JSON with a line for each case."""
    def text(value, key=None):
        if key in ("cases", "templates"):
            return "[\n" + ",\n".join(map(text if key == "cases" else parts, value)) + "\n]"
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def parts(value):
        return "{" + ",\n".join(f"{text(k)}:{text(v, k)}" for k, v in value.items()) + "}"

    return parts(content) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the committed files with a new run")
    args = parser.parse_args()
    for name, version in VERSIONS.items():
        if (found := sys.modules[name].__version__) != version:
            raise SystemExit(f"expected {name} {version}, found {found}")
    chat_template_utils.datetime = FixedDate
    stale = []
    for name, text in {"jinja.json": json_text(jinja_file()), "chat_templates.json": json_text(chat_file()),
                       "four_families.json": json.dumps(families_file(), indent=1)}.items():
        path, new = OUTPUT / name, text.encode()
        if len(new) > FILE_LIMIT:
            raise SystemExit(f"{name} has {len(new)} bytes, the limit is {FILE_LIMIT}")
        if args.check and (not path.is_file() or path.read_bytes() != new):
            stale.append(name)
        if not args.check:
            OUTPUT.mkdir(parents=True, exist_ok=True)
            path.write_bytes(new)
        print(f"{path}: {len(new)} bytes", file=sys.stderr)
    if stale:
        raise SystemExit(f"{', '.join(stale)}: differs from a new run; run without --check to write it")


if __name__ == "__main__":
    main()
