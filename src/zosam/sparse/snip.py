"""SNIP: keep the weights whose removal would change the loss most."""

from __future__ import annotations

from torch import Tensor

from zosam.sparse.static import Static


class SNIP(Static):
    """Static, by sensitivity: keep the largest |θ ∂L/∂θ| of all layers, from one batch at initialization.

    Lee et al., "SNIP: single-shot network pruning based on connection sensitivity", ICLR 2019. The published code
    prunes biases too and scores another initialization than it trains; here weights only, scored as they are trained.
    """

    def score(self) -> dict[str, Tensor]:
        return {n: (self.weights[n].detach() * g).abs() for n, g in self.gradients().items()}
