"""How rho goes over the training: each schedule is a function of the step and the group's learning rate.

Noise that rises, as LPF-SGD has it, σ₀ (1 + α (1 − cos πt/T)/2), is `Cosine(σ₀, (1 + α) σ₀, T)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int, float], float]


@dataclass(frozen=True)
class Linear:
    """From `start` to `end` in a straight line over `steps` steps, then `end`."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check(start=self.start, end=self.end, steps=self.steps)

    def __call__(self, step: int, lr: float) -> float:
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


@dataclass(frozen=True)
class Cosine:
    """From `start` to `end` along half a cosine over `steps` steps, then `end`."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check(start=self.start, end=self.end, steps=self.steps)

    def __call__(self, step: int, lr: float) -> float:
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * min(step / self.steps, 1.0))) / 2


@dataclass(frozen=True)
class Late:
    """0 for a share `start` of `steps` steps, then `rho`: plain steps for most of a training, sharp ones at its end."""

    start: float
    rho: float
    steps: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= 1:
            raise ValueError(f"start is a share of the training, between 0 and 1, not {self.start}")
        _check(rho=self.rho, steps=self.steps)

    def __call__(self, step: int, lr: float) -> float:
        return self.rho if step >= self.start * self.steps else 0.0


@dataclass(frozen=True)
class Proportional:
    """Follow the learning rate: rho_min + (rho_max - rho_min) (lr - lr_min) / (lr_max - lr_min), as in GSAM."""

    rho_max: float
    lr_max: float
    rho_min: float = 0.0
    lr_min: float = 0.0

    def __post_init__(self) -> None:
        if not self.lr_max > self.lr_min:
            raise ValueError(f"lr_max must be above lr_min: {self.lr_max} and {self.lr_min}")
        _check(rho_max=self.rho_max, rho_min=self.rho_min)

    def __call__(self, step: int, lr: float) -> float:
        share = (lr - self.lr_min) / (self.lr_max - self.lr_min)
        return max(0.0, self.rho_min + (self.rho_max - self.rho_min) * share)


def _check(steps: int = 1, **rhos: float) -> None:
    """Refuse at once what would stop a training half-way."""
    for name, value in rhos.items():
        if not value >= 0:
            raise ValueError(f"{name} is a length, 0 or more, not {value}")
    if steps < 1:
        raise ValueError(f"steps must be the number of steps of a training, not {steps}")
