"""Spatter: drops of water, whose rims shine, or spots of mud."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from zosam.lab.data.corrupt.linear import Array, Pictures, bytes_of, correlate, full, gaussian, unit

WATER = np.array([175, 238, 238]) / 255
MUD = np.array([63, 42, 20]) / 255
RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float64)
AROUND = np.ones((3, 3))


def spatter(
    x: Pictures,
    loc: float,
    scale: float,
    sigma: float,
    threshold: float,
    intensity: float,
    mud: int,
    *,
    rng: np.random.Generator,
) -> Array:
    """Drops where a smooth noise layer is high; water adds light at the rims, mud covers."""
    value, layer = unit(x), gaussian(rng.normal(loc, scale, x.shape[:3]), sigma)
    layer[layer < threshold] = 0
    if mud:
        cover = gaussian((layer > threshold).astype(np.float64), intensity)[..., None]
        cover[cover < 0.8] = 0
        return full(value * (1 - cover) + MUD * cover)
    drops = bytes_of(layer * 255)
    shine = drops * relief(edges(drops, 50, 150))
    highest = shine.max((1, 2), keepdims=True)
    shine = intensity * shine / np.where(highest == 0, 1, highest)  # a picture without drops stays as it is
    return full(value + shine[..., None] * WATER)


def relief(rims: NDArray[np.bool_]) -> Array:
    """Light that falls slantwise on hills which rise with the distance to the rims."""
    hills = bytes_of(correlate(np.minimum(distance(rims), 20), AROUND) / 9)
    lit = np.clip(np.rint(correlate(equalize(hills).astype(np.float64), RELIEF)), 0, 255)
    return np.rint(correlate(lit, AROUND) / 9)


def edges(x: Pictures, low: int, high: int) -> NDArray[np.bool_]:
    """Canny's edges: ridges of the gradient above `low` that touch one above `high`."""
    padded = np.pad(x.astype(np.int64), ((0, 0), (1, 1), (1, 1)), mode="edge")
    smooth = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    across = smooth[:, :, 2:] - smooth[:, :, :-2]
    smooth = padded[:, :, :-2] + 2 * padded[:, :, 1:-1] + padded[:, :, 2:]
    down = smooth[:, 2:] - smooth[:, :-2]
    size = np.abs(across) + np.abs(down)
    around = np.pad(size, ((0, 0), (1, 1), (1, 1)))

    def near(row: int, column: int) -> NDArray[np.int64]:
        return around[:, 1 + row : 1 + row + x.shape[1], 1 + column : 1 + column + x.shape[2]]

    flat = np.abs(down) < np.abs(across) * np.tan(np.pi / 8)
    steep = np.abs(down) > np.abs(across) * np.tan(3 * np.pi / 8)
    falling = (across < 0) != (down < 0)
    ridge = np.select(
        [flat, steep, falling],
        [
            (size > near(0, -1)) & (size >= near(0, 1)),
            (size > near(-1, 0)) & (size >= near(1, 0)),
            (size > near(-1, 1)) & (size > near(1, -1)),
        ],
        (size > near(-1, -1)) & (size > near(1, 1)),
    )
    weak = ridge & (size > low)
    within = np.zeros((3, 3, 3), bool)
    within[1] = True  # neighbours in the same picture only
    parts, count = scipy.ndimage.label(weak, within)
    strong = np.zeros(count + 1, bool)
    strong[parts[weak & (size > high)]] = True
    out: NDArray[np.bool_] = strong[parts]
    return out


def distance(rims: NDArray[np.bool_]) -> Array:
    """Distance to the nearest rim in steps of 1, 1.4 (diagonal) and 2.1969 (knight's move)."""
    out = np.where(rims, 0.0, 1e4)
    ramp = np.arange(rims.shape[2], dtype=np.float64)
    steps = ((1, 0, 1.0), (1, 1, 1.4), (1, -1, 1.4), (1, 2, 2.1969), (1, -2, 2.1969), (2, 1, 2.1969), (2, -1, 2.1969))
    for view in (out, out[:, ::-1, ::-1]):  # down and to the right, then back
        wide = np.pad(view, ((0, 0), (2, 0), (2, 2)), constant_values=1e4)
        for row in range(view.shape[1]):
            line = view[:, row]
            for up, side, cost in steps:
                above = wide[:, row + 2 - up, 2 + side : 2 + side + line.shape[1]]
                line = np.minimum(line, above + cost)
            view[:, row] = np.minimum.accumulate(line - ramp, 1) + ramp
            wide[:, row + 2, 2:-2] = view[:, row]
    return out


def equalize(x: Pictures) -> Pictures:
    """Each picture's values spread over 0..255 by its own cumulative histogram; the lowest becomes 0."""
    count, area = len(x), x[0].size
    places = np.arange(count)[:, None, None] * 256 + x
    histogram = np.bincount(places.ravel(), minlength=count * 256).reshape(count, 256)
    lowest = histogram[np.arange(count), x.min((1, 2))][:, None]
    rest = area - lowest
    scale = (255 / np.where(rest == 0, 1, rest)).astype(np.float32)
    table = np.rint((histogram.cumsum(1) - lowest).astype(np.float32) * scale)
    table = np.where(rest == 0, np.arange(256), np.maximum(table, 0))  # one value only: left alone
    out: Pictures = table.astype(np.uint8).ravel()[places]
    return out
