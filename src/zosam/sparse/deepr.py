"""DeepR: every weight has a fixed sign; one that crosses zero sleeps, and another wakes up at random."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.sparse.state import Masks
from zosam.sparse.top_k import top
from zosam.sparse.updates import Periodic


class DeepR(Periodic):
    """Dynamic: at every step drop weights whose sign has turned, grow as many at random (deep rewiring).

    With w = s·θ and the sign s fixed at initialization: θ ← θ - η ∂L/∂θ - η·l1 + √(2 η temperature)·noise for active
    weights; θ < 0 goes to sleep, and as many sleeping weights of the layer, drawn by lot, start at zero. Bellec et
    al., "Deep rewiring: training very sparse deep networks", ICLR 2018. The published code takes plain gradient
    steps; here gradient and l1 go through any optimizer. Layers kept dense are those of its later comparisons.
    """

    budget: ClassVar[str] = "uniform"
    dense: ClassVar[tuple[str, ...]] = ("first", "shortcut")
    over: ClassVar[str] = "masked"
    patterns: ClassVar[tuple[str, ...]] = ()
    until: float = 1.0
    needs_length: ClassVar[bool] = False
    nothing_at_zero: ClassVar[bool] = False
    update_reads_gradient: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        every: int = 1,
        l1: float = 1e-5,
        temperature: float = 1e-9,
        **settings: Any,
    ) -> None:
        if l1 < 0 or temperature < 0:
            raise ValueError(f"l1 and temperature must be 0 or more, not {l1} and {temperature}")
        self.l1, self.temperature = l1, temperature
        super().__init__(model, optimizer, sparsity, every=every, **settings)

    def choose(self) -> Masks:
        self.positive = {n: w.detach() >= 0 for n, w in self.weights.items()}
        return super().choose()

    def before_step(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            if self.l1:
                self.pull(weight, self._sign(name, weight).mul_(self.masks[name]), self.l1)

    def after_step(self) -> None:
        if self.temperature:
            for name, weight in self.weights.items():
                self._shake(name, weight.detach())
        if self.due():
            self.commit(self.rewired())

    def rewired(self) -> Masks:
        """The layers in which some weight has crossed zero, with others awake in their place."""
        masks = {}
        for name, weight in self.weights.items():
            mask = self.masks[name]
            asleep = mask & (weight.detach() * self._sign(name, weight) < 0)
            if bool(asleep.any()):
                kept = mask & ~asleep
                masks[name] = top(
                    self.noise(name, weight.detach()).masked_fill(kept, torch.inf), self.n_active_by_layer[name]
                )
        return masks

    def replace(self, name: str, new: Tensor) -> None:
        """A weight drawn again right after it fell asleep starts anew, as every other does."""
        weight = self.weights[name]
        turned = weight.detach() * self._sign(name, weight) < 0
        weight.masked_fill_(turned, 0)
        for state in self.state_of(weight):
            state.masked_fill_(turned, 0)
        super().replace(name, new)

    def _sign(self, name: str, weight: Tensor) -> Tensor:
        return self.positive[name].to(weight.dtype).mul_(2).sub_(1)

    def _shake(self, name: str, weight: Tensor) -> None:
        at = self.masks[name].nonzero(as_tuple=True)
        noise = torch.randn(len(at[0]), generator=self.stream(f"{name}/noise")).to(weight.device)
        std = math.sqrt(2 * self.setting(self.weights[name], "lr") * self.temperature)
        weight.index_put_(at, (noise * std).to(weight.dtype), accumulate=True)

    def extra_state(self) -> dict[str, Any]:
        return {"positive": {n: p.clone() for n, p in self.positive.items()}}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.positive = {n: p.clone() for n, p in state["positive"].items()}
