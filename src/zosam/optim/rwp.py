"""RWP: train under random noise in the weights, measured filter by filter; and SAM under the same noise."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure
from zosam.optim.schedules import Schedule


class RWP(SharpnessAware):
    """Random weight perturbation: the gradient at θ + e with e ~ N(0, (ρ‖w_f‖/√n_f)²) in every weight of filter f.

    n_f is the number of active weights of the filter (of the tensor, if it has one dimension), so a filter moves by
    rho times its own norm (0.2 unless given), at any sparsity, and a step costs one pass. Bisla et al., "Low-pass
    filtering SGD for recovering flat optima in the deep learning optimization landscape", AISTATS 2022; Li et al.,
    "Efficient generalization improvement guided by random weight perturbation", 2022. There the noise is σ‖w_f‖ per
    weight: give `sigma` instead of rho for that; a schedule may raise it (`schedules.Cosine(sigma, 16 * sigma,
    steps)`). The published code comes back by subtraction, and its weights drift; here they come back to the bit.

    With `eta` above 0 the noise of a filter is divided by √(1 + eta F), F a sum over its squared gradients that decays
    by `beta`, 0.99 unless given (ARWP).
    """

    takes_metric: ClassVar[bool] = False
    matters: ClassVar[float] = 1e-3
    usual_rho: ClassVar[float] = 0.2  # where neither rho nor sigma is given
    beta: float = 0.99  # unless given

    def __init__(
        self,
        base: Optimizer,
        rho: float | Schedule | None = None,
        *,
        sigma: float | Schedule | None = None,
        eta: float = 0.0,
        beta: float | None = None,
        seed: int = 0,
    ) -> None:
        if rho is not None and sigma is not None:
            raise ValueError("give rho, the share of its norm by which a filter moves, or sigma, not both")
        if beta is not None and not eta > 0:
            raise ValueError(f"beta={beta:g} has no effect without eta: give eta too, or leave it out")
        self.eta, self.beta = eta, self.beta if beta is None else beta
        if not self.eta >= 0 or not 0 <= self.beta < 1:
            raise ValueError(f"eta must be 0 or more and beta at least 0 and below 1, not {eta} and {self.beta}")
        length = sigma if sigma is not None else self.usual_rho if rho is None else rho
        super().__init__(base, length, seed=seed)
        self.per_element = sigma is not None

    def climb(self, closure: Closure) -> Tensor:
        filters = self.active.filters
        size = filters.norms() if self.per_element else filters.norms() / filters.sizes.sqrt()
        squares = self.recall("squares") if self.eta else None
        if squares is not None:
            size = size / (1 + self.eta * filters.sums(squares)).sqrt()
        return self.draw() * size

    def descend(self) -> None:
        if self.eta:
            squares, new = self.recall("squares"), self.grads().square()
            self.remember("squares", new if squares is None else torch.add(new, squares, alpha=self.beta))

    def settings(self) -> dict[str, str]:
        return {**super().settings(), "per_element": repr(self.per_element)}


class NoisySAM(RWP):
    """SAM and RWP in one step: the gradient at θ + ρ g/‖g‖ + e, where g is the gradient at θ and e is RWP's noise.

    One rho serves both, 0.2 unless given: every filter moves by that share of its norm at random, and all weights
    together by that length along the gradient. It costs what SAM costs.
    """

    def __init__(self, base: Optimizer, rho: float | Schedule | None = None, *, seed: int = 0) -> None:
        super().__init__(base, rho, seed=seed)

    def climb(self, closure: Closure) -> Tensor:
        return self.along_gradient(self.clean_gradient(closure)) + super().climb(closure)

    def passes_per_step(self) -> dict[str, float]:
        return {"forward": 2.0, "backward": 2.0}
