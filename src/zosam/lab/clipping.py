"""Gradient clipping inside a sharpness-aware step: of the gradient that the base optimizer is about to use."""

from __future__ import annotations

from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from zosam.optim import SharpnessAware


def clip_gradients(optimizer: SharpnessAware, max_norm: float) -> RemovableHandle:
    """From now on the gradient that the base uses is at most `max_norm` long; the handle ends that.

    Call it after the network was made sparse: then pruned weights have no gradient any more when it is measured. The
    ascent is not touched, it has its own length.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, not {max_norm}")

    def clip(base: Optimizer, *_: object) -> None:
        clip_grad_norm_([p for group in base.param_groups for p in group["params"]], max_norm)

    return optimizer.base.register_step_pre_hook(clip)
