"""Finished runs, wherever they lie: in a folder of runs, or as committed JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zosam import files
from zosam.lab.locks import alone_with
from zosam.lab.paper.notes import CORRUPTED, SPEED, require_right
from zosam.lab.record import Record, read_record, what_is_wrong
from zosam.lab.run import Run, finished

OWN_FILES = {"record", "run", "kernels"}  # of a run's folder; every other JSON file was measured of the network
MEASURED = {CORRUPTED, SPEED, "trial"}  # what a line may say beside its record


@dataclass
class Book:
    """The records that are known; a run's folder goes before a line about it."""

    root: Path = Path("runs")
    lines: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, root: str | Path = "runs", results: Iterable[Path] = ()) -> Book:
        """The folder `root`, and what the JSON-lines files in `results` say of runs that are not there."""
        lines: dict[str, dict[str, Any]] = {}
        for file in results:
            for number, text in enumerate(_texts(file), 1):
                try:
                    entry = _entry(text)
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{file}, line {number} is no record of a run ({error})") from None
                lines[entry["key"]] = lines.get(entry["key"], {}) | entry  # what one file has measured, others may lack
        return cls(Path(root), lines)

    def entries(self) -> list[dict[str, Any]]:
        """Every finished run that is known, as a line would have it; the folder goes before the lines."""
        found: dict[str, dict[str, Any]] = dict(self.lines)
        for file in sorted(self.root.glob("*/record.json")):
            try:
                record = finished(file.parent)
            except (ValueError, OSError):  # begun, damaged or not ours to look into
                continue
            notes = [note.stem for note in file.parent.glob("*.json") if note.stem not in OWN_FILES]
            found[record.run.key] = json.loads(line(record, notes))
        return list(found.values())

    def get(self, run: Run) -> Record | None:
        """The record of `run`, if it is finished."""
        found, entry = self._of_folder(run), self.lines.get(run.key)
        if found is not None or entry is None:
            return found
        return Record(run, self.root / run.folder, entry["epochs"], entry["classes"])

    def holds(self, run: Run) -> bool:
        """Whether the folder of a finished run is there, not a line about it alone."""
        return self._of_folder(run) is not None

    def _of_folder(self, run: Run) -> Record | None:
        try:
            return finished(self.root / run.folder, run)
        except (ValueError, OSError):  # begun, damaged or not ours to look into: `run` will see to it
            return None

    def note(self, run: Run, name: str) -> Any:
        """What was measured of the trained network, such as `corrupted`: its accuracy on CIFAR-10-C. None: nothing."""
        folder = self.root / run.folder
        if os.path.exists(folder / f"{name}.json"):  # False where nobody may look
            return _note(folder, name)
        return self.lines.get(run.key, {}).get(name)

    def keep(self, run: Run, name: str, value: Any) -> None:
        """Keep something measured of the trained network in its folder."""
        files.write_json(self.root / run.folder / f"{name}.json", value)


def is_idle(epochs: Iterable[dict[str, Any]]) -> bool:
    """Whether a training on one thread had its core to itself: it computed in 95 % of its time, or more."""
    known = [(e["cpu_seconds"], e["seconds"]) for e in epochs if "cpu_seconds" in e]
    return bool(known) and sum(cpu for cpu, _ in known) >= 0.95 * sum(wall for _, wall in known)


def line(record: Record, notes: Iterable[str] = (), more: dict[str, Any] | None = None) -> str:
    """One line of JSON that says all of a finished run but its weights, and what `more` adds."""
    content = read_record(record.path)
    entry = {"key": record.run.key, "run": record.run.description, "made_with": content["made_with"]}
    entry |= {"classes": record.classes, "idle": is_idle(record.epochs), "epochs": record.epochs}
    for name in notes:
        if (record.path / f"{name}.json").exists():
            entry[name] = _note(record.path, name)
    return json.dumps(entry | (more or {}))


def add_lines(path: Path, lines: Mapping[str, str]) -> int:
    """Add lines, by the key of their run, to a file; a run that is there gets its new line. How many there are then.

    Several processes may do so at once: one waits for the other.
    """
    with alone_with(path):
        kept = {_key(path, old): old for old in _texts(path)} if path.exists() else {}
        kept |= lines
        files.write(path, "".join(f"{text}\n" for text in kept.values()).encode())
        return len(kept)


def _texts(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} holds no lines of results ({error})") from None


def _entry(text: str) -> dict[str, Any]:
    """What a line says, if all that others rely on can be right."""
    entry = json.loads(text)
    if not isinstance(entry, dict):
        raise ValueError(f"it holds a {type(entry).__name__}")
    key = Run.read(entry.get("run")).key
    if entry.get("key") != key:
        raise ValueError("its key is of another run")
    wrong = what_is_wrong(entry) + ([] if isinstance(entry.get("idle", True), bool) else ["idle"])
    if wrong:
        raise ValueError(f"{', '.join(wrong)} cannot be right")
    for name in MEASURED & entry.keys():
        require_right(name, entry[name])
    return entry


def _note(folder: Path, name: str) -> dict[str, Any]:
    file = folder / f"{name}.json"
    note = files.read_json(file)
    require_right(name, note, str(folder))
    return note


def _key(path: Path, text: str) -> str:
    try:
        return str(json.loads(text)["key"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} holds a line that is no record of a run ({error}): nothing was added") from None
