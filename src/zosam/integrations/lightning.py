"""Lightning: a callback that climbs once for all micro-batches that it accumulates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torchmetrics import Metric

from zosam.integrations.windows import micro_batch, part, sharpness_aware
from zosam.optim.passes import Keep


class Ascend(Callback):  # type: ignore[misc]
    """Give it to the Trainer: `Trainer(callbacks=[Ascend()], accumulate_grad_batches=4)`.

    The first micro-batch of a window climbs, by `training_step`, and every one runs at the point climbed to; the
    weights are at home again after each backward. `self.log` and metrics do not notice the climb. An optimizer that
    never climbs is left alone. Without this callback Lightning calls `step(closure)`, which is right as long as it
    accumulates nothing; there every pass of a step is logged, and clipped.
    """

    def __init__(self) -> None:
        self._away = ExitStack()  # holds the weights at the point climbed to
        self._window = -1  # the optimizer step that the micro-batches of now belong to

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not pl_module.automatic_optimization:
            raise ValueError(
                "with manual optimization the loop is yours: leave Ascend() out, and call optimizer.step(closure), or"
                " optimizer.ascend(closure, stay=False) and `with optimizer.perturbed():` around each micro-batch"
            )
        if trainer.strategy.handles_gradient_accumulation:
            raise ValueError(f"{type(trainer.strategy).__name__} steps by itself: use DDP, or a single device")
        averages = any(isinstance(callback, StochasticWeightAveraging) for callback in trainer.callbacks)
        if averages and any(map(sharpness_aware, trainer.optimizers)):
            raise ValueError(
                "StochasticWeightAveraging ends with an epoch without backward, in which nothing can climb: use"
                " lightning.pytorch.callbacks.WeightAveraging, or EMAWeightAveraging"
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        optimizer = sharpness_aware(trainer.optimizers[0])
        if optimizer is None:
            return
        if self._window != trainer.global_step:
            optimizer.restore()  # the window before is over, also where a scaler has skipped its step
        self._window = trainer.global_step
        numbered = is_param_in_hook_signature(pl_module.training_step, "batch_idx", min_args=2)

        def closure(keep: Keep | None = None) -> Tensor:
            output = trainer.strategy.training_step(part(batch, keep), *([batch_idx] if numbered else []))
            loss: Tensor = output["loss"] if isinstance(output, Mapping) else output
            return loss

        scaler = getattr(trainer.precision_plugin, "scaler", None)
        with unobserved(pl_module):
            self._away.enter_context(micro_batch(optimizer, closure, scaler))

    def on_after_backward(self, *_: Any) -> None:
        self._away.close()

    def on_train_batch_end(self, *_: Any) -> None:
        self._away.close()  # there was no backward

    def on_train_epoch_end(self, *_: Any) -> None:
        self._away.close()  # the batch was skipped

    def on_exception(self, trainer: Trainer, *_: Any) -> None:
        self._away.close()
        for optimizer in map(sharpness_aware, trainer.optimizers):
            if optimizer is not None:
                optimizer.restore()


@contextmanager
def unobserved(module: LightningModule) -> Iterator[None]:
    """What is run in here is not logged, and no metric counts it."""
    loggers = [m for m in module.modules() if isinstance(m, LightningModule)]
    metrics = [m for m in module.modules() if isinstance(m, Metric)]
    before = [{name: _copy(m.__dict__[name]) for name in (*m._defaults, *_COUNTERS)} for m in metrics]
    for m in loggers:
        m.__dict__.update(log=_silent, log_dict=_silent)
    try:
        yield
    finally:
        for m in loggers:
            del m.log, m.log_dict
        for m, state in zip(metrics, before, strict=True):
            m.__dict__.update(state)


_COUNTERS = ("_update_count", "_computed", "_forward_cache")


def _silent(*_: Any, **__: Any) -> None: ...


def _copy(value: Any) -> Any:
    """As it is now; what a list holds is only ever added to."""
    return value.detach().clone() if isinstance(value, Tensor) else list(value) if isinstance(value, list) else value
