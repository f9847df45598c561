"""Magnitude: keep the largest weights."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from zosam.sparse.static import Static


class Magnitude(Static):
    """Static: keep the largest |θ| of all layers, as the network comes; the baseline for a trained network."""

    draws: ClassVar[bool] = False
    sharded: ClassVar[bool] = True

    def score(self) -> dict[str, Tensor]:
        return {n: w.detach().abs() for n, w in self.weights.items()}
