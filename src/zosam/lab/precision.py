"""In which precision a network runs: fp32, or bf16 and fp16 by autocast. Weights and losses are fp32 always."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zosam.distributed.ranks import ALONE, Ranks
from zosam.optim import ZOSAM, Central, SharpnessAware

DELTA = 3e-3  # how far ZO-SAM's probes go where they are rounded: nearer, the sign is often that of the rounding
DTYPES: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def probe_far_enough(optimizer: SharpnessAware, precision: str) -> None:
    """Let ZO-SAM's probes in bf16 or fp16 go as far as a difference of their losses can be seen: θ ± δu, δ = 3e-3.

    By default they go to the two candidates themselves, which is too near: benchmarks/signs.py. A distance that was
    chosen stays; a decision by the candidates' own losses is refused.
    """
    if precision == "fp32" or not isinstance(optimizer, ZOSAM):
        return
    decide = optimizer.decide
    if not isinstance(decide, Central):
        raise ValueError(
            f"decide={type(decide).__name__.lower()} compares losses too near to each other for {precision}: take"
            " central, or fp32"
        )
    if decide.radius is None and decide.delta is None:
        optimizer.decide = replace(decide, **usual_distance(precision))


def usual_distance(precision: str, rho: Any = None) -> dict[str, Any]:
    """How far ZO-SAM's probes go unless they are told, in the words of `Central`."""
    return {"radius": rho} if precision == "fp32" else {"delta": DELTA}


class Overflow(ArithmeticError):
    """A gradient did not fit into fp16: the step was not taken, and can be taken again with a smaller scale."""


class Precision:
    """How a network is run, and for fp16 the scale that its losses have on the way back.

    The rule for the scale is that of `torch.amp.GradScaler`. That one keeps an optimizer from stepping where a gradient
    has overflowed; a sharpness-aware step is all or nothing by itself, so here the pass raises `Overflow`, everything
    is as before the step, and the same batch is tried again with half the scale. Gradients are unscaled as soon as
    they are there: whoever looks at them, masks, clipping or the ascent, sees true ones.
    """

    growth, backoff, interval, smallest = 2.0, 0.5, 2000, 2.0**-20

    def __init__(self, name: str = "fp32", device: torch.device | str = "cpu", scale: float = 65536.0) -> None:
        if name not in DTYPES:
            raise ValueError(f"precision must be one of {', '.join(DTYPES)}, not {name!r}")
        self.name, self.device = name, torch.device(device)
        self.scale, self.good = scale, 0  # steps since it last changed

    @property
    def scales(self) -> bool:
        """Whether losses are scaled before their backward."""
        return self.name == "fp16"

    def autocast(self) -> AbstractContextManager[Any]:
        """What a forward pass runs in."""
        dtype = DTYPES[self.name]
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def backward(self, loss: Tensor, parameters: Iterable[Tensor], ranks: Ranks = ALONE) -> None:
        """Leave the gradient of the mean loss in `p.grad`, if it has to be scaled on the way; else do nothing."""
        if not self.scales or not torch.is_grad_enabled():
            return
        (loss.mean() * self.scale).backward()
        grads = [p.grad for p in parameters if p.grad is not None]
        if grads:
            torch._foreach_mul_(grads, 1 / self.scale)
        largest = torch.stack(torch._foreach_norm(grads, float("inf"))).max() if grads else loss.new_zeros(())
        if any(ranks.any(not bool(largest.isfinite()))):
            raise Overflow(f"a gradient is not finite at a scale of {self.scale:g}")

    def overflowed(self) -> None:
        """A step was not taken: halve the scale, until it cannot be the scale any more."""
        self.scale, self.good = self.scale * self.backoff, 0
        if self.scale < self.smallest:
            raise FloatingPointError("gradients are not finite at any scale: lower the learning rate, or use bf16")

    def stepped(self) -> None:
        """A step was taken: after many of them in a row the scale grows."""
        if self.scales:
            self.good += 1
            if self.good == self.interval:
                self.scale, self.good = self.scale * self.growth, 0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.good = float(state["scale"]), int(state["good"])
