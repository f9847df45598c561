"""Throughput as a ratio: contestants take turns in one process, and medians are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def seconds(
    contestants: Mapping[str, Callable[[], object]], rounds: int = 15, warmup: int = 2
) -> dict[str, list[float]]:
    """The time of each contestant in each round; they take turns, so that a slow moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warmup + rounds):
        for name, contestant in contestants.items():
            began = time.perf_counter()
            contestant()
            if turn >= warmup:
                times[name].append(time.perf_counter() - began)
    return times


def ratios(times: Mapping[str, list[float]], reference: str) -> dict[str, float]:
    """How fast each is compared with the reference: the median over rounds of (its time / theirs)."""
    return {name: median(r / t for r, t in zip(times[reference], own, strict=True)) for name, own in times.items()}


def beside(
    contestants: Mapping[str, Callable[[], object]],
    reference: Callable[[], object],
    rounds: int = 7,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """How fast each is compared with the reference, which runs right before it every time: one ratio per round."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warmup + rounds):
        for name, contestant in contestants.items():
            marks = [clock()]
            for run in (reference, contestant):
                run()
                marks.append(clock())
            if turn >= warmup:
                found[name].append((marks[1] - marks[0]) / (marks[2] - marks[1]))
    return found
