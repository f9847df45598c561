"""Sharpness-aware optimizers: one file per method, each a `SharpnessAware` around any torch optimizer."""

from zosam.optim.base import SharpnessAware
from zosam.optim.plain import SGD
from zosam.optim.sam import SAM
from zosam.optim.zosam import ZOSAM

OPTIMIZERS: dict[str, type[SharpnessAware]] = {cls.__name__.lower(): cls for cls in (SGD, SAM, ZOSAM)}

__all__ = ["OPTIMIZERS", "SAM", "SGD", "ZOSAM", "SharpnessAware"]
