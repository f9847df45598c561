"""Is it the same? Means over seeds with their uncertainty, set against what was printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import stdtrit

from zosam.lab.paper.printed import parse
from zosam.lab.paper.recipes import Says
from zosam.lab.paper.table import MEASURES, Cell

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and half the width of its 95 % interval; one seed alone has no interval."""

    mean: float
    half_width: float | None
    n: int

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.half_width is not None and abs(self.mean - value) <= self.half_width


def estimate(values: Iterable[float]) -> Estimate:
    """Mean and Student's 95 % interval, t · s / √n with n - 1 degrees of freedom."""
    known = list(values)
    if not known or not all(map(math.isfinite, known)):
        raise ValueError(f"an estimate needs one or more finite values, not {known}")
    n = len(known)
    half = float(stdtrit(n - 1, 0.975)) * stdev(known) / math.sqrt(n) if n > 1 else None
    return Estimate(fmean(known), half, n)


def difference(ours: BySeed, versus: BySeed) -> Estimate | None:
    """How much more than the other, seed by seed; None if they share no seed."""
    return _paired({s: ours[s] - versus[s] for s in ours.keys() & versus.keys()})


def share(ours: BySeed, versus: BySeed) -> Estimate | None:
    """Per cent of the other, seed by seed; None if they share no seed."""
    return _paired({s: 100 * ours[s] / versus[s] for s in ours.keys() & versus.keys()})


def _paired(values: BySeed) -> Estimate | None:
    return estimate(values.values()) if values else None


def verdict(cell: Cell, ours: BySeed, versus: BySeed, says: Says) -> str:
    """In a word, how our values of a cell, by seed, stand to the printed one; `versus` are those of its other row.

    not run             we have no value.
    (nothing)           there is nothing printed to hold it against, or nothing that this tier can say about it.

    Tiers that say "value" compare our mean with the printed one. Images per second belong to a machine, so what is
    compared there is the share of the reference row's:
    reproduced          they differ by no more than the measure's tolerance (`MEASURES`; 0.3 points of accuracy) or the
                        printed standard deviation, whichever is larger.
    no difference seen  they differ by more, but our 95 % interval holds the printed number: too few seeds to tell.
    above, below        otherwise. This is about numbers, not merit: more epochs to 90 % are "above".

    Tiers that say "direction" compare the sign of a difference to the row to compare with, ours and the printed:
    same direction      the 95 % interval of our paired difference is wholly on the printed side of 0.
    other direction     it is wholly on the other side.
    no difference seen  it holds 0, or there is but one seed.
    Signs are compared with signs, so it does not matter whether more or less is better.
    """
    if not ours:
        return "not run"
    if says == "direction":
        return _by_direction(cell.direction, difference(ours, versus))
    return _by_value(cell, ours, versus)


def _by_direction(printed: int, ours: Estimate | None) -> str:
    if printed == 0 or ours is None:
        return ""
    if ours.half_width is None or ours.holds(0):
        return "no difference seen"
    return "same direction" if (ours.mean > 0) == (printed > 0) else "other direction"


def _by_value(cell: Cell, ours: BySeed, versus: BySeed) -> str:
    printed, speed = parse(cell.printed), cell.measure == "images_per_second"
    value = None if printed is None else printed.share if speed else printed.value
    found = share(ours, versus) if speed else estimate(ours.values())
    if printed is None or value is None or found is None:
        return ""
    if abs(found.mean - value) <= max(MEASURES[cell.measure].tolerance, printed.spread or 0.0):
        return "reproduced"
    if found.holds(value):
        return "no difference seen"
    return "above" if found.mean > value else "below"
