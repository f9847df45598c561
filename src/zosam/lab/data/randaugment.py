"""RandAugment as DeiT uses it: two random changes per picture, magnitude 9 with standard deviation 0.5.

Cubuk et al.: RandAugment: practical automated data augmentation with a reduced search space, 2020.
The set of changes is the one whose strength always grows with the magnitude; each is made with chance 1/2.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

FILL = (124, 116, 104)  # ImageNet's mean colour
Change = Callable[["Image", float, Random], "Image"]


def rand_augment(picture: Image, random: Random, magnitude: float = 9.0, deviation: float = 0.5) -> Image:
    """Two changes drawn from CHANGES, each made or not by a coin."""
    for change in random.choices(CHANGES, k=2):
        strength = min(max(random.gauss(magnitude, deviation), 0.0), 10.0) / 10
        if random.random() < 0.5:
            picture = change(picture, strength, random)
    return picture


def _sign(value: float, random: Random) -> float:
    return -value if random.random() < 0.5 else value


def _warp(picture: Image, a: float, b: float, c: float, d: float, e: float, f: float) -> Image:
    from PIL import Image

    matrix = (a, b, c, d, e, f)
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC, fillcolor=FILL)


def auto_contrast(picture: Image, strength: float, random: Random) -> Image:
    from PIL import ImageOps

    return ImageOps.autocontrast(picture)


def equalize(picture: Image, strength: float, random: Random) -> Image:
    from PIL import ImageOps

    return ImageOps.equalize(picture)


def invert(picture: Image, strength: float, random: Random) -> Image:
    from PIL import ImageOps

    return ImageOps.invert(picture)


def rotate(picture: Image, strength: float, random: Random) -> Image:
    from PIL import Image

    return picture.rotate(_sign(30 * strength, random), Image.Resampling.BICUBIC, fillcolor=FILL)


def posterize(picture: Image, strength: float, random: Random) -> Image:
    return picture.point([value & (0xFF << 8 - (4 - int(4 * strength))) for value in range(256)] * 3)


def solarize(picture: Image, strength: float, random: Random) -> Image:
    threshold = 256 - int(256 * strength)
    return picture.point([value if value < threshold else 255 - value for value in range(256)] * 3)


def solarize_add(picture: Image, strength: float, random: Random) -> Image:
    more = int(110 * strength)
    return picture.point([min(255, value + more) if value < 128 else value for value in range(256)] * 3)


def shear_x(picture: Image, strength: float, random: Random) -> Image:
    return _warp(picture, 1, _sign(0.3 * strength, random), 0, 0, 1, 0)


def shear_y(picture: Image, strength: float, random: Random) -> Image:
    return _warp(picture, 1, 0, 0, _sign(0.3 * strength, random), 1, 0)


def translate_x(picture: Image, strength: float, random: Random) -> Image:
    return _warp(picture, 1, 0, _sign(0.45 * strength, random) * picture.width, 0, 1, 0)


def translate_y(picture: Image, strength: float, random: Random) -> Image:
    return _warp(picture, 1, 0, 0, 0, 1, _sign(0.45 * strength, random) * picture.height)


def _enhance(kind: str) -> Change:
    def change(picture: Image, strength: float, random: Random) -> Image:
        from PIL import ImageEnhance

        factor = max(0.1, 1 + _sign(0.9 * strength, random))
        out: Image = getattr(ImageEnhance, kind)(picture).enhance(factor)
        return out

    return change


CHANGES: tuple[Change, ...] = (
    auto_contrast,
    equalize,
    invert,
    rotate,
    posterize,
    solarize,
    solarize_add,
    _enhance("Color"),
    _enhance("Contrast"),
    _enhance("Brightness"),
    _enhance("Sharpness"),
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)
