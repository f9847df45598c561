"""In which metric a perturbation is `rho` long: one ball, filter by filter, or weight by weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from zosam.optim.vector import ActiveWeights

Metric = Literal["filter", "element"]


@dataclass(frozen=True)
class Scale:
    """T, the length that one unit of perturbation has at each weight.

    None        1 everywhere: one ball over all active weights.
    "filter"    the norm of the output filter, or row, that the weight belongs to; of a whole one-dimensional tensor.
    "element"   |θ| + eta, the weight's own size.
    """

    metric: Metric | None = None
    eta: float = 0.01

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if not self.eta >= 0:
            raise ValueError(f"eta must be 0 or more, not {self.eta}")
        if self.metric != "element" and self.eta != type(self).eta:
            raise ValueError(f'eta={self.eta:g} has no effect without the metric "element": leave it out')

    def lengths(self, space: ActiveWeights, metrics: Sequence[Metric | None]) -> Tensor | None:
        """T over the active weights, where parameter i has `metrics[i]`; None: 1 everywhere."""
        if not any(metrics):
            return None
        made = {m: self._everywhere(space, m) for m in set(metrics) if m is not None}
        if len(set(metrics)) == 1:
            return next(iter(made.values()))
        parts = {m: t.split(space.sizes) for m, t in made.items()}
        ones = [torch.ones(n, dtype=space.dtype, device=space.device) for n in space.sizes]
        return torch.cat([ones[i] if m is None else parts[m][i] for i, m in enumerate(metrics)])

    def _everywhere(self, space: ActiveWeights, metric: Metric) -> Tensor:
        return space.filters.norms() if metric == "filter" else space.read().abs() + self.eta


def check_metric(metric: object) -> None:
    if metric is not None and metric not in get_args(Metric):
        raise ValueError(f'scale must be None, "filter" or "element", not {metric!r}')
