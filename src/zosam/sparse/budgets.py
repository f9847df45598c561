"""How many weights each layer keeps: rules that split one exact total over the layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from zosam.names import find

Shape = Sequence[int]
Budget = Callable[[Mapping[str, Shape], int], dict[str, int]]


def uniform(shapes: Mapping[str, Shape], active: int) -> dict[str, int]:
    """The same density in every layer."""
    return _by_density(shapes, active, lambda shape: 1.0)


def erk(shapes: Mapping[str, Shape], active: int) -> dict[str, int]:
    """Erdős–Rényi-kernel: density proportional to (sum of the dimensions) / (product of the dimensions)."""
    return _by_density(shapes, active, lambda shape: sum(shape) / math.prod(shape))


def er(shapes: Mapping[str, Shape], active: int) -> dict[str, int]:
    """Erdős–Rényi: density proportional to (inputs + outputs) / (inputs * outputs), whatever the kernel."""
    return _by_density(shapes, active, lambda shape: sum(shape[:2]) / math.prod(shape[:2]))


BUDGETS: dict[str, Budget] = {f.__name__: f for f in (uniform, er, erk)}


def check(rule: str | Budget, over: str) -> None:
    """Refuse the name of a rule that there is not, and of a share of what."""
    if isinstance(rule, str):
        find({**BUDGETS, "global": None}, rule, "budget")
    find({"all": None, "masked": None}, over, "share of weights (over)")


def allowance(sparsity: float, masked: int, dense: int, over: str) -> int:
    """How many weights the masked layers keep; `over` says of what `sparsity` is a share: "all" or "masked"."""
    active = round((1 - sparsity) * (masked + dense)) - dense if over == "all" else round((1 - sparsity) * masked)
    if not 0 < active <= masked:
        raise ValueError(
            f"sparsity {sparsity} cannot be reached: the layers kept dense leave {max(active, 0):,} of"
            f" {masked:,} weights for the others; lower it or keep fewer layers dense"
        )
    return active


def counts(rule: str | Budget, shapes: Mapping[str, Shape], active: int, unit: int = 1) -> dict[str, int]:
    """What each layer keeps, in whole units; nothing is fixed where all layers compete (`"global"`)."""
    if rule == "global":
        return {}
    found = (find(BUDGETS, rule, "budget") if isinstance(rule, str) else rule)(shapes, active)
    size = {n: math.prod(shape) for n, shape in shapes.items()}
    if found.keys() != size.keys() or sum(found.values()) != active:
        raise ValueError(f"this budget must split {active:,} weights over the layers given; it returned {found}")
    if unit > 1:
        found = round_to(
            {n: c / unit for n, c in found.items()}, active // unit, {n: s // unit for n, s in size.items()}
        )
        found = {n: c * unit for n, c in found.items()}
    wrong = [n for n, c in found.items() if not 0 < c <= size[n]]
    if wrong:
        raise ValueError(
            f"{active:,} active weights leave no weight in {', '.join(wrong)} (or more than it has):"
            " lower the sparsity, choose another budget or exclude such layers"
        )
    return found


def fill(total: int, weight: Mapping[str, float], limit: Mapping[str, int]) -> dict[str, int]:
    """Split `total` in proportion to `weight`, nobody above its `limit`: what spills over goes to the others."""
    full: set[str] = set()
    while True:
        rest = total - sum(limit[n] for n in full)
        mass = sum(weight[n] for n in weight if n not in full)
        scale = rest / mass if mass > 0 else 0.0
        over = {n for n in weight if n not in full and scale * weight[n] > limit[n]}
        if not over:
            break
        full |= over
    return round_to({n: float(limit[n]) if n in full else scale * weight[n] for n in weight}, total, limit)


def round_to(exact: Mapping[str, float], total: int, limit: Mapping[str, int]) -> dict[str, int]:
    """Whole numbers next to `exact` that add up to `total`: the largest remainders are rounded up."""
    counts = {n: min(math.floor(x), limit[n]) for n, x in exact.items()}
    by_remainder = sorted(exact, key=lambda n: counts[n] - exact[n])
    short = total - sum(counts.values())
    while short > 0:
        room = [n for n in by_remainder if counts[n] < limit[n]]
        if not room:
            raise ValueError(f"{total} weights do not fit into layers of {sum(limit.values())}")
        for n in room[:short]:
            counts[n] += 1
        short = total - sum(counts.values())
    return counts


def _by_density(shapes: Mapping[str, Shape], active: int, density: Callable[[Shape], float]) -> dict[str, int]:
    size = {n: math.prod(shape) for n, shape in shapes.items()}
    return fill(active, {n: density(shape) * size[n] for n, shape in shapes.items()}, size)
