"""How long things take beside one another, told in few tries and on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

Clock = Callable[[], float]
Name = TypeVar("Name")
REPEATS = 2
APART, DOUBTED = 1.25, 10.0  # ratios between these are told by two tries
TRIES, MOST_TRIES, ENOUGH_SECONDS = 4, 12, 0.25  # others take more, short ones many
BUSY = 20  # torch is so many times as slow only if its threads wait for cores that others use


def best(
    functions: Mapping[Name, Callable[[], object]], repeats: int = REPEATS, clock: Clock = time.perf_counter
) -> dict[Name, float]:
    """The least time of each, taken in turns so that a busy machine treats them alike."""
    least = dict.fromkeys(functions, float("inf"))
    for round_ in range(repeats + 1):
        for name, function in functions.items():
            start = clock()
            function()
            if round_:  # the first round warms up
                least[name] = min(least[name], clock() - start)
    return least


def ratio(slow: Callable[[], object], fast: Callable[[], object]) -> float:
    """Time of one / time of the other: the least of tries in turns, as few as it takes to see the second win.

    One thread is timed by its CPU time, so that other work on the machine does not count.
    """
    clock: Clock = time.perf_counter if torch.get_num_threads() > 1 else time.process_time
    took, began, found = [float("inf"), float("inf")], time.perf_counter(), 0.0
    for tries in range(1, MOST_TRIES + 1):
        for i, function in enumerate((slow, fast)):
            start = clock()
            function()
            took[i] = min(took[i], clock() - start)
        found = took[0] / max(took[1], 1e-9)
        enough = found < 1 / APART or time.perf_counter() - began > ENOUGH_SECONDS
        if (tries > 1 and APART < found < DOUBTED) or (tries >= TRIES and enough):
            break
    return found


def times(ratio: float) -> str:
    """A ratio for people. One that is larger than what is pruned can give was measured beside other work."""
    return f"{ratio:.1f}" if ratio < BUSY else f"over {BUSY}"
