"""SIGTERM, by which a machine is taken away, and Ctrl-C: finish the step, write a checkpoint, and stop."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command goes on
CHILD_ENDED = getattr(signal, "SIGCHLD", None)  # Windows has none


class Preempted(SystemExit):
    """Stopped because SIGTERM asked for it; a process that does not catch it ends with code 75."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = TRY_AGAIN


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C, after a checkpoint was written."""


@dataclass
class Notice:
    """Which signal has come, if any. Before `patient` is set there is nothing to save, and it stops at once."""

    came: int = 0
    patient: bool = False
    children: Any = None
    """Who was told of children that end: not while it stops, for they may have got SIGTERM too, and break the step."""

    def receive(self, number: int, _: object) -> None:
        if self.came == number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: whoever does not want to wait need not
        if not self.came and CHILD_ENDED is not None:
            self.children = signal.signal(CHILD_ENDED, signal.SIG_DFL)
        self.came = self.came or number
        if not self.patient:
            raise self.stop("before a step was taken. The same command begins again.")

    def stop(self, when: str) -> BaseException:
        """What to raise: SIGTERM, also of another rank, asks to be tried again; Ctrl-C is Ctrl-C."""
        if self.came == signal.SIGINT:
            return Interrupted(f"Stopped by Ctrl-C {when}")
        return Preempted(f"Stopped by SIGTERM {when}")


@contextmanager
def stoppable() -> Iterator[Notice]:
    """Take SIGTERM and Ctrl-C as a notice in here; then whoever had them before has them again.

    Only the main thread can. Ctrl-C that somebody else has taken is left to them.
    """
    notice = Notice()
    before: dict[signal.Signals, Any] = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.default_int_handler
    if before[signal.SIGTERM] is None or threading.current_thread() is not threading.main_thread():
        yield notice
        return
    for number in before:
        signal.signal(number, notice.receive)
    try:
        yield notice
    except RuntimeError as error:
        notice.patient = True
        if not notice.came and "killed by signal: Terminated" in str(error):
            time.sleep(1)  # who has stopped a reader of ours may be about to stop us
        if notice.came:
            raise notice.stop("in the middle. The same command goes on from the last checkpoint.") from error
        raise
    else:
        if notice.came:  # so that a sweep does not begin the next one
            raise notice.stop("after the end of the training.")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if notice.children is not None and CHILD_ENDED is not None:
            now: Any = signal.getsignal(CHILD_ENDED)  # the first reader of data may have come after the signal
            signal.signal(CHILD_ENDED, _but_for_these(notice.children if now is signal.SIG_DFL else now))


def _but_for_these(told: Any) -> Any:
    """Who is told of children that end, but for those that are left now: they were stopped with us, and it is no error.

    Readers of data are such children: they live as long as the traceback of the stop, often to the end of the process.
    """
    left = multiprocessing.active_children()

    def tell(number: int, frame: object) -> None:
        for child in left:
            child.is_alive()  # who has ended is taken off the system's list, and torch finds no fault in it
        told(number, frame)

    return tell if callable(told) and left else told
