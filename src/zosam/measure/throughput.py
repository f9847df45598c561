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


def undisturbed(
    contestants: Mapping[str, tuple[Callable[[], object], int]],
    reference: Callable[[], object],
    rounds: int = 7,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """How fast each is compared with the reference on a machine that others disturb: least times against least times.

    A contestant comes with its period, for steps that differ. In each round it takes a whole period, and the reference
    a turn before every step; both are judged by the least time of each place in the period over all rounds.
    """
    places = [(name, place) for name, (_, period) in contestants.items() for place in range(period)]
    least = {key: (float("inf"), float("inf")) for key in places}
    for turn in range(warmup + rounds):
        for name, place in places:
            times = []
            for run in (reference, contestants[name][0]):
                began = clock()
                run()
                times.append(clock() - began)
            if turn >= warmup:
                least[name, place] = (min(least[name, place][0], times[0]), min(least[name, place][1], times[1]))
    speed = {}
    for name, (_, period) in contestants.items():
        theirs, own = (sum(least[name, place][side] for place in range(period)) for side in (0, 1))
        speed[name] = theirs / own
    return speed
