#!/usr/bin/env python3
"""Draws results: records, and other files that the tools write with -o.

    plot.py xy FILE... --x FIELD --y FIELD [--by FIELD,...] [-o out.svg]
    plot.py PLOT FILE... [-o out.svg]

FILE holds records of the benchmarks or of pig-eval (-o, or --format jsonl; for the plot xy --format flat
too), or the log of cases that pig-eval -o writes; for the plot loss it is the folder of a run of
s2ft-train. The ending of OUT chooses the format: svg, pdf, png. If several runs repeat a point, the last
one is drawn. Legends have the names that recipes give to policies and drafts; speed takes them from
records of pig-eval among the files.
Needs matplotlib: python3 -m pip install matplotlib
"""
import argparse
import os
import signal
import sys

import plot_adapters
import plot_channels
import plot_fields
import plot_loss
import plot_nested
import plot_policies
import plot_rounds
from plot_common import save
from plot_records import USAGE, fail, holds, read_lines

MODULES = (plot_fields, plot_policies, plot_rounds, plot_nested, plot_channels, plot_adapters, plot_loss)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail("command line", message, f"{self.prog} --help", USAGE)


def picture(path):
    if os.path.splitext(path)[1] not in (".svg", ".pdf", ".png"):
        raise argparse.ArgumentTypeError(f"expected a name that ends in .svg, .pdf or .png, found '{path}'")
    return path


def parsed(argv):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="PLOT")

    def add(name, draw, text, expects, files="FILE"):
        command = commands.add_parser(name, help=text, description=f"Draws {text}. Takes {expects}.")
        command.add_argument("files", nargs="+", metavar=files)
        command.add_argument("-o", "--output", default=f"{name}.svg", metavar="OUT", type=picture,
                             help="the picture: .svg, .pdf or .png (default: %(default)s)")
        command.set_defaults(draw=draw, expects=expects)
        return command

    for module in MODULES:
        module.add_commands(add)
    if argv and argv[0] not in commands.choices:
        if any(flag.split("=")[0] in ("--x", "--y", "--fields") for flag in argv):
            argv = ["xy", *argv]
        elif os.path.exists(argv[0]):
            text, hint = holds(argv[0], read_lines(argv[0]))
            fail("command line", f"expected the name of a plot first; {text}", hint, USAGE)
    return parser.parse_args(argv)


def figure_of(argv):
    """The figure of a command line, and the file that it goes to."""
    args = parsed(argv)
    try:
        return args.draw(args), args.output
    except KeyError as e:
        fail(args.command, f"expected records with the field {e}, found one without it",
             "a tool of another version wrote them: measure again")


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader such as head may leave
    figure, path = figure_of(sys.argv[1:])
    if figure:
        save(figure, path)


if __name__ == "__main__":
    main()
