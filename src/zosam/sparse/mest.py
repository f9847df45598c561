"""MEST: drop by weight and gradient of what is active, grow at random, and calm down in two stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.sparse.dynamic import Dynamic
from zosam.sparse.patterns import NM
from zosam.sparse.state import Masks


class MEST(Dynamic):
    """Dynamic: drop the smallest |θ| + lam·|g|, grow at random; less at 3/4 of the schedule, nothing after it.

    The gradient is that of active weights only. Elastic mutation (EM) drops `drop_fraction` of a layer and grows as
    many. With `soft=True` (EM&S) the network trains with a share `extra` more weights than the target, drops to the
    target at each update and grows again, half as many from 3/4 on; it ends at the target. Unless told it trains 5 % of
    all weights denser: 50 % more at 90 % sparsity, 100 % at 95 %. Yuan et al., "MEST: accurate and fast
    memory-economic sparse training framework on the edge", NeurIPS 2021. As in the published code masks start from
    the largest initial weights and the sparsity is that of the masked layers. There updates come every 5 of 160
    epochs, and the lam·|g| term has no effect, gradients being zero when it is read, hence `lam=0`; here it works.
    """

    budget: ClassVar[str] = "uniform"
    dense: ClassVar[tuple[str, ...]] = ("first", "shortcut", "last")
    over: ClassVar[str] = "masked"
    drop_fraction: float = 0.2  # unless given
    at_start: ClassVar[bool] = True
    update_reads_gradient: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        drop_fraction: float | None = None,
        lam: float = 0.0,
        soft: bool = False,
        extra: float | None = None,
        **settings: Any,
    ) -> None:
        if lam < 0:
            raise ValueError(f"lam must be 0 or more, not {lam}")
        if not soft and extra is not None:
            raise ValueError("extra weights are there with soft=True only")
        if soft and drop_fraction is not None:
            raise ValueError(
                f"drop_fraction={drop_fraction:g} has no effect with soft=True, where `extra` weights come and go:"
                " leave it out"
            )
        if extra is not None and not extra > 0:
            raise ValueError(f"extra must be above 0, not {extra}")
        self.lam, self.soft = lam, soft
        self.extra = self.unless_told(sparsity)["extra"] if extra is None else extra
        dropped = self.drop_fraction if drop_fraction is None else drop_fraction
        super().__init__(model, optimizer, sparsity, drop_fraction=dropped, **settings)

    @classmethod
    def unless_told(cls, sparsity: float, steps: int | None = None, epoch: int | None = None) -> dict[str, float]:
        return {"extra": 0.05 / (1 - sparsity)}

    def choose(self) -> Masks:
        if self.soft and isinstance(self.pattern, NM):
            raise ValueError(f"soft=True needs room for more weights, and pattern {self.pattern.name} has none")
        return self.best({n: w.detach().abs() for n, w in self.weights.items()}, self.n_active_by_layer)

    def fraction(self) -> float:
        return self._fraction(self.steps)

    def due(self) -> bool:
        return super().due() or (self.soft and self.steps == self.end)

    def drop_score(self, name: str, weight: Tensor) -> Tensor:
        gradient = self.weights[name].grad
        if not self.lam or gradient is None:
            return weight.abs()
        return weight.abs().add_(self.finite(name, gradient).abs(), alpha=self.lam)

    def grow_score(self, name: str, weight: Tensor) -> Tensor:
        return self.noise(name, weight)

    def moved(self, name: str) -> Tensor:
        if not self.soft:
            return super().moved(name)
        units = self.n_active_by_layer[name] // self.pattern.size
        return self.move(name, units, units + self._extra(name, self.steps))

    def expected_active(self) -> int:
        if not self.soft or self.steps == 0:
            return self.n_active
        last = self.steps - 1
        last = int(self.end) if last >= self.end else last - last % self.every
        return self.n_active + sum(self._extra(n, last) for n in self.weights) * self.pattern.size

    def _fraction(self, step: int) -> float:
        start = self.extra if self.soft else self.drop_fraction
        if step < 0.75 * self.end:
            return start
        return start / 2 if step < self.end else 0.0

    def _extra(self, name: str, step: int) -> int:
        """How many units more than its target a layer has after an update at this step."""
        units = self.n_active_by_layer[name] // self.pattern.size
        room = self.weights[name].numel() // self.pattern.size - units
        return min(round(self._fraction(step) * units), room)
