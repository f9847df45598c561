"""RigL: drop the smallest weights, grow where the gradient is largest."""

from __future__ import annotations

from torch import Tensor

from zosam.sparse.dynamic import Dynamic


class RigL(Dynamic):
    """Dynamic: drop the smallest weights, grow where the dense gradient is largest ("rigging the lottery").

    Evci et al., "Rigging the lottery: making all tickets winners", ICML 2020. As in the published code the update
    takes the place of a gradient step, starts at step 0, and a weight just dropped may grow again with its value and
    momentum. Under a sharpness-aware optimizer the gradient is the one at the perturbed point.
    """

    at_start = True

    def grow_score(self, name: str, weight: Tensor) -> Tensor:
        gradient = self.weights[name].grad
        if gradient is None:
            raise ValueError(f"RigL grows by the gradient of {name}, and there is none: call backward before step")
        return gradient.abs()

    def needs_dense_gradient(self) -> bool:
        return self.due()

    def takes_step(self, updated: bool) -> bool:
        return not updated
