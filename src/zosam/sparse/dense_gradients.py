"""Whole gradients, kept aside for an update of the masks, while the optimizer sees them masked."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from zosam.distributed.fsdp import is_sharded, local, whole
from zosam.distributed.ranks import Ranks


class DenseGradients:
    """The gradients of a step with all that the masks take from them, by the name of their layer."""

    def __init__(self, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
        self._weights, self._masks = weights, masks
        self.kept: dict[str, Tensor] = {}

    @torch.no_grad()
    def keep(self, name: str, adds: bool) -> None:
        """Keep a gradient that has just come; `adds`: to one that was masked since."""
        gradient = self._weights[name].grad
        assert gradient is not None
        if adds and name in self.kept:
            kept, new, mask = (local(t) for t in (self.kept[name], gradient, self._masks[name]))
            kept.copy_(torch.where(mask, new, kept + new))  # where it is pruned, what was there before is masked
        else:
            self.kept[name] = gradient.clone()

    def keep_others(self) -> None:
        """Keep gradients that did not come by backward: no mask has taken anything from them yet."""
        for name, weight in self._weights.items():
            if weight.grad is not None and (name not in self.kept or self._is_dense(name, weight.grad)):
                self.keep(name, adds=False)

    def get(self, name: str, ranks: Ranks) -> Tensor:
        """The gradient of all ranks' batches, as long as the one that the optimizer sees: clipped and unscaled."""
        found, seen = self.kept[name], self._weights[name].grad
        found = whole(
            found if is_sharded(found) else ranks.mean(found, "scores")
        )  # fully_shard has averaged it already
        if seen is None:
            return found
        mask = whole(self._masks[name])
        before, now = (found * mask).norm(), (whole(seen) * mask).norm()
        same = abs(float(now) - float(before)) <= 1e-6 * float(before)
        return found if same or not float(before) else found * (now / before)

    def _is_dense(self, name: str, gradient: Tensor) -> bool:
        return bool(local(gradient).masked_fill(local(self._masks[name]), 0).any())
