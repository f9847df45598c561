"""transformers' Trainer: climb before its own forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from zosam.optim.base import SharpnessAware


class AscendMixin:
    """Put before Trainer: `class MyTrainer(AscendMixin, Trainer)`, and pass `optimizers=(ZOSAM(...), None)`.

    The Trainer calls a bare `step()`, so the climb comes before its forward: once per optimizer step, on the first
    micro-batch where gradients are accumulated.
    """

    optimizer: Any

    def training_step(self, model: nn.Module, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # accelerate wraps it
        if isinstance(optimizer, SharpnessAware) and not optimizer.ascended:
            model.train()
            optimizer.ascend(lambda: self._loss(model, inputs))
        loss: Tensor = super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        return loss

    def _loss(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        ready = self._prepare_inputs(dict(inputs))  # type: ignore[attr-defined]
        loss: Tensor = self.compute_loss(model, ready)  # type: ignore[attr-defined]
        return loss
