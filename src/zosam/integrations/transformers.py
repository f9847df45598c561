"""transformers' Trainer: climb before its own forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from zosam.integrations.windows import micro_batch, part, sharpness_aware
from zosam.optim.passes import Keep


class AscendMixin:
    """Put before Trainer: `class MyTrainer(AscendMixin, Trainer)`, and pass `optimizers=(ZOSAM(...), None)`.

    The Trainer calls a bare `step()`, so the climb comes before its forward: once per optimizer step, on the first
    micro-batch where gradients are accumulated, by the Trainer's own `training_step`. The weights are at the point
    climbed to only while a micro-batch runs. An optimizer that never climbs is left alone.
    """

    optimizer: Any
    accelerator: Any
    state: Any
    args: Any
    _window = -1  # the optimizer step that the micro-batches of now belong to

    def training_step(self, model: nn.Module, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        own, optimizer = super().training_step, sharpness_aware(self.optimizer)  # type: ignore[misc]
        if optimizer is None:
            loss: Tensor = own(model, inputs, *args, **kwargs)
            return loss
        if self._window != self.state.global_step:
            optimizer.restore()  # the window before is over, also where a scaler has skipped its step
        self._window = self.state.global_step

        def closure(keep: Keep | None = None) -> Tensor:
            found: Tensor = own(model, part(inputs, keep), *args, **kwargs)
            return found

        n = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
        with micro_batch(optimizer, closure, scaler=self.accelerator.scaler, share=1 / n):
            return closure()
