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

from .build import find_library

Structure = ctypes.Structure
Pointer = ctypes.c_void_p
Integer = ctypes.c_int64


def _structure(name: str, **fields: str) -> Any:
    """A C structure of pointers, integers and doubles, in the order they are given."""
    kinds = {"pointers": Pointer, "integers": Integer, "doubles": ctypes.c_double}
    members = [(field, kinds[kind]) for kind, names in fields.items() for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": members})


Source = _structure("Source", pointers="x xs xc xb y ys yc yb z out", integers="activation")
Sink = _structure("Sink", pointers="out bias add gate gs gc gb with_ center stats", integers="activation")
Index = _structure("Index", pointers="start offset pick value", integers="groups")
Shape = _structure(
    "Shape",
    integers="images inputs outputs height width kernel stride pad out_height out_width in_plane out_plane rows "
    "in_band out_band top bottom active",
)
Norm = _structure(
    "Norm",
    integers="images channels area batch_statistics",
    doubles="eps momentum",
    pointers="gamma beta running_mean running_var mean rstd scale shift gz gb",
)
RowNorm = _structure(
    "RowNorm",
    integers="images channels area plane",
    doubles="eps",
    pointers="x gamma beta out gradient add gamma_gradient beta_gradient",
)

CONV_FORWARD, CONV_BACKWARD, SWEEP, MOVE, NORM_FORWARD, NORM_BACKWARD, ROW_NORM = range(7)  # as C numbers its calls


class Library:
    """One loaded build of the kernels: its functions, vector width and origin."""

    def __init__(self, path: Path, origin: str) -> None:
        self.path, self.origin = path, origin
        self.c = ctypes.CDLL(str(path))
        self.c.zk_lanes.restype = Integer
        self.c.zk_variant.restype = ctypes.c_char_p
        self.c.zk_calls.argtypes = [Pointer, Integer]
        self.c.zk_use_team.argtypes = [Pointer, Pointer]
        self.team = torchs_team()
        self.c.zk_use_team(*self.team)
        self.lanes = int(self.c.zk_lanes())
        self.variant = self.c.zk_variant().decode()


class Calls:
    """Calls of the library, put on a list and then made at one go.

    Python between two kernels would find cold caches, while all threads but one wait.
    """

    def __init__(self, lib: Library) -> None:
        self._c, self._list = lib.c, array("q")

    def add(self, number: int, *arguments: int) -> None:
        """One more call; what it is given by address must be there until `make`."""
        self._list.extend((number, *arguments))

    def make(self) -> None:
        """Make all of them, in order."""
        waiting, self._list = self._list, array("q")
        if self._c.zk_calls(*waiting.buffer_info()):  # the one way to fail
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
def load() -> Library | None:
    """The library for this CPU, or None after one warning that says why everything will run dense."""
    if disabled():
        return None
    path, origin = find_library()
    if path is None:
        warnings.warn(f"no sparse kernels, so everything runs dense: {origin}", RuntimeWarning, stacklevel=3)
        return None
    try:
        return Library(path, origin)
    except (OSError, AttributeError) as error:  # not a library, or not one of these kernels
        warnings.warn(f"no sparse kernels, so everything runs dense: {error}", RuntimeWarning, stacklevel=3)
        return None
