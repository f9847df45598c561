"""SViTE: RigL as it is used for vision transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from zosam.sparse.rigl import RigL


class SViTE(RigL):
    """Dynamic: RigL for vision transformers, with rare and large updates (sparse ViT exploration).

    Chen et al., "Chasing sparsity in vision transformers", NeurIPS 2021. All projections are masked: patch embedding,
    queries, keys and values, also inside `nn.MultiheadAttention`, MLPs and head. Masks move every hundredth of the
    training, and unlike in RigL the step is taken then; weights that grow wait for the next. The published code never
    clears AdamW's state where weights grow; here it is cleared.
    """

    until: float = 0.8
    at_start: ClassVar[bool] = False
    steps_after_update: ClassVar[bool] = True
    nothing_at_zero: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        steps: int | None = None,
        every: int | None = None,
        drop_fraction: float = 0.5,
        **settings: Any,
    ) -> None:
        every = int(self.unless_told(sparsity, steps or 0)["every"]) if every is None else every
        super().__init__(model, optimizer, sparsity, steps=steps, every=every, drop_fraction=drop_fraction, **settings)

    @classmethod
    def unless_told(cls, sparsity: float, steps: int | None = None, epoch: int | None = None) -> dict[str, float]:
        usual = {} if steps is None else {"every": max(1, steps // 100)}  # there 15,000 of 1.5 million
        return {**super().unless_told(sparsity), **usual}
