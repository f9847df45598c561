"""SNIP: keep the weights whose removal would change the loss most."""

from __future__ import annotations

from torch import Tensor

from zosam.sparse.static import ByLoss


class SNIP(ByLoss):
    """Static: keep the largest |θ ∂L/∂θ| of all layers, from one batch at initialization.

    Lee et al., "SNIP: single-shot network pruning based on connection sensitivity", ICLR 2019. The published code
    prunes biases too, scores in BatchNorm's inference mode, and scores another initialization than it trains; here
    weights only, in the model's own mode, as they are trained.
    """

    def score(self) -> dict[str, Tensor]:
        with self.scoring():
            gradients = self.gradients(self.loss().mean())
        return {n: (self.weights[n].detach() * g).abs() for n, g in self.averaged(gradients).items()}
