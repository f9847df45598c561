"""The C interface as Python sees it: the structures of kernels.c and the loaded library."""

from __future__ import annotations

import ctypes
import os
import warnings
from array import array
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from zosam.machine import cache_folder, cpu_name

from . import build

Structure = ctypes.Structure
Pointer = ctypes.c_void_p
Integer = ctypes.c_int64


def _structure(name: str, **fields: str) -> Any:
    """A C structure of pointers, integers and doubles, in the order they are given."""
    kinds = {"pointers": Pointer, "integers": Integer, "doubles": ctypes.c_double}
    members = [(field, kinds[kind]) for kind, names in fields.items() for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": members})


Source = _structure("Source", pointers="x xs xc xb y ys yc yb z out m", integers="activation")
Sink = _structure("Sink", pointers="out bias add gate gs gc gb with_ center stats", integers="activation")
Index = _structure("Index", pointers="start offset pick value", integers="groups")
Shape = _structure(
    "Shape",
    integers="images inputs outputs height width kernel stride pad side out_height out_width in_plane out_plane rows "
    "in_band out_band top bottom left right active",
)
BatchNorm = _structure(
    "BatchNorm",
    integers="images channels area batch_statistics",
    doubles="eps momentum",
    pointers="gamma beta running_mean running_var mean rstd scale shift gz gb",
)
LayerNorm = _structure(
    "LayerNorm",
    integers="images channels area plane",
    doubles="eps",
    pointers="x gamma beta out gradient add gamma_gradient beta_gradient",
)

PixelShape = _structure(
    "PixelShape",
    integers="images inputs outputs height width kernel stride pad side out_height out_width in_plane in_row out_plane "
    "out_row rows band band_row half active",
)
Window = _structure(
    "Window",
    integers="images channels height width high wide stride pad side out_height out_width in_plane out_plane largest "
    "padded",
    pointers="source gradient out sink",
)

# as C numbers its calls
CONV_FORWARD, CONV_BACKWARD, SWEEP, MOVE, BATCH_NORM_FORWARD, BATCH_NORM_BACKWARD, LAYER_NORM = range(7)
PIXEL_CONV, PIXEL_MOVE, PIXEL_POOL, WINDOW, PIXEL_WINDOW = range(7, 12)
MOVE_OUT, MOVE_IN, MOVE_IN_FINITE = range(3)  # the ways of a move


class NotFinite(ArithmeticError):
    """An input is infinite or not a number."""


class Library:
    """One loaded build of the kernels: its functions, vector width and origin."""

    def __init__(self, path: Path, origin: str) -> None:
        self.path, self.origin = path, origin
        self.c = ctypes.CDLL(str(path))
        self.c.zk_lanes.restype = Integer
        self.c.zk_variant.restype = ctypes.c_char_p
        self.c.zk_calls.argtypes = [Pointer, Integer]
        self.c.zk_use_team.argtypes = [Pointer, Pointer]
        self.c.zk_strays.argtypes, self.c.zk_strays.restype = [Pointer, Integer], Integer
        self.team = torchs_team()
        self.c.zk_use_team(*self.team)
        self.lanes = int(self.c.zk_lanes())
        self.variant = self.c.zk_variant().decode()

    def call(self, number: int, *arguments: int) -> None:
        """Make one call."""
        words = array("q", (number, *arguments))
        self.run(*words.buffer_info())

    def run(self, address: int, length: int) -> None:
        """Make the calls that are written, one after another, in `length` integers at an address."""
        failed = self.c.zk_calls(address, length)
        if failed == 2:
            raise NotFinite
        if failed:
            raise MemoryError("the sparse kernels could not allocate their working memory")


def torchs_team() -> tuple[int, int] | tuple[None, None]:
    """How torch's OpenMP runtime runs a function on its threads, which the kernels share, and numbers them.

    Nothing is linked: the symbols are looked up among the libraries that torch has loaded. None if they are not there.
    """
    try:
        loaded = ctypes.CDLL(torch._C.__file__)
        functions = loaded.GOMP_parallel, loaded.omp_get_thread_num
    except (OSError, AttributeError):  # another kind of runtime, or none
        return None, None
    parallel, number = (int(ctypes.cast(function, Pointer).value or 0) for function in functions)
    return parallel, number


def disabled() -> bool:
    """Whether the user wants no kernels at all: ZOSAM_DENSE is set."""
    return bool(os.environ.get("ZOSAM_DENSE"))


@lru_cache(maxsize=1)
def find() -> tuple[Library | None, list[str]]:
    """The library for this CPU, and why others were passed over."""
    reasons: list[str] = []
    if not disabled():
        for path, origin in build.libraries(reasons):
            try:
                return Library(path, origin), reasons
            except (OSError, AttributeError) as error:  # not a library, or not one of these kernels
                reasons.append(f"{path} is no library of these kernels ({error})")
    return None, reasons


@lru_cache(maxsize=1)
def load() -> Library | None:
    """The library for this CPU, or None after one warning that says why everything will run dense."""
    lib, reasons = find()
    if lib is None and not disabled():
        why = "; ".join(reasons)
        warnings.warn(f"no sparse kernels, so everything runs dense: {why}", RuntimeWarning, stacklevel=3)
    return lib


def doctor() -> list[str]:
    """What will run here: which build, where it comes from, what is missing otherwise; one line per finding."""
    lib, reasons = find()
    lines = [f"CPU: {cpu_name()}; builds it can run: {', '.join(build.variants())}"]
    if lib is not None:
        lines.append(f"kernels: {lib.variant}, {lib.lanes} images per vector, {lib.origin}: {lib.path}")
    else:
        lines.append("kernels: none, so everything runs dense" + " (ZOSAM_DENSE is set)" * disabled())
    lines += [f"passed over: {reason}" for reason in reasons]
    lines.append(f"compiler: {build.compiler() or 'none found (set CC, or install gcc or clang)'}")
    lines.append(f"cache: {cache_folder()}")
    whose = "" if lib is None else ", torch's own" if lib.team[0] else ", in a pool beside torch's"
    lines.append(f"threads: {torch.get_num_threads()}{whose} (torch.set_num_threads changes it for the kernels too)")
    return lines
