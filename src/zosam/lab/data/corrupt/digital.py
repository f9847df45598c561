"""Corruptions of the signal: brightness, contrast, saturation, elastic bending, pixelation, JPEG."""

from __future__ import annotations

import io

import numpy as np

from zosam.lab.data.corrupt.linear import Array, Pictures, full, gaussian, sample, unit
from zosam.lab.data.errors import DataError


def brightness(x: Pictures, amount: float, *, rng: np.random.Generator) -> Array:
    """Add `amount` to the value of HSV: hue and saturation stay, so all channels grow in proportion."""
    value = unit(x)
    top = value.max(-1, keepdims=True)
    lifted = np.clip(top + amount, 0, 1)
    return full(np.where(top == 0, lifted, value * (lifted / np.where(top == 0, 1, top))))


def contrast(x: Pictures, factor: float, *, rng: np.random.Generator) -> Array:
    """Pull all values towards the mean of their channel."""
    value = unit(x)
    mean = value.mean((1, 2), keepdims=True)
    return full((value - mean) * factor + mean)


def saturate(x: Pictures, factor: float, offset: float, *, rng: np.random.Generator) -> Array:
    """Multiply and shift the saturation of HSV; hue and value stay. A grey pixel has the hue of red."""
    value = unit(x)
    top = value.max(-1, keepdims=True)
    gap = top - value  # saturation x value, channel by channel
    span = gap.max(-1, keepdims=True)
    saturation = span / np.where(top == 0, 1, top)
    wanted = np.clip(saturation * factor + offset, 0, 1)
    share = np.where(span == 0, np.array([0.0, 1.0, 1.0]), gap / np.where(span == 0, 1, span))
    return full(top - top * wanted * share)


def elastic_transform(x: Pictures, alpha: float, sigma: float, affine: float, *, rng: np.random.Generator) -> Array:
    """Bend: an affine map that moves three points by up to `affine`, then a smooth random displacement."""
    count, height, width, _ = x.shape
    middle, arm = np.array([height // 2, width // 2]), min(height, width) // 3
    fixed = np.array([middle + arm, [middle[0] + arm, middle[1] - arm], middle - arm], np.float64)
    moved = fixed + rng.uniform(-affine, affine, (count, 3, 2))
    # the affine map back: (x, y, 1) of the new picture to (x, y) of the old one
    back = np.linalg.solve(np.concatenate((moved, np.ones((count, 3, 1))), 2), np.broadcast_to(fixed, moved.shape))
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    points = np.stack((columns, rows, np.ones_like(rows)), -1) @ back[:, None]
    bent = sample(unit(x), points[..., 1], points[..., 0], mirror=True)
    right, down = (
        gaussian(rng.uniform(-1, 1, (count, height, width)), sigma, mode="reflect", truncate=3.0) * alpha
        for _ in range(2)
    )
    return full(sample(bent, rows + down, columns + right, mirror=False))


def box(size: int, target: int) -> Array:
    """One axis of Pillow's BOX resize as a matrix (target, size): the mean of the pixels whose centre is inside."""
    scale = size / target
    centre = (np.arange(target)[:, None] + 0.5) * scale
    offset = (np.arange(size) + 0.5 - centre) / max(scale, 1)
    inside = ((offset > -0.5) & (offset <= 0.5)).astype(np.float64)
    out: Array = inside / inside.sum(1, keepdims=True)
    return out


def pixelate(x: Pictures, factor: float, *, rng: np.random.Generator) -> Array:
    """Shrink by `factor` and enlarge again with Pillow's BOX filter, rounded after each axis as there."""
    out = x.astype(np.float64)
    height, width = x.shape[1:3]
    for row, column in (
        (box(height, int(height * factor)), box(width, int(width * factor))),
        (box(int(height * factor), height), box(int(width * factor), width)),
    ):
        out = np.floor(np.einsum("nhwc,vw->nhvc", out, column, optimize=True) + 0.5)
        out = np.floor(np.einsum("nhwc,uh->nuwc", out, row, optimize=True) + 0.5)
    return out


def jpeg_compression(x: Pictures, quality: int, *, rng: np.random.Generator) -> Array:
    """Save as JPEG and read back, picture by picture: blocks of neighbours would leak into each other."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise DataError("jpeg_compression needs Pillow: pip install 'zosam[corruptions]'") from error
    out = np.empty(x.shape)
    for number, picture in enumerate(x):
        stream = io.BytesIO()
        Image.fromarray(picture).save(stream, "JPEG", quality=quality)
        with Image.open(stream, formats=("JPEG",)) as compressed:
            out[number] = np.asarray(compressed)
    return out
