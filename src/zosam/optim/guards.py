"""What a loop may do wrong with a sharpness-aware optimizer without noticing: refused, or said once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

LOOK_AT_STEP = 10  # from when on the length of a perturbation is looked at, once


def refuse_gathered(gradients: Sequence[Tensor]) -> None:
    """A step with a closure would drop gradients that others have gathered since the last one."""
    if any(bool((g if g.layout is torch.strided else g.coalesce().values()).any()) for g in gradients):
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


class Remarks:
    """What is said to a loop about its optimizer: each once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bare_steps = 0  # so many steps, one after another, without a climb
        self._rho = 0.0  # of the climb before
        self._said_bare = self._looked = False

    def on_step(self, climbed: bool) -> None:
        """Say, at the second bare step, that an optimizer which never climbs is just its base."""
        self._bare_steps = 0 if climbed else self._bare_steps + 1
        if self._bare_steps == 2 and not self._said_bare:
            self._said_bare = True
            warnings.warn(
                f"{self._name}.step() was called twice without a climb, so it does what its base does: use"
                " step(closure), or ascend(closure) before each forward (in transformers' Trainer:"
                " zosam.integrations.transformers)",
                stacklevel=5,
            )

    def looks(self, step: int, rho: float) -> bool:
        """Whether to look at the length of this climb: once, when rho rises no more."""
        rises, self._rho = rho > self._rho, rho
        looks = step >= LOOK_AT_STEP and not rises and not self._looked
        self._looked |= looks
        return looks

    def on_length(self, moved: float, length: float, matters: float) -> None:
        """Say that a perturbation is too short to change anything, and which length would."""
        if 0 < moved < matters * length:
            times = 50 * matters * length / moved
            warnings.warn(
                f"{self._name} moves the weights by {moved / length:.1e} of their length, too little to change"
                f" anything: a rho {times:.0f} times as large would move them by {50 * matters:.2g} of it; see docs on"
                " rho and scale",
                stacklevel=8,
            )
