"""How many weights each layer keeps: rules that split one exact total over the layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

Shape = Sequence[int]
Budget = Callable[[Mapping[str, Shape], int], dict[str, int]]


def uniform(shapes: Mapping[str, Shape], active: int) -> dict[str, int]:
    """The same density in every layer."""
    return _share(shapes, active, dict.fromkeys(shapes, 1.0))


def erk(shapes: Mapping[str, Shape], active: int) -> dict[str, int]:
    """Erdős–Rényi-kernel: density proportional to (sum of the dimensions) / (product of the dimensions)."""
    return _share(shapes, active, {name: sum(shape) / math.prod(shape) for name, shape in shapes.items()})


def er(shapes: Mapping[str, Shape], active: int) -> dict[str, int]:
    """Erdős–Rényi: density proportional to (inputs + outputs) / (inputs * outputs), whatever the kernel."""
    return _share(shapes, active, {name: sum(shape[:2]) / math.prod(shape[:2]) for name, shape in shapes.items()})


BUDGETS: dict[str, Budget] = {f.__name__: f for f in (uniform, er, erk)}


def _share(shapes: Mapping[str, Shape], active: int, weight: Mapping[str, float]) -> dict[str, int]:
    """Densities scale * weight, none above 1, so that the counts add up to `active` exactly."""
    size = {name: math.prod(shape) for name, shape in shapes.items()}
    full: set[str] = set()
    while True:
        rest = active - sum(size[n] for n in full)
        open_ = [n for n in shapes if n not in full]
        scale = rest / sum(weight[n] * size[n] for n in open_) if open_ else 0.0
        over = [n for n in open_ if scale * weight[n] > 1]
        if not over:
            break
        peak = max(weight[n] for n in over)
        full.update(n for n in over if weight[n] == peak)  # the densest first: the others may fit after that
    exact = {n: float(size[n]) if n in full else scale * weight[n] * size[n] for n in shapes}
    return round_to(exact, active, size)


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
