"""Files that are whole or not there: atomic writes, checked reads, and a lock that dies with its process.

What may come out of reading a file, here and everywhere in the package: ValueError if its content is not what it
should be (DataError, a ValueError, for data sets), OSError if it is not there or the system refuses. Nothing that is
read is run, and no claim in a file is believed before it was compared with the file's size.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zosam.lab import serialize as tree

MAGIC, VERSION = b"zosam checkpoint ", b"2"
LARGEST_JSON = 1 << 26  # a record of a million epochs is smaller


class Busy(RuntimeError):
    """Another process is at work in this folder."""


class NotWritten(OSError):
    """A file could not be written; what was there before is whole."""


class OtherVersion(ValueError):
    """A checkpoint that is whole, but of another version."""


def write(path: Path, content: bytes) -> None:
    """Write aside, flush to disk, rename: after a crash the file is the old or the new one, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise not_written(path, error) from error


def not_written(what: object, error: OSError) -> NotWritten:
    reason = error.strerror or str(error)
    return NotWritten(
        f"{what} could not be written ({reason}); what was there before is whole."
        " Make room, or give a folder that can be written to: the same command goes on"
    )


def write_json(path: Path, content: Any) -> None:
    write(path, (json.dumps(content, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ValueError(f"{path.stat().st_size:,} bytes are too many")
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as a JSON object ({error})") from None
    return content


def save(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write the checkpoint of `step`, with its checksum; it and those before it stay, `keep` in all."""
    payload = tree.dumps(state)
    path = folder / f"checkpoint-{step:09d}.pt"
    write(path, MAGIC + VERSION + b"\n" + hashlib.sha256(payload).digest() + payload)
    there = checkpoints(folder)
    last = there.index(path) + 1
    for other in there[: max(last - keep, 0)] + there[last:]:  # a later one was damaged, or we would not be here
        other.unlink(missing_ok=True)
    return path


def load_latest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, or None; a damaged one is named in a warning and passed over."""
    for path in reversed(checkpoints(folder)):
        try:
            return load(path)
        except OtherVersion:
            raise
        except ValueError as error:
            warnings.warn(f"{error}; going back to the one before, or to the beginning", stacklevel=2)
    return None


def load(path: Path) -> dict[str, Any]:
    """A checkpoint, if it is what was written; it holds data only, nothing in it is run."""
    with path.open("rb") as file:
        head = re.match(MAGIC + rb"(\d{1,9})\n(.{32})", file.read(len(MAGIC) + 42), re.DOTALL)
        file.seek(0 if head is None else head.end())
        payload = b"" if head is None else file.read()
    if head is None or head[2] != hashlib.sha256(payload).digest():
        raise ValueError(f"{path} is damaged or no checkpoint of ours")
    if head[1] != VERSION:
        raise OtherVersion(
            f"{path} is of version {int(head[1])}, and this zosam reads version {int(VERSION)}: go on with"
            f" the zosam that has begun it, or move {path.parent} away to train anew"
        )
    try:
        state = tree.loads(payload)
    except ValueError as error:
        raise ValueError(f"{path} holds {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds a {type(state).__name__}, not the state of a training")
    return state


def checkpoints(folder: Path) -> list[Path]:
    """Those of a folder, in the order of their steps."""
    there = [p for p in folder.glob("checkpoint-*.pt") if re.fullmatch(r"checkpoint-\d{9,18}\.pt", p.name)]
    return sorted(there, key=lambda p: (len(p.name), p.name))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process alone; the lock goes when the process does, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a")
    except OSError as error:
        raise not_written(folder, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"{folder} is in use by another process; wait for it, or train into another folder") from None
        for aside in folder.rglob(".*.[0-9]*"):  # what a killed process has left half-written
            if re.fullmatch(r"\..+\.\d+", aside.name) and aside.is_file():
                aside.unlink(missing_ok=True)
        yield
