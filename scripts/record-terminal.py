#!/usr/bin/env python3
"""Records docs/img/terminal.svg: runs commands under a pseudo-terminal and draws what they print.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install rich
    /tmp/venv/bin/python scripts/record-terminal.py            writes docs/img/terminal.svg
    /tmp/venv/bin/python scripts/record-terminal.py --text     prints the recording, writes nothing

Needs the tools in build/bin (or --bin FOLDER) and rich from PyPI. Commands run in the repository root, on the
CPU. Each is shown as typed; a progress line is left out once it has been overwritten.
"""
import argparse
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 106
COMMANDS = [
    ("pig-generate -r pig/hybrid-tiny-16m -f recipes/demo/lighthouse-logbook.txt --stop $'\\n' \\\n"
     "    -p $'\\n\\nQuestion: What is the special magic value for amber-anchor?\\nAnswer:'"),
    'sequoia-generate -r sequoia/tiny-16m "It was late in the evening when" -n 30',
    "pig-generate -m tiny-16m -s cache.kind=streamin",
]


def printed(command, tools):
    """What a command prints to a terminal of COLUMNS columns."""
    master, slave = pty.openpty()
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS),
                        "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(["stty", "cols", str(COLUMNS), "rows", "60"], stdin=slave, check=True)
    process = subprocess.Popen(["bash", "-c", command], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                               stdout=slave, stderr=slave, close_fds=True)
    os.close(slave)
    output = b""
    while True:
        try:
            output += os.read(master, 65536)
        except OSError:  # the last writer has closed the terminal
            break
    os.close(master)
    process.wait()
    return output.decode(errors="replace")


def on_screen(output):
    """The lines that stay on the screen: a carriage return overwrites a line, ESC [ J and ESC [ K clear it."""
    lines = []
    for line in output.replace("\r\n", "\n").split("\n"):
        kept = re.split(r"\r|\x1b\[2?[JK]", line)[-1]
        lines.append(kept.rstrip())
    return "\n".join(lines).strip("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/bin", metavar="FOLDER", help="the tools")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/img/terminal.svg", metavar="FILE")
    parser.add_argument("--text", action="store_true", help="print the recording, write nothing")
    args = parser.parse_args()
    try:
        from rich.console import Console
        from rich.terminal_theme import MONOKAI
        from rich.text import Text
    except ImportError:
        parser.error("expected the Python module rich, found none: pip install rich, in a virtual environment")

    console = Console(record=True, width=COLUMNS, force_terminal=True, color_system="truecolor", highlight=False,
                      file=sys.stdout if args.text else open(os.devnull, "w"))
    for number, command in enumerate(COMMANDS):
        if number:
            console.print()
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(on_screen(printed(command, args.bin.absolute()))))
    if args.text:
        return
    svg = console.export_svg(title="tandem", theme=MONOKAI, unique_id="terminal")
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.S)  # no font from the network
    svg = svg.replace("Fira Code, monospace", "Fira Code, Menlo, Consolas, DejaVu Sans Mono, monospace")
    svg = re.sub(r"[ \t]+\n", "\n", svg)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(svg, encoding="utf-8")
    print(f"{args.output}: {len(svg)} bytes")


if __name__ == "__main__":
    main()
