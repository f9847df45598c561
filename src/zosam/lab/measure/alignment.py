"""Alignment: the cosine between where an optimizer climbs and the gradient that it stands in for.

SAM climbs along the gradient of its batch: cosine 1. A zero-order estimate from m random directions over k active
weights has about √(m/k), one from a single direction √(2/πk) on average.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from zosam.machine import double
from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure


@torch.no_grad()
def alignment(
    optimizer: SharpnessAware, closure: Closure, reference_closure: Closure | None = None
) -> dict[str, float]:
    """The cosine of the direction that the coming step would climb with the gradient of the closure (`batch`), and
    with that of `reference_closure` (`reference`), such as a much larger sample.

    Empty where the coming step does not climb (SGD, LookSAM between two ascents). Nothing is changed: not the model,
    the optimizer with its memory and pass counts, or a random stream, so the coming step is the one measured. A
    reference that is too large for one graph may call backward itself, part by part.
    """
    if optimizer.ascended or optimizer.is_displaced:
        raise RuntimeError("a step is under way: finish it with step(), or give it up with restore(), then measure")
    with _trial(optimizer):
        direction = optimizer.climb(closure)
        if direction is None:
            return {}
        optimizer._perturbation.restore()
        found = {"batch": _cosine(optimizer, direction, closure)}
        if reference_closure is not None:
            found["reference"] = _cosine(optimizer, direction, reference_closure)
    return found


@contextmanager
def _trial(optimizer: SharpnessAware) -> Iterator[None]:
    """Passes in here leave no trace, and what the optimizer notes or remembers is forgotten."""
    kept = dict(vars(optimizer))
    params = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [p.grad for p in params]
    optimizer.diagnostics = None
    optimizer._start_afresh()  # passes and memory of its own, for the time being
    optimizer._memory.update(kept["_memory"])
    try:
        with optimizer._transaction():
            optimizer._passes.counted = True  # the pass that leaves its traces is the coming step's own
            yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(kept)
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad


def _cosine(optimizer: SharpnessAware, direction: Tensor, closure: Closure) -> float:
    optimizer.gradient(closure)
    return float(optimizer.active.cosine(double(direction), double(optimizer.grads())))
