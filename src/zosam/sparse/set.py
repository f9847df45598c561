"""SET: drop the smallest weights, grow at random."""

from __future__ import annotations

from torch import Tensor

from zosam.sparse.dynamic import Dynamic


class SET(Dynamic):
    """Dynamic: drop the smallest weights, grow as many at random (sparse evolutionary training).

    Mocanu et al., "Scalable training of artificial neural networks with adaptive sparse connectivity", 2018. The
    original drops per sign and once an epoch with a constant share; here by magnitude, as all later work does.
    """

    def grow_score(self, name: str, weight: Tensor) -> Tensor:
        return self.noise(name, weight)
