"""Static sparsity: score every weight once, keep the best, train only those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.optim.passes import NoBackward, Passes
from zosam.sparse.base import Sparsity
from zosam.sparse.state import Masks


class Static(Sparsity):
    """Masks from a score at the start; a method overrides `score`. The highest scores are kept.

    With `budget="global"`, the default, all layers compete for one total; any other budget ranks inside each layer.
    """

    budget: ClassVar[str] = "global"
    per_layer: ClassVar[bool] = False

    def score(self) -> dict[str, Tensor]:
        """One score per weight; the highest are kept."""
        raise NotImplementedError(f"{type(self).__name__} does not score weights")

    def choose(self) -> Masks:
        scores = {n: self.finite(n, s) for n, s in self.score().items()}
        return self.best(scores, self.n_active_by_layer or self.n_active)


class ByLoss(Static):
    """A static method that scores weights by `loss`, a closure over one batch."""

    draws: ClassVar[bool] = False
    per_class: ClassVar[int] = 10  # how many samples of each class that batch should hold
    temperature: ClassVar[float] = 1.0  # what its logits should be divided by

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        loss: Callable[[], Tensor] | None = None,
        **settings: Any,
    ) -> None:
        if loss is None:
            raise ValueError(
                f"{type(self).__name__} scores weights by the loss: pass loss=lambda: F.cross_entropy(model(x), y)"
            )
        self.loss = loss
        super().__init__(model, optimizer, sparsity, **settings)
        del self.loss  # it holds a batch, and is not needed again

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Run the loss in here: model, buffers and random streams stay as they are."""
        passes = Passes(lambda: list(self.weights.values()), ranks=lambda: self.ranks)
        with passes.without_traces(), passes.silent(), torch.enable_grad(), NoBackward():
            yield

    def gradients(self, of: Tensor, create_graph: bool = False) -> dict[str, Tensor]:
        """This rank's gradient of a number for each masked weight; zero where it does not depend on it."""
        found = torch.autograd.grad(of, list(self.weights.values()), create_graph=create_graph, allow_unused=True)
        return {
            n: torch.zeros_like(w) if g is None else g for (n, w), g in zip(self.weights.items(), found, strict=True)
        }
