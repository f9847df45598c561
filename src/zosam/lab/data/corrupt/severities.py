"""All 19 corruptions of CIFAR-10-C with their five severities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from zosam.lab.data.corrupt import blur, digital, noise, weather
from zosam.lab.data.corrupt.linear import Array, Pictures, bytes_of
from zosam.lab.data.corrupt.spatter import spatter
from zosam.names import find


@dataclass(frozen=True)
class Corruption:
    """A function of pictures and the arguments that it takes at severity 1 to 5."""

    function: Callable[..., Array]
    severities: tuple[tuple[Any, ...], ...]


def _scaled(*rows: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(32 * value for value in row) for row in rows)  # given as parts of the picture's side


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(noise.gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "shot_noise": Corruption(noise.shot_noise, ((500.0,), (250.0,), (100.0,), (75.0,), (50.0,))),
    "impulse_noise": Corruption(noise.impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "defocus_blur": Corruption(blur.defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": Corruption(blur.glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
    "motion_blur": Corruption(blur.motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": Corruption(blur.zoom_blur, ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))),
    "snow": Corruption(
        weather.snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": Corruption(weather.frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": Corruption(weather.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": Corruption(digital.brightness, ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,))),
    "contrast": Corruption(digital.contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "elastic_transform": Corruption(
        digital.elastic_transform,
        _scaled((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": Corruption(digital.pixelate, ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,))),
    "jpeg_compression": Corruption(digital.jpeg_compression, ((80,), (65,), (58,), (50,), (40,))),
    "speckle_noise": Corruption(noise.speckle_noise, ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,))),
    "gaussian_blur": Corruption(blur.gaussian_blur, ((0.4,), (0.6,), (0.7,), (0.8,), (1.0,))),
    "spatter": Corruption(
        spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    ),
    "saturate": Corruption(digital.saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}


def corrupt(x: Pictures, name: str, severity: int, rng: np.random.Generator) -> Pictures:
    """Pictures (N, 32, 32, 3) under one corruption at severity 1 to 5."""
    if severity not in range(1, 6):
        raise ValueError(f"severity must be 1 to 5, not {severity}")
    corruption = find(CORRUPTIONS, name, "corruption")
    return bytes_of(corruption.function(x, *corruption.severities[severity - 1], rng=rng))
