"""Sharpness-aware optimizers: one file per method, each a `SharpnessAware` around any torch optimizer."""

from collections.abc import Callable

from zosam.optim import schedules
from zosam.optim.base import SharpnessAware
from zosam.optim.controls import MSAM, S2SAM, SGD, RandomSAM
from zosam.optim.esam import ESAM
from zosam.optim.gsam import GSAM
from zosam.optim.looksam import LookSAM
from zosam.optim.probes import Central, Coordinates, Gaussian, LastGradient, Momentum, Pair, Rademacher, Subspace, Worst
from zosam.optim.rwp import RWP
from zosam.optim.sam import ASAM, SAM
from zosam.optim.scale import Scale
from zosam.optim.zosam import ZOSAM, PaperZOSAM

_ALL: tuple[type[SharpnessAware], ...] = (
    SGD,
    SAM,
    ASAM,
    ESAM,
    LookSAM,
    GSAM,
    ZOSAM,
    PaperZOSAM,
    RWP,
    RandomSAM,
    S2SAM,
    MSAM,
)
OPTIMIZERS: dict[str, type[SharpnessAware]] = {cls.__name__.lower(): cls for cls in _ALL}
PRESETS: dict[str, Callable[..., SharpnessAware]] = {"zosam.fast": ZOSAM.fast}
_PARTS = (Gaussian, Rademacher, Momentum, LastGradient, Subspace, Coordinates, Central, Worst, Pair, Scale)
PARTS: dict[str, type] = {cls.__name__.lower(): cls for cls in _PARTS}

__all__ = [
    "ASAM",
    "ESAM",
    "GSAM",
    "MSAM",
    "OPTIMIZERS",
    "PARTS",
    "PRESETS",
    "RWP",
    "S2SAM",
    "SAM",
    "SGD",
    "ZOSAM",
    "Central",
    "Coordinates",
    "Gaussian",
    "LastGradient",
    "LookSAM",
    "Momentum",
    "Pair",
    "PaperZOSAM",
    "Rademacher",
    "RandomSAM",
    "Scale",
    "SharpnessAware",
    "Subspace",
    "Worst",
    "schedules",
]
