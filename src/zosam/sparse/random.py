"""Random: keep weights by lot."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from zosam.sparse.static import Static


class Random(Static):
    """Static: keep weights by lot, an exact number in each layer; the baseline that every method must beat."""

    budget: ClassVar[str] = "erk"
    sharded: ClassVar[bool] = True

    def score(self) -> dict[str, Tensor]:
        return {n: self.noise(n, w.detach()) for n, w in self.weights.items()}
