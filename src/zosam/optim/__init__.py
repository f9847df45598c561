"""Sharpness-aware optimizers: one file per method, each a `SharpnessAware` around any torch optimizer."""

from zosam.optim.asam import ASAM
from zosam.optim.base import SharpnessAware
from zosam.optim.controls import MSAM, S2SAM, RandomSAM
from zosam.optim.esam import ESAM
from zosam.optim.gsam import GSAM
from zosam.optim.looksam import LookSAM
from zosam.optim.plain import SGD
from zosam.optim.sam import SAM
from zosam.optim.zosam import ZOSAM

_ALL: tuple[type[SharpnessAware], ...] = (SGD, SAM, ASAM, ESAM, LookSAM, GSAM, ZOSAM, RandomSAM, S2SAM, MSAM)
OPTIMIZERS: dict[str, type[SharpnessAware]] = {cls.__name__.lower(): cls for cls in _ALL}

__all__ = [
    "ASAM",
    "ESAM",
    "GSAM",
    "MSAM",
    "OPTIMIZERS",
    "S2SAM",
    "SAM",
    "SGD",
    "ZOSAM",
    "LookSAM",
    "RandomSAM",
    "SharpnessAware",
]
