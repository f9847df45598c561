"""What a loop may do wrong with a sharpness-aware optimizer without noticing: refused, or said once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from weakref import ref

import torch
from torch import Tensor

LOOK_AT_STEP = 10  # when the length of a perturbation is looked at, once


class Guards:
    """Watches how one optimizer is used."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[ref[Tensor], int] | None] | None = None  # gradients as our last step has left them
        self._bare = 0  # steps without a climb, so far

    def leave(self, params: Sequence[Tensor]) -> None:
        """Note the gradients that stay behind a step."""
        self._left = {id(p): None if p.grad is None else (ref(p.grad), p.grad._version) for p in params}

    def refuse_gathered_gradients(self, params: Sequence[Tensor]) -> None:
        """A step with a closure would drop gradients that others have gathered since the last one."""
        for p in params:
            g, seen = p.grad, None if self._left is None else self._left.get(id(p))
            new = self._left is not None and id(p) not in self._left
            if g is None or new or (seen is not None and seen[0]() is g and seen[1] == g._version):
                continue
            if g.layout is not torch.strided or bool(g.any()):
                raise RuntimeError(
                    "gradients of earlier micro-batches are there, and step(closure) would drop them: climb once for"
                    " all of them, with optimizer.ascend(closure, stay=False), `with optimizer.perturbed():` around"
                    " each micro-batch's forward and backward, and optimizer.step() at the end (for Lightning and"
                    " accelerate see zosam.integrations); if they are not wanted, call optimizer.zero_grad() first"
                )

    def refuse_skipped_micro_batches(self) -> None:
        """accelerate calls step(closure) in the last micro-batch of a window only: the others would never be seen."""
        kind = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
        if kind is not None and kind._shared_state and kind().num_steps > 1:
            raise RuntimeError(
                "accelerate gathers gradients of several micro-batches, and runs step(closure) in the last one only:"
                " use zosam.integrations.hf_accelerate.accumulate(...) instead of accelerator.accumulate(...)"
            )

    def bare_step(self, name: str) -> None:
        """Say, at the second such step, that an optimizer that never climbs is just its base."""
        self._bare += 1
        if self._bare == 2:
            warnings.warn(
                f"{name}.step() was called twice without a climb, so it does what its base does: use step(closure), or"
                " ascend(closure) before each forward (in transformers' Trainer: zosam.integrations.transformers)",
                stacklevel=5,
            )

    def climbed(self) -> None:
        self._bare = 0


def say_if_short(name: str, moved: float, length: float, matters: float) -> None:
    """Say that a perturbation is too short to change anything, and which length would."""
    if 0 < moved < matters * length:
        times = 50 * matters * length / moved
        warnings.warn(
            f"{name} moves the weights by {moved / length:.1e} of their length, too little to change anything:"
            f" a rho {times:.0f} times as large would move them by {50 * matters:.2g} of it; see docs on rho and scale",
            stacklevel=7,
        )


def require_one_unit(name: str, clean: Tensor, found: Tensor, scale: Tensor) -> None:
    """Refuse to mix the gradient of a scaled loss with one that was unscaled."""
    if float(scale) >= 16 and float(clean) > float(scale) ** 0.5 * float(found) > 0:
        raise ValueError(
            f"{name} mixes two gradients, and that of ascend() is of a scaled loss: let its closure return the plain"
            " loss, and say ascend(closure, scaler=scaler)"
        )
