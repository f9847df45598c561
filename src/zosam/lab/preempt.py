"""SIGTERM, by which a machine is taken away: finish the step, write a checkpoint, ask to be tried again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command goes on


class Preempted(SystemExit):
    """Stopped because SIGTERM asked for it; a process that does not catch it ends with code 75."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = TRY_AGAIN


@dataclass
class Notice:
    """Whether SIGTERM has come. Before `patient` is set there is nothing to save, and it stops at once."""

    came: bool = False
    patient: bool = False
    children: Any = None
    """Who was told of children that end: not while it stops, for they may have got SIGTERM too, and break the step."""

    def receive(self, *_: object) -> None:
        if not self.came:
            self.came, self.children = True, signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if not self.patient:
            raise Preempted("Stopped by SIGTERM before a step was taken. The same command begins again.")


@contextmanager
def sigterm() -> Iterator[Notice]:
    """Take SIGTERM as a notice in here; then whoever had it before has it again. Only the main thread can."""
    notice = Notice()
    before = signal.getsignal(signal.SIGTERM)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield notice
        return
    signal.signal(signal.SIGTERM, notice.receive)
    try:
        yield notice
    except RuntimeError as error:
        if notice.came:
            raise Preempted("Stopped by SIGTERM. The same command goes on from the last checkpoint.") from error
        raise
    else:
        if notice.came:  # so that a sweep does not begin the next one
            raise Preempted("Stopped by SIGTERM after the end of the training.")
    finally:
        signal.signal(signal.SIGTERM, before)
        if notice.children is not None:
            signal.signal(signal.SIGCHLD, notice.children)
