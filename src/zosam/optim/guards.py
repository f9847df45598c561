"""What a loop may do wrong with a sharpness-aware optimizer without noticing: refused, or said once."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor

from zosam.optim.passes import Backward

LOOK_AT_STEP = 10  # from when on the length of a perturbation is looked at, once
INSIDE = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], Path(torch.__file__).parent))


def level_of_user() -> int:
    """The `stacklevel` of the line that called us, past the frames of this package and of torch."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    return level


def refuse_base(kind: str, base: str) -> NoReturn:
    """A step that takes one gradient is all that there is a place to climb in."""
    raise TypeError(
        f"{kind} wraps an optimizer that steps with one gradient, such as torch.optim.SGD(model.parameters(), lr=0.1),"
        f" not {base}; a trainer's own wrapper goes around {kind}"
    )


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


class GatheringBackward(Backward):
    """Sets `gathered` gradients of `params` aside until the first backward in this thread adds to them.

    So a closure in torch's own form, which clears gradients first, drops none of those that were gathered before.
    """

    def __init__(self, params: Sequence[Tensor], gathered: Sequence[Tensor]) -> None:
        wanted = {id(g) for g in gathered}
        self._aside = [(p, p.grad) for p in params if p.grad is not None and id(p.grad) in wanted]
        for p, _ in self._aside:
            p.grad = None

    def run(self, tensors: Sequence[Tensor], *arguments: Any, **settings: Any) -> None:
        self._bring_back()
        super().run(tensors, *arguments, **settings)

    def __exit__(self, *exception: object) -> None:
        self._bring_back()
        super().__exit__(*exception)

    def _bring_back(self) -> None:
        while self._aside:
            p, gathered = self._aside.pop()
            p.grad = gathered if p.grad is None else gathered + p.grad


class Remarks:
    """What is said to a loop about its optimizer: each once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.bare_steps = 0  # so many steps, one after another, without a climb
        self._rho = 0.0  # of the climb before
        self._said_bare = self.looked = False

    def on_bare_step(self) -> int:
        """Say, at the second one, that an optimizer which never climbs is just its base; how many there were."""
        if self.bare_steps == 1 and not self._said_bare:
            self._said_bare = True
            warnings.warn(
                f"{self._name}.step() was called twice without a climb, so it does what its base does: use"
                " step(closure), or ascend(closure) before each forward (in transformers' Trainer:"
                " zosam.integrations.transformers)",
                stacklevel=level_of_user(),
            )
        return self.bare_steps + 1

    def looks(self, step: int, rho: float) -> bool:
        """Whether to look at the length of this climb: once, when rho rises no more."""
        rises, self._rho = rho > self._rho, rho
        self.looked = step >= LOOK_AT_STEP and not rises
        return self.looked

    def on_length(self, moved: float, length: float, matters: float) -> None:
        """Say that a perturbation is too short to change anything, and which length would."""
        if 0 < moved < matters * length:
            times = 50 * matters * length / moved
            warnings.warn(
                f"{self._name} moves the weights by {moved / length:.1e} of their length, too little to change"
                f" anything: a rho {times:.0f} times as large would move them by {50 * matters:.2g} of it; see docs on"
                " rho and scale",
                stacklevel=level_of_user(),
            )
