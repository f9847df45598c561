"""Whose folder it is: a run's folder says which run it holds, and no other is written there."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zosam import files

if TYPE_CHECKING:
    from zosam.lab.run import Run


def claim(path: Path, what: Run) -> None:
    """Say whose folder this is; one that another configuration wrote is refused."""
    note = path / "run.json"
    if not note.exists():
        files.write_json(note, {"run": what.description, "key": what.key})
        return
    try:
        found = files.read_json(note).get("run")
    except ValueError as error:
        raise ValueError(f"{error}; remove that file to go on, or move {path} away to train anew") from None
    check_same(path, found, what)


def no_run(path: Path) -> ValueError:
    """What to raise of a path that should be the folder of a run with a finished epoch."""
    if (path / "run.json").is_file():
        return ValueError(f"the run in {str(path)!r} has no finished epoch yet")
    told = f"{str(path)!r} is not the folder of a run" if path.exists() else f"there is no folder {str(path)!r}"
    shelf = next((folder for folder in (path, path.parent) if any(folder.glob("*/run.json"))), None)
    return ValueError(told if shelf is None else f"{told}: `zosam runs {shlex.quote(str(shelf))}` lists those there")


def check_same(path: Path, found: Any, what: Run) -> None:
    """Compare the description of a run in a file with the run that it should be."""
    mine = what.description
    if not isinstance(found, dict):
        raise ValueError(f"{path} does not say which run it holds; move it away to train anew")
    differ = [k for k in sorted({*mine, *found}) if found.get(k) != mine.get(k)]
    if differ:
        detail = ", ".join(f"{k} {found.get(k)!r}, not {mine.get(k)!r}" for k in differ)
        raise ValueError(f"{path} was written by another configuration ({detail}); move it away to train anew")
