"""How rho goes over the training: each schedule is a function of the step and the group's learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int, float], float]


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` in a straight line over `steps` steps, then `end`."""
    return lambda step, lr: start + (end - start) * min(step / steps, 1.0)


def cosine(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` along half a cosine over `steps` steps, then `end`."""
    return lambda step, lr: end + (start - end) * (1 + math.cos(math.pi * min(step / steps, 1.0))) / 2


def proportional(rho_max: float, lr_max: float, rho_min: float = 0.0, lr_min: float = 0.0) -> Schedule:
    """Follow the learning rate: rho_min + (rho_max - rho_min) (lr - lr_min) / (lr_max - lr_min), as in GSAM."""
    if not lr_max > lr_min:
        raise ValueError(f"lr_max must be above lr_min: {lr_max} and {lr_min}")
    return lambda step, lr: max(0.0, rho_min + (rho_max - rho_min) * (lr - lr_min) / (lr_max - lr_min))
