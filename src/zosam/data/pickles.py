"""Reading the CIFAR pickles without trusting them: arrays and plain containers come out, nothing else is run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from zosam.data.errors import DataError


def _empty(kind: type, shape: tuple[int, ...], code: bytes | str) -> np.ndarray[Any, Any]:
    """What numpy's `_reconstruct` does: an empty array, filled by the state that follows in the pickle."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError("an array of another kind than numpy.ndarray")
    return np.ndarray((0,), np.int8)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 writes bytes in the pickle protocol 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class Restricted(pickle.Unpickler):
    """An unpickler that knows the five names that the CIFAR files use, and refuses all others."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        try:
            return ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which is not data") from None


def read_pickle(path: Path, advice: str) -> dict[str, Any]:
    """The dictionary in a pickle file; `advice` says what to do if it cannot be read."""
    try:
        with open(path, "rb") as file:
            content = Restricted(file, encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"{path} is not there: {advice}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        reason = str(error) or type(error).__name__
        raise DataError(f"{path} is damaged or not a CIFAR file ({reason}): {advice}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, not the dictionary of a CIFAR file: {advice}")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}
