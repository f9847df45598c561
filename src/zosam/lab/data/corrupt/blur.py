"""Five blurs: out of focus, Gaussian, frosted glass, a moving camera, a zooming camera."""

from __future__ import annotations

import numpy as np

from zosam.lab.data.corrupt.linear import Array, Pictures, bytes_of, correlate, full, gaussian, unit, zoom_matrix


def gaussian_blur(x: Pictures, sigma: float, *, rng: np.random.Generator) -> Array:
    """Gaussian blur of width `sigma` pixels."""
    return full(gaussian(unit(x), sigma))


def disk(radius: float, alias_blur: float) -> Array:
    """A disk of constant weight, its rim softened by a small Gaussian; the sum is 1."""
    reach = max(8, int(radius))
    line = np.arange(-reach, reach + 1)
    flat = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    size = 1 if radius <= 8 else 2
    rim = np.exp(-(np.arange(-size, size + 1) ** 2) / (2 * alias_blur**2))
    rim /= rim.sum()
    out: Array = correlate((flat / flat.sum())[None], np.outer(rim, rim))[0]
    return out


def defocus_blur(x: Pictures, radius: float, alias_blur: float, *, rng: np.random.Generator) -> Array:
    """A lens out of focus: each point becomes a disk."""
    return full(correlate(unit(x), disk(radius, alias_blur)))


def glass_blur(x: Pictures, sigma: float, reach: int, rounds: int, *, rng: np.random.Generator) -> Array:
    """Frosted glass: blur, let each pixel take the value of a near one, blur again.

    The published pictures come from code that meant to exchange two pixels but copied one over the other
    (both sides of the assignment were views); so do we.
    """
    out = bytes_of(gaussian(unit(x), sigma) * 255)
    rows, columns = (range(size - reach, reach, -1) for size in x.shape[1:3])
    moves = rng.integers(-reach, reach, (rounds, len(rows), len(columns), 2, len(x)))
    every = np.arange(len(x))
    for turn in moves:
        for row, line in zip(rows, turn, strict=True):
            for column, (right, down) in zip(columns, line, strict=True):
                out[:, row, column] = out[every, row + down, column + right]
    return full(gaussian(unit(out), sigma))


def move(x: Array, radius: int, sigma: float, angles: Array) -> Array:
    """Blur along a line, as a moving camera does: copies shifted by whole pixels, with half-Gaussian weights.

    This stands for ImageMagick's motion blur: the same 2 radius + 1 weights and the same rounding of the
    shifts; outside the picture its outermost pixel is repeated.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    radians = np.deg2rad(angles)[:, None]
    down, right = (np.ceil(steps * f(radians) - 0.5).astype(np.intp) for f in (np.sin, np.cos))
    rows, columns = (np.arange(size) for size in x.shape[1:3])
    every, out = np.arange(len(x))[:, None, None], np.zeros(x.shape)
    for step, weight in enumerate(weights):
        row = np.clip(rows + down[:, step, None], 0, x.shape[1] - 1)
        column = np.clip(columns + right[:, step, None], 0, x.shape[2] - 1)
        out += weight * x[every, row[:, :, None], column[:, None, :]]
    return out


def motion_blur(x: Pictures, radius: int, sigma: float, *, rng: np.random.Generator) -> Array:
    """A camera that moves at an angle between -45 and 45 degrees; rounded, as ImageMagick does."""
    return np.rint(move(x.astype(np.float64), radius, sigma, rng.uniform(-45, 45, len(x))))


def zoom_blur(x: Pictures, stop: float, step: float, *, rng: np.random.Generator) -> Array:
    """The mean of the picture and of its zooms by 1, 1 + step, ... below `stop`, as one linear map."""
    factors = np.arange(1, stop, step)
    rows, columns = x.shape[1:3]
    total = np.eye(rows * columns)
    for factor in factors:
        total += np.kron(zoom_matrix(rows, factor), zoom_matrix(columns, factor))
    flat = unit(x).transpose(0, 3, 1, 2).reshape(-1, rows * columns)
    out = (flat @ total.T / (len(factors) + 1)).reshape(len(x), 3, rows, columns).transpose(0, 2, 3, 1)
    return full(out)
