"""What a loop may do wrong with a sharpness-aware optimizer without noticing: refused, or said once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

LOOK_AT_STEP = 10  # when the length of a perturbation is looked at, once


def refuse_gathered(gradients: Sequence[Tensor]) -> None:
    """A step with a closure would drop gradients that others have gathered since the last one."""
    if any(g.layout is not torch.strided or bool(g.any()) for g in gradients):
        raise RuntimeError(
            "gradients of earlier micro-batches are there, and step(closure) would drop them: climb once for all of"
            " them, with optimizer.ascend(closure, stay=False), `with optimizer.perturbed():` around each"
            " micro-batch's forward and backward, and optimizer.step() at the end (for Lightning and accelerate see"
            " zosam.integrations); if they are not wanted, call optimizer.zero_grad() first"
        )


def refuse_skipped_micro_batches() -> None:
    """accelerate calls step(closure) in the last micro-batch of a window only: the others would never be seen."""
    kind = sys.modules["accelerate.state"].GradientState
    if kind._shared_state and kind().num_steps > 1:
        raise RuntimeError(
            "accelerate gathers gradients of several micro-batches, and runs step(closure) in the last one only:"
            " use zosam.integrations.hf_accelerate.accumulate(...) instead of accelerator.accumulate(...)"
        )


def say_that_it_never_climbs(name: str) -> None:
    """An optimizer that never climbs is just its base."""
    warnings.warn(
        f"{name}.step() was called twice without a climb, so it does what its base does: use step(closure), or"
        " ascend(closure) before each forward (in transformers' Trainer: zosam.integrations.transformers)",
        stacklevel=5,
    )


def say_if_short(name: str, moved: float, length: float, matters: float) -> None:
    """Say that a perturbation is too short to change anything, and which length would."""
    if 0 < moved < matters * length:
        times = 50 * matters * length / moved
        warnings.warn(
            f"{name} moves the weights by {moved / length:.1e} of their length, too little to change anything:"
            f" a rho {times:.0f} times as large would move them by {50 * matters:.2g} of it; see docs on rho and scale",
            stacklevel=7,
        )
