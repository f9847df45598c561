"""Files that are whole or not there: atomic writes, checked reads, and a lock that dies with its process."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

MAGIC = b"zosam checkpoint 1\n"


class Busy(RuntimeError):
    """Another process is at work in this folder."""


def write(path: Path, content: bytes) -> None:
    """Write aside, flush to disk, rename: after a crash the file is the old or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
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


def write_json(path: Path, content: Any) -> None:
    write(path, (json.dumps(content, indent=1) + "\n").encode())


def save(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write the checkpoint of `step`, with its checksum; the last `keep` stay."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    path = folder / f"checkpoint-{step:09d}.pt"
    write(path, MAGIC + hashlib.sha256(payload).digest() + payload)
    for old in checkpoints(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def load_latest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, or None; a damaged one is named in a warning and passed over."""
    for path in reversed(checkpoints(folder)):
        try:
            return load(path)
        except ValueError as error:
            warnings.warn(f"{error}; going back to the one before, or to the beginning", stacklevel=2)
    return None


def load(path: Path) -> dict[str, Any]:
    """A checkpoint, if it is what was written; it holds data only, nothing in it is run."""
    content = path.read_bytes()
    head, payload = len(MAGIC) + 32, content[len(MAGIC) + 32 :]
    if not content.startswith(MAGIC) or content[len(MAGIC) : head] != hashlib.sha256(payload).digest():
        raise ValueError(f"{path} is damaged or no checkpoint of ours")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} holds more than data, or less ({type(error).__name__})") from error
    return state


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.pt"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process alone; the lock goes when the process does, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"{folder} is in use by another process; wait for it, or train into another folder") from None
        for aside in folder.glob(".*.[0-9]*"):  # what a killed process has left half-written
            aside.unlink(missing_ok=True)
        yield
