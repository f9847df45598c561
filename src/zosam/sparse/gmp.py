"""GMP: start dense, prune the smallest weights little by little."""

from __future__ import annotations

from typing import ClassVar

import torch

from zosam.sparse.base import Counts, total
from zosam.sparse.state import Masks
from zosam.sparse.updates import Periodic


class GMP(Periodic):
    """Dynamic: start dense, prune the smallest weights along a cubic schedule (gradual magnitude pruning).

    The sparsity at step t is s·(1 - (1 - t/T)³), in every layer the same (`budget="global"`: the smallest of all go);
    it changes every `every` steps, the target is hit at step T, a share `until` of the training, exactly, and what is
    pruned does not come back. Zhu, Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model
    compression", 2017. A reference: it trains a dense network first.
    """

    budget: ClassVar[str] = "uniform"
    per_layer: ClassVar[bool] = False
    patterns: ClassVar[tuple[str, ...]] = ("block",)
    draws: ClassVar[bool] = False
    sharded: ClassVar[bool] = True
    update_reads_gradient: ClassVar[bool] = False

    def choose(self) -> Masks:
        return {n: torch.ones_like(w, dtype=torch.bool) for n, w in self.weights.items()}

    def after_step(self) -> None:
        if self.due() or self.steps == self.end:
            self.commit(self.smallest_pruned(self.level()))

    def level(self) -> Counts:
        """How many weights the schedule leaves at this step."""
        at = self.end if self.steps >= self.end else self.steps - self.steps % self.every
        share = 1 - (1 - at / self.end) ** 3
        return self.counts_along(lambda size, kept: size - (size - kept) * share)

    def expected_active(self) -> int:
        return total(self.level())
