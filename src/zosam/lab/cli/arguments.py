"""From the words of a command line to the call of a function; what is wrong is told in a sentence."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import GenericAlias
from typing import Any, get_args

import torch
import tyro
from rich.console import Console

import zosam
from zosam.lab.locks import Busy
from zosam.lab.preempt import Preempted
from zosam.lab.radius import Radius
from zosam.lab.settings import Chosen
from zosam.lab.terminal import console, plain

NO_MEMORY = re.compile("not enough memory|can't allocate memory")  # as torch says it, by system
OURS = Path(zosam.__file__).parent
MENDABLE = (ValueError, OSError, FloatingPointError, ImportError, Busy, MemoryError, torch.OutOfMemoryError)
Field = tyro.constructors.PrimitiveTypeInfo
Spec = tyro.constructors.PrimitiveConstructorSpec[Any]
registry = tyro.constructors.ConstructorRegistry()


@registry.primitive_rule
def chosen(field: Field) -> Spec | None:
    """How a command line writes what is chosen by name: `rigl:every=50`. The run itself reads it."""
    if field.type not in (Chosen, Radius):
        return None
    return Spec(
        nargs=1,
        metavar="NUMBER|NAME[:KEY=VALUE,...]" if field.type is Radius else "NAME[:KEY=VALUE,...]",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: isinstance(value, Chosen),
        str_from_instance=lambda value: [value.default],
    )


@registry.primitive_rule
def nothing(field: Field) -> Spec | None:
    """How help says that nothing is given by default."""
    if field.type is not type(None):
        return None
    return Spec(1, "none", lambda words: None, lambda value: value is None, lambda value: ["none"], ("none",))


@registry.primitive_rule
def several(field: Field) -> Spec | None:
    """As many words as there are; help calls no word none as well."""
    if field.type_origin is not tuple:
        return None
    as_list: Any = GenericAlias(list, get_args(field.type)[:1])
    spec = registry.get_primitive_spec(Field.make(as_list, field.markers))
    assert isinstance(spec, tyro.constructors.PrimitiveConstructorSpec)
    return replace(
        spec,
        instance_from_str=lambda words: tuple(spec.instance_from_str(words)),
        is_instance=lambda value: isinstance(value, tuple) and spec.is_instance(list(value)),
        str_from_instance=lambda value: spec.str_from_instance(value) or ["none"],
    )


def call(command: Callable[..., None], words: Sequence[str], name: str) -> None:
    """Call a command with the words that follow its name, and end as it ends: 0, 2, 75 or 130."""
    try:
        if {"-h", "--help"} & {*words}:
            print(about(command), end="\n\n")
        tyro.cli(command, prog=name, description="", args=words, registry=registry, config=(tyro.conf.DisallowNone,))
        sys.stdout.flush()
    except KeyboardInterrupt as stop:
        console.print(f"\n{stop}" if str(stop) else "\nStopped. The same command goes on.", highlight=False)
        sys.exit(130)
    except Preempted as stop:
        console.print(f"\n{stop}")
        sys.exit(stop.code)
    except BrokenPipeError:
        raise  # the program sees to it
    except Exception as error:
        told = complaint(error)
        if told is None:
            raise
        Console(stderr=True).print(plain(f"zosam: {told}"), style="red", highlight=False, soft_wrap=True)
        sys.exit(2)


def about(command: Callable[..., None]) -> str:
    """What a command says of itself, its paragraphs as wide as the terminal."""
    paragraphs = (inspect.getdoc(command) or "").partition("\n\nArgs:")[0].split("\n\n")
    width = shutil.get_terminal_size().columns
    return "\n\n".join(textwrap.fill(paragraph, width, break_on_hyphens=False) for paragraph in paragraphs)


def complaint(error: Exception) -> str | None:
    """What to tell of an error that its reader can mend; None if it is a bug of ours, which needs its traceback."""
    text = str(error) or type(error).__name__
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or NO_MEMORY.search(text):
        return f"there is not enough memory ({text.splitlines()[0]}): take a smaller batch or network"
    if isinstance(error, MENDABLE):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    theirs = [f for f in traceback.extract_tb(error.__traceback__) if not _is_installed(Path(f.filename))]
    if theirs:  # code of the user's own
        at = theirs[-1]
        return f"{at.filename}, line {at.lineno}: {type(error).__name__}: {text}"
    if isinstance(error, (RuntimeError, IndexError)) and OURS not in Path(last.filename).parents:  # torch, or below it
        on = ", ".join(reversed(getattr(error, "__notes__", ())))
        return f"{on}: {type(error).__name__}: {text}".removeprefix(": ")
    return None


def _is_installed(file: Path) -> bool:
    """Whether it belongs to us, to Python or to a package, and not to the user."""
    return OURS in file.parents or "site-packages" in file.parts or not file.is_file() or _in_python(file)


def _in_python(file: Path) -> bool:
    return Path(os.__file__).parent in file.parents
