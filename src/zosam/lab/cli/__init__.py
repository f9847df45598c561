"""The command line: which words call which function. Nothing is imported before it is known what is asked for."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import shutil
import sys
import textwrap
from pathlib import Path

from zosam import __version__
from zosam.names import nearest

COMMANDS = {
    "demo": "cli.catalogue:demo",
    "list": "cli.catalogue:list_",
    "train": "cli.runs:train",
    "show": "cli.runs:show",
    "runs": "cli.many:runs",
    "compare": "cli.many:compare",
    "eval": "cli.networks:eval_",
    "export": "cli.networks:export",
    "serve-bench": "cli.networks:serve_bench",
    "doctor": "cli.networks:doctor",
    "data get": "cli.data_sets:get",
    "data corrupt": "cli.data_sets:corrupt",
    "table": "paper.commands:table",
    "figure": "paper.commands:figure",
    "evidence": "paper.answers:evidence",
    "report": "paper.commands:report",
}


def main(words: list[str] | None = None) -> None:
    """Do what the words say; by default those that the program was called with."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["--version"]:
        print(f"zosam {__version__}")
        return
    if not words or words[0] in {"-h", "--help"}:
        print(usage())
        sys.exit(0 if words else 2)
    name = next((n for n in COMMANDS if words[: n.count(" ") + 1] == n.split()), None)
    if name is None:
        asked = " ".join(words[:2] if words[0] == "data" else words[:1])
        print(
            f"zosam: there is no command {asked!r}. {nearest(asked, COMMANDS)}`zosam --help` names them",
            file=sys.stderr,
        )
        sys.exit(2)
    module, _, function = COMMANDS[name].partition(":")
    command = getattr(importlib.import_module(f"zosam.lab.{module}"), function)
    from zosam.lab.cli.arguments import call

    call(command, words[name.count(" ") + 1 :], f"zosam {name}")


def usage() -> str:
    """What `zosam --help` says: each command with the first line of its documentation, read without importing it."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    lines = [
        textwrap.fill(f"  {name:14}{_first_line(place)}", width, subsequent_indent=" " * 16)
        for name, place in COMMANDS.items()
    ]
    return "\n".join(
        ["zosam: sparse training that is cheap, robust and real.", "", *lines, "", "`zosam COMMAND --help` says more."]
    )


def _first_line(place: str) -> str:
    module, _, function = place.partition(":")
    file = Path(__file__).parents[1] / f"{module.replace('.', '/')}.py"
    found = next(n for n in ast.parse(file.read_bytes()).body if isinstance(n, ast.FunctionDef) and n.name == function)
    return (ast.get_docstring(found) or "").partition("\n")[0]
