"""Four kinds of noise: Gaussian, Poisson, salt and pepper, and noise in proportion to the brightness."""

from __future__ import annotations

import numpy as np

from zosam.lab.data.corrupt.linear import Array, Pictures, full, unit


def gaussian_noise(x: Pictures, scale: float, *, rng: np.random.Generator) -> Array:
    """Normal noise with standard deviation `scale` on every value."""
    return full(unit(x) + rng.normal(0.0, scale, x.shape))


def shot_noise(x: Pictures, photons: float, *, rng: np.random.Generator) -> Array:
    """Each value counted in photons: Poisson with mean value x photons."""
    return full(rng.poisson(unit(x) * photons) / photons)


def impulse_noise(x: Pictures, amount: float, *, rng: np.random.Generator) -> Array:
    """A share `amount` of all values is set to black or to white with equal chance."""
    hit, white = rng.random(x.shape) < amount, rng.random(x.shape) < 0.5
    return np.where(hit, np.where(white, 255.0, 0.0), x)


def speckle_noise(x: Pictures, scale: float, *, rng: np.random.Generator) -> Array:
    """Normal noise with standard deviation `scale` times the value."""
    value = unit(x)
    return full(value + value * rng.normal(0.0, scale, x.shape))
