"""Is it the same? Means over seeds with their uncertainty, set against what was printed."""

from __future__ import annotations

from zosam.lab.measure.estimate import BySeed, Estimate, difference, estimate, share
from zosam.lab.paper.printed import parse
from zosam.lab.paper.recipes import Says
from zosam.lab.paper.table import MEASURES, Cell


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
    if ours.sign == 0:
        return "no difference seen"
    return "same direction" if ours.sign == printed else "other direction"


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
