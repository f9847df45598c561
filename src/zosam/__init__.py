"""Sparse training that is cheap, robust and real: ZO-SAM, the SAM family and the sparse-training methods."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from zosam.kernels import accelerate
from zosam.optim import (
    ASAM,
    ESAM,
    GSAM,
    MSAM,
    RWP,
    S2SAM,
    SAM,
    SGD,
    ZOSAM,
    Central,
    Coordinates,
    Gaussian,
    LastGradient,
    LookSAM,
    Momentum,
    Pair,
    PaperZOSAM,
    Rademacher,
    RandomSAM,
    Scale,
    SharpnessAware,
    Subspace,
    Worst,
    schedules,
)
from zosam.sparse import (
    DSR,
    GMP,
    LTH,
    MEST,
    SET,
    SNFS,
    SNIP,
    DeepR,
    GraSP,
    Magnitude,
    Random,
    RigL,
    Sparsity,
    SViTE,
    SynFlow,
    TopKAST,
)

if TYPE_CHECKING:
    from zosam.lab.serve import load


def __getattr__(name: str) -> Any:
    """What stands in the laboratory is imported when it is asked for."""
    if name == "load":
        from zosam.lab.serve import load

        return load
    raise AttributeError(f"module 'zosam' has no attribute {name!r}")


__all__ = [
    "ASAM",
    "DSR",
    "ESAM",
    "GMP",
    "GSAM",
    "LTH",
    "MEST",
    "MSAM",
    "RWP",
    "S2SAM",
    "SAM",
    "SET",
    "SGD",
    "SNFS",
    "SNIP",
    "ZOSAM",
    "Central",
    "Coordinates",
    "DeepR",
    "Gaussian",
    "GraSP",
    "LastGradient",
    "LookSAM",
    "Magnitude",
    "Momentum",
    "Pair",
    "PaperZOSAM",
    "Rademacher",
    "Random",
    "RandomSAM",
    "RigL",
    "SViTE",
    "Scale",
    "SharpnessAware",
    "Sparsity",
    "Subspace",
    "SynFlow",
    "TopKAST",
    "Worst",
    "accelerate",
    "load",
    "schedules",
]
