"""RigL: drop the smallest weights, grow where the gradient is largest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.sparse.base import NoGradient
from zosam.sparse.dynamic import Dynamic
from zosam.sparse.state import Masks


class RigL(Dynamic):
    """Dynamic: drop the smallest weights, grow where the dense gradient is largest ("rigging the lottery").

    Evci et al., "Rigging the lottery: making all tickets winners", ICML 2020. As in the published code the update
    takes the place of a gradient step, starts at step 0, and a weight just dropped may grow again with its value and
    momentum. Under a sharpness-aware optimizer the gradient is the one at the perturbed point; with
    `growth_gradient="theta"` it is the one at θ, where the optimizer takes one there (SAM does, ZO-SAM does not).
    """

    at_start: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        growth_gradient: str = "perturbed",
        **settings: Any,
    ) -> None:
        if growth_gradient not in {"perturbed", "theta"}:
            raise ValueError(f'growth_gradient must be "perturbed" or "theta", not {growth_gradient!r}')
        self.growth_gradient = growth_gradient
        self._at_theta: dict[str, Tensor] = {}
        super().__init__(model, optimizer, sparsity, **settings)

    def grow_score(self, name: str, weight: Tensor) -> Tensor:
        if self.growth_gradient == "perturbed":
            return self.gradient(name).abs()
        if not self._at_theta:
            raise ValueError(f"{type(self).__name__} grows by the gradient at theta; this optimizer takes none there")
        if name not in self._at_theta:
            raise NoGradient(name)
        mean = self.averaged({name: self._at_theta[name]})[name]  # it was seen before ranks had averaged it
        return self.finite(name, mean.abs())

    def update(self) -> Masks | None:
        masks = super().update()
        self._at_theta.clear()
        return masks

    def takes_step(self, updated: bool) -> bool:
        return not updated

    def gradient_density(self) -> dict[str, float]:
        """One step in `every` computes the whole gradient, as long as masks move."""
        share = 1 / self.every if self.steps < self.end else 0.0
        return {n: d + share * (1 - d) for n, d in super().gradient_density().items()}

    def _hold(self) -> None:
        super()._hold()
        if self.growth_gradient == "theta":
            self._hooks += [
                w.register_post_accumulate_grad_hook(partial(self._see, n)) for n, w in self.weights.items()
            ]

    def _see(self, name: str, weight: Tensor) -> None:
        wrapper = self.sharpness
        displaced = wrapper is not None and wrapper.is_displaced
        if self.due() and not displaced and weight.grad is not None:
            self._at_theta[name] = weight.grad.detach().clone()
