"""Means over seeds with Student's 95 % interval, and differences taken seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and half the width of its 95 % interval; one seed alone, or equal values, have no interval."""

    mean: float
    half_width: float | None
    n: int

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.half_width is not None and abs(self.mean - value) <= self.half_width

    @property
    def sign(self) -> int:
        """1 if the whole interval is above zero, -1 if it is below, 0 if it holds zero or there is none."""
        if self.half_width is None or self.holds(0):
            return 0
        return 1 if self.mean > 0 else -1

    def text(self, sign: bool = False) -> str:
        """ "52.09 ± 1.36"; with `sign` a mean above zero has its plus."""
        mean = (f"{self.mean:+.2f}" if sign else f"{self.mean:.2f}").replace("-", "−")
        return mean if self.half_width is None else f"{mean} ± {self.half_width:.2f}"


def estimate(values: Iterable[float]) -> Estimate:
    """Mean and Student's 95 % interval, t · s / √n with n - 1 degrees of freedom.

    Equal values say nothing of the spread: two seeds often differ by the same few pictures of a small test set.
    """
    known = list(values)
    if not known or not all(map(math.isfinite, known)):
        raise ValueError(f"an estimate needs one or more finite values, not {known}")
    n = len(known)
    spread = stdev(known) if n > 1 else 0.0
    told = spread > 1e-9 * max(map(abs, known))
    return Estimate(fmean(known), float(stdtrit(n - 1, 0.975)) * spread / math.sqrt(n) if told else None, n)


def difference(ours: BySeed, versus: BySeed) -> Estimate | None:
    """How much more than the other, seed by seed; None if they share no seed."""
    return _paired({s: ours[s] - versus[s] for s in ours.keys() & versus.keys()})


def share(ours: BySeed, versus: BySeed) -> Estimate | None:
    """Per cent of the other, seed by seed; None if they share no seed."""
    return _paired({s: 100 * ours[s] / versus[s] for s in ours.keys() & versus.keys()})


def _paired(values: BySeed) -> Estimate | None:
    return estimate(values.values()) if values else None
