"""One process at a time in a folder: a lock that dies with its process and notices when the folder was moved away."""

from __future__ import annotations

import errno
import os
import re
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from zosam.files import NotWritten, not_written

LOCK, MARKER = ".lock", ".lock-by-name"
POLL = 0.02  # seconds from one look at a lock to the next
T = TypeVar("T")
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}


class Busy(RuntimeError):
    """Another process is at work in this folder."""


class Held:
    """A folder that this process holds."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder, self.file, self.number = folder, file, _number(file)

    @property
    def intact(self) -> bool:
        """Whether it is still the folder that was locked: what was moved away keeps its lock, not its name."""
        return _number(self.file) == self.number

    def check(self) -> None:
        """Refuse to go on in another folder than the one that was locked."""
        if not self.intact:
            raise NotWritten(
                f"{self.folder} was moved or removed while it was in use; nothing more is written to it. What it held"
                " is whole: the same command, with the folder where it is now, goes on"
            )


@contextmanager
def locked(folder: Path, wait: float = 0.2) -> Iterator[Held]:
    """Hold the folder for this process alone, at most `wait` seconds later; what killed ones have left is removed.

    Who only looks whether it is held, holds it for a moment: that long is always waited.

    The lock is the system's and goes when the process does, however it ends. On a file system without locks a file
    that names the process stands for it, and one whose process has died on this machine is passed over.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _acquired(folder / LOCK, folder / MARKER, wait)
    except Timeout:
        raise Busy(f"{folder} is in use by another process; wait for it, or use another folder") from None
    except OSError as error:
        raise not_written(folder, error) from error
    try:
        for aside in folder.rglob(".*.[0-9]*"):
            if re.fullmatch(r"\..+\.\d+", aside.name) and aside.is_file():
                aside.unlink(missing_ok=True)
        yield Held(folder, Path(lock.lock_file))
    finally:
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether some process is at work in the folder, as far as this one can see."""
    kinds = (
        (folder / LOCK, FileLock(folder / LOCK, fallback_to_soft=False)),
        (folder / MARKER, SoftFileLock(folder / MARKER)),
    )
    return any(os.path.exists(file) and _in_other_hands(lock) for file, lock in kinds)


def _in_other_hands(lock: BaseFileLock) -> bool:
    try:
        with lock.acquire(timeout=POLL, poll_interval=POLL):  # a mark that a dead process has left takes two looks
            return False
    except Timeout:
        return True
    except OSError:  # no right to write there, or no locks: a mark that is there counts
        return isinstance(lock, SoftFileLock)


@contextmanager
def alone_with(file: Path, wait: float = 60.0) -> Iterator[None]:
    """Be the only process that reads and writes this file; others are waited for."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = _acquired(file.with_name(f".{file.name}{LOCK}"), file.with_name(f".{file.name}{MARKER}"), wait)
    except Timeout:
        raise Busy(f"{file} has been in use by another process for {wait:g} seconds; try again later") from None
    except OSError as error:
        raise not_written(file, error) from error
    try:
        yield
    finally:
        lock.release()


def work_through(todo: Iterable[T], is_done: Callable[[T], bool], work: Callable[[T], None], wait: float = 2.0) -> None:
    """Do all that is to do, beside any number of processes that do the same: each thing is done by one of them.

    `work` raises `Busy` where another is at it: then it is come back to, until it is done.
    """
    queue, busy = deque(todo), 0
    while queue:
        now = queue.popleft()
        if is_done(now):
            continue
        try:
            work(now)
            busy = 0
        except Busy:
            queue.append(now)
            busy += 1
            if busy >= len(queue):  # all that is left is in other hands
                time.sleep(wait)


def _acquired(path: Path, marker: Path, wait: float) -> BaseFileLock:
    """The system's lock on `path`; where there is none, the file `marker` that stands for one."""
    lock: BaseFileLock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout=wait, poll_interval=POLL)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warnings.warn(
            f"{path.parent} is on a file system without locks ({error.strerror}): the file {marker.name} stands for"
            " one. If a training on another machine was killed, remove it there before you go on",
            stacklevel=5,
        )
        lock = SoftFileLock(marker)
        lock.acquire(timeout=wait, poll_interval=POLL)
    return lock


def _number(file: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
