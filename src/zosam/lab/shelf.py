"""What lies in a folder of runs: which run each folder holds, how far it came, and whether somebody is at it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zosam import files
from zosam.lab.locks import is_held
from zosam.lab.record import NUMBERS, read_record
from zosam.lab.run import Run
from zosam.lab.settings import Choice
from zosam.names import find

Status = Literal["finished", "training", "stopped", "damaged"]
Sort = Literal["name", "accuracy", "time", "changed"]
WRITTEN = ("run.json", "record.json", "steps.csv")  # by a training while it goes on


@dataclass(frozen=True)
class Found:
    """A run's folder."""

    path: Path
    status: Status
    """damaged: its files cannot be read. stopped: it is not finished, and no process is at work there."""
    what: Run | None = None
    epochs: Sequence[dict[str, Any]] = ()
    why: str = ""
    """What is wrong with one that is damaged."""

    @property
    def last(self) -> dict[str, Any]:
        return self.epochs[-1] if self.epochs else {}

    @property
    def seconds(self) -> float:
        return sum(float(epoch["seconds"]) for epoch in self.epochs)

    @property
    def idle_for(self) -> float:
        """Seconds since a training wrote something there."""
        return time.time() - (max(_written(self.path / name) for name in WRITTEN) or _written(self.path))

    def as_record(self) -> dict[str, Any]:
        """For programs; what is not known yet is null."""
        spent = {"seconds": self.seconds, "idle_for": self.idle_for}
        told = {"folder": str(self.path), "status": self.status, "why": self.why}
        description = None if self.what is None else self.what.description
        return told | {name: self.last.get(name) for name in NUMBERS} | spent | {"run": description}


def _written(file: Path) -> float:
    """When; 0 for what is not there, or is gone by now."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def look(root: Path) -> Iterator[Found]:
    """Every run in the folder, or the run whose folder it is, by name."""
    if not root.is_dir():
        raise ValueError(
            f"there is no folder {str(root)!r}: name the one that `zosam train` has made, zosam runs FOLDER"
        )
    for path in [root, *sorted(root.iterdir())]:
        if _is_run(path):
            yield _found(path)


def unread(root: Path) -> str:
    """A sentence on the runs in the folder that cannot be read; nothing if there are none."""
    count = sum(run.status == "damaged" for run in look(root)) if root.is_dir() else 0
    return f"{count} of the runs in {root} cannot be read: `zosam runs {root}` says why" if count else ""


def _is_run(path: Path) -> bool:
    try:
        return (path / "run.json").is_file() or (path / "record.json").is_file()
    except PermissionError:  # it may be one
        return True


def _found(path: Path) -> Found:
    try:
        if not (path / "record.json").is_file():  # no epoch has ended
            content: dict[str, Any] = {"status": "training", "epochs": [], **files.read_json(path / "run.json")}
        else:
            content = read_record(path)
        what = Run.read(content.get("run"))
    except (ValueError, OSError) as error:
        return Found(path, "damaged", why=str(error))
    status: Status = "finished" if content["status"] == "finished" else "training" if is_held(path) else "stopped"
    return Found(path, status, what, content["epochs"])


ORDERS: dict[Sort, Callable[[Found], Any]] = {
    "name": lambda run: run.path.name,
    "accuracy": lambda run: -run.last.get("test_accuracy", -1),
    "time": lambda run: -run.seconds,
    "changed": lambda run: run.idle_for,
}


def having(wanted: Sequence[str]) -> Callable[[Found], bool]:
    """Whether the fields of a run are as "field=value" says; optimizer=looksam holds whatever its settings are."""
    fields = [_parted(text) for text in wanted]
    return lambda run: all(_fits(run, *field) for field in fields)


def _parted(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise ValueError(f"--where takes field=value, such as optimizer=sam, not {text!r}")
    return find({field: field for field in Run.__dataclass_fields__}, name.strip(), "field of a run"), value.strip()


def _fits(run: Found, name: str, wanted: str) -> bool:
    if run.what is None:
        return False
    value = getattr(run.what, name)
    if isinstance(value, Choice):
        return wanted in (value.name, str(value), value.whole)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value) == float(wanted)
        except ValueError:
            return False
    return str(value).lower() == wanted.lower()
