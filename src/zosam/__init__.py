"""Sparse training that is cheap, robust and real: ZO-SAM, the SAM family and the sparse-training methods."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from zosam.kernels.accelerate import accelerate
    from zosam.lab.serve import load, serve_bench
    from zosam.optim import (
        ASAM,
        ESAM,
        GSAM,
        MSAM,
        RWP,
        S2SAM,
        SAM,
        ZOSAM,
        Central,
        Coordinates,
        Gaussian,
        LastGradient,
        LookSAM,
        Momentum,
        NoisySAM,
        Pair,
        PaperZOSAM,
        Rademacher,
        RandomSAM,
        Scale,
        SharpnessAware,
        Subspace,
        Unperturbed,
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
    from zosam.sparse.save import save

ROOMS = ("optim", "sparse.save", "sparse", "kernels", "lab.serve")  # where the names below are, in the order of looking


def __getattr__(name: str) -> Any:
    """Rooms are entered when something in them is asked for: `zosam --help` need not wait for torch."""
    if name in {"distributed", "files", "integrations", "kernels", "lab", "names", "optim", "sparse"}:
        return import_module(f"zosam.{name}")
    for room in ROOMS if name in __all__ else ():
        module = import_module(f"zosam.{room}")
        if hasattr(module, name):
            globals()[name] = getattr(module, name)
            return globals()[name]
    raise AttributeError(f"module 'zosam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
    "NoisySAM",
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
    "Unperturbed",
    "Worst",
    "accelerate",
    "load",
    "save",
    "schedules",
    "serve_bench",
]
