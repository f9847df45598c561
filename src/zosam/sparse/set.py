"""SET: drop the smallest weights, grow at random."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from zosam.sparse.dynamic import Dynamic


class SET(Dynamic):
    """Dynamic: drop the smallest weights, grow as many at random (sparse evolutionary training).

    Mocanu et al., "Scalable training of artificial neural networks with adaptive sparse connectivity", Nature
    Communications 2018. The original drops per sign, once an epoch, a constant share, and keeps the output layer
    dense; here by magnitude in every layer, as all later work does.
    """

    until: float = 1.0
    update_reads_gradient: ClassVar[bool] = False

    def grow_score(self, name: str, weight: Tensor) -> Tensor:
        return self.noise(name, weight)
