"""Three kinds of weather: snow, frost on the lens, fog."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np

from zosam.lab.data.corrupt.blur import move
from zosam.lab.data.corrupt.linear import Array, Pictures, bytes_of, full, unit, zoom_matrix
from zosam.lab.data.errors import DataError

FROST = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # the sixth was never drawn


def snow(
    x: Pictures,
    loc: float,
    scale: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    blend: float,
    *,
    rng: np.random.Generator,
) -> Array:
    """Flakes: bright spots of a noise layer, blurred along their fall, on a whitened picture."""
    layer = rng.normal(loc, scale, x.shape[:3])
    layer = zoom_matrix(x.shape[1], zoom) @ layer @ zoom_matrix(x.shape[2], zoom).T
    layer[layer < threshold] = 0
    layer = bytes_of(full(layer)).astype(np.float64)
    flakes = (np.rint(move(layer, radius, sigma, rng.uniform(-135, -45, len(x)))) / 255)[..., None]
    value = unit(x)
    gray = (value @ np.array([0.299, 0.587, 0.114]))[..., None]
    value = blend * value + (1 - blend) * np.maximum(value, gray * 1.5 + 0.5)
    return full(value + flakes + flakes[:, ::-1, ::-1])


@lru_cache(maxsize=1)
def frost_pictures() -> tuple[Array, ...]:
    """The frost pictures of the package imagecorruptions-imaug, at a fifth of their size."""
    found = importlib.util.find_spec("imagecorruptions")  # not imported: it would bring numba and opencv along
    try:
        from PIL import Image
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        raise DataError("frost needs the pictures of imagecorruptions-imaug: pip install 'zosam[corruptions]'")
    folder = Path(found.origin).parent / "frost"
    pictures = []
    for name in FROST:
        with Image.open(folder / name, formats=("PNG", "JPEG")) as picture:
            # a linear resize by 0.2 reads exactly the middle pixel of each 5 x 5
            pictures.append(np.asarray(picture.convert("RGB"), np.float64)[2::5, 2::5])
    return tuple(pictures)


def frost(x: Pictures, picture_weight: float, frost_weight: float, *, rng: np.random.Generator) -> Array:
    """A random piece of a random frost picture, added in proportion."""
    pictures = frost_pictures()
    chosen = rng.integers(0, len(pictures), len(x))
    sizes = np.array([p.shape[:2] for p in pictures])[chosen] - x.shape[1:3]
    top, left = (rng.integers(0, sizes[:, axis]) for axis in (0, 1))
    pieces = np.empty(x.shape)
    for number, picture in enumerate(pictures):
        (which,) = np.nonzero(chosen == number)
        rows = top[which, None] + np.arange(x.shape[1])
        columns = left[which, None] + np.arange(x.shape[2])
        pieces[which] = picture[rows[:, :, None], columns[:, None, :]]
    return np.clip(picture_weight * x + frost_weight * pieces, 0, 255)


def plasma(count: int, size: int, decay: float, rng: np.random.Generator) -> Array:
    """`count` fractal clouds from 0 to 1 by the diamond-square method; `size` is a power of two.

    Each pass fills the middles of the squares, then of the diamonds, with the mean of four neighbours (the
    map wraps around) and noise of squared amplitude; the amplitude starts at 100 and falls by `decay`.
    """
    cloud = np.zeros((count, size, size))
    amplitude, step = 100.0, size

    def jitter(total: Array) -> Array:
        return total / 4 + amplitude * rng.uniform(-amplitude, amplitude, total.shape)

    while step >= 2:
        half = step // 2
        corner = cloud[:, ::step, ::step]
        below = corner + np.roll(corner, -1, 1)
        cloud[:, half::step, half::step] = jitter(below + np.roll(below, -1, 2))
        middle = cloud[:, half::step, half::step]
        across = middle + np.roll(middle, 1, 1) + corner + np.roll(corner, -1, 2)
        cloud[:, ::step, half::step] = jitter(across)
        along = middle + np.roll(middle, 1, 2) + corner + np.roll(corner, -1, 1)
        cloud[:, half::step, ::step] = jitter(along)
        amplitude, step = amplitude / decay, half
    cloud -= cloud.min((1, 2), keepdims=True)
    out: Array = cloud / cloud.max((1, 2), keepdims=True)
    return out


def fog(x: Pictures, amount: float, decay: float, *, rng: np.random.Generator) -> Array:
    """A cloud is added and the result scaled back to the picture's brightest value."""
    value = unit(x)
    brightest = value.max((1, 2, 3), keepdims=True)
    size = 1 << (max(x.shape[1:3]) - 1).bit_length()
    cloud = plasma(len(x), size, decay, rng)[:, : x.shape[1], : x.shape[2], None]
    return full((value + amount * cloud) * brightest / (brightest + amount))
