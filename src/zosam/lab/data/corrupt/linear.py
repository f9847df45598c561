"""Linear maps that several corruptions share: Gaussian blur, a small kernel, zoom, and sampling between pixels.

Everywhere in this folder pictures are arrays (N, height, width, 3); layers without colour are (N, height, width).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]
Pictures = NDArray[np.uint8]


def unit(x: Pictures) -> Array:
    """Bytes as numbers from 0 to 1."""
    return x / 255.0


def full(x: Array) -> Array:
    """Numbers cut to 0 to 1 and put on the scale 0 to 255."""
    out: Array = np.clip(x, 0, 1) * 255
    return out


def bytes_of(x: Array) -> Pictures:
    """Numbers from 0 to 255 as bytes, cut off and not rounded: that is how the published files were made."""
    return np.clip(x, 0, 255).astype(np.uint8)


def gaussian(x: Array, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> Array:
    """Gaussian blur over height and width."""
    out: Array = scipy.ndimage.gaussian_filter(x, sigma, mode=mode, truncate=truncate, axes=(1, 2))
    return out


def correlate(x: Array, kernel: Array) -> Array:
    """Correlation with a small kernel, the border mirrored about the outermost pixel; one addition per tap."""
    height, width = kernel.shape
    top, left = height // 2, width // 2
    sides = ((0, 0), (top, height - 1 - top), (left, width - 1 - left)) + ((0, 0),) * (x.ndim - 3)
    padded, out = np.pad(x, sides, mode="reflect"), np.zeros_like(x)
    for (row, column), weight in np.ndenumerate(kernel):
        if weight:
            out += weight * padded[:, row : row + x.shape[1], column : column + x.shape[2]]
    return out


def zoom_matrix(size: int, factor: float) -> Array:
    """One axis of "cut out the middle and stretch it back to `size`" as a matrix (size, size)."""
    part = int(np.ceil(size / factor))
    start = (size - part) // 2
    stretched: Array = scipy.ndimage.zoom(np.eye(size)[start : start + part], (factor, 1), order=1)
    trim = (len(stretched) - size) // 2
    return stretched[trim : trim + size]


def sample(x: Array, rows: Array, columns: Array, *, mirror: bool) -> Array:
    """Bilinear values of x at (rows, columns), each (N, height, width).

    Outside, x is mirrored about the outermost pixel (`mirror`) or about its outer edge.
    """
    fold = _mirror if mirror else _reflect
    first = np.arange(len(x))[:, None, None]
    low_row, low_column = np.floor(rows), np.floor(columns)
    down, right = (rows - low_row)[..., None], (columns - low_column)[..., None]
    top, bottom = (fold(low_row + i, x.shape[1]) for i in (0, 1))
    left, other = (fold(low_column + i, x.shape[2]) for i in (0, 1))
    upper = x[first, top, left] * (1 - right) + x[first, top, other] * right
    lower = x[first, bottom, left] * (1 - right) + x[first, bottom, other] * right
    out: Array = upper * (1 - down) + lower * down
    return out


def _mirror(index: Array, size: int) -> NDArray[Any]:
    folded = np.mod(index, 2 * size - 2).astype(np.intp)
    return np.minimum(folded, 2 * size - 2 - folded)


def _reflect(index: Array, size: int) -> NDArray[Any]:
    folded = np.mod(index, 2 * size).astype(np.intp)
    return np.minimum(folded, 2 * size - 1 - folded)
