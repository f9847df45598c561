"""Throughput as a ratio: contestants take turns in one process, and medians are compared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


def affordable(turn: Callable[[int], float], batch_size: int, patience: float) -> int:
    """How many pictures to time a turn on: a whole batch, or about as many as it takes so many seconds for.

    `turn` takes one with so many pictures and says how long that was; it is warm afterwards.
    """
    pictures = min(2, batch_size)
    turn(pictures)  # the first one of all says nothing: devices and libraries wake up in it
    while turn(pictures) < patience / 2 and pictures < batch_size:
        pictures = min(2 * pictures, batch_size)
    return pictures


def ratios(times: Mapping[str, list[float]], reference: str) -> dict[str, float]:
    """How fast each is compared with the reference: the median over rounds of (its time / theirs)."""
    return {name: median(r / t for r, t in zip(times[reference], own, strict=True)) for name, own in times.items()}


@dataclass(frozen=True)
class Speed:
    """How fast a contestant was compared with the reference: one ratio per round, and that of the least times."""

    rounds: list[float]
    least: float

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the median, by order: between which of the sorted rounds it lies."""
        ordered, n = sorted(self.rounds), len(self.rounds)
        out = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2))
        return ordered[out], ordered[n - 1 - out]


def beside(
    contestants: Mapping[str, tuple[Callable[[], object], int]],
    reference: Callable[[], object],
    rounds: int = 7,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Speed]:
    """The speed of each contestant, with a turn of the reference right before every one of its steps.

    A contestant comes with its period, for steps that differ; in each round it takes a whole one. The median of rounds
    bears slow minutes, which hit both alike; the least times, over all rounds for each place in the period, bear
    moments of disturbance.
    """
    times: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in contestants}
    for turn in range(warmup + rounds):
        for name, (contestant, period) in contestants.items():
            taken = []
            for _ in range(period):
                marks = [clock()]
                for run in (reference, contestant):
                    run()
                    marks.append(clock())
                taken.append((marks[1] - marks[0], marks[2] - marks[1]))
            if turn >= warmup:
                times[name].append(taken)
    return {name: _speed(found) for name, found in times.items()}


def _speed(times: list[list[tuple[float, float]]]) -> Speed:
    """Of (reference, own) for each place in the period, in each round."""
    ratio = [sum(r for r, _ in taken) / sum(o for _, o in taken) for taken in times]
    places = list(zip(*times, strict=True))
    least = [sum(min(t[side] for t in place) for place in places) for side in (0, 1)]
    return Speed(ratio, least[0] / least[1])
