"""Changes to a whole batch of normalised pictures: random erasing, mixup and cutmix."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def erase(x: Tensor, rng: np.random.Generator, chance: float = 0.25) -> Tensor:
    """Fill a random rectangle (2 to 33 % of the area) of some pictures with normal noise, in place.

    Zhong et al.: Random erasing data augmentation, AAAI 2020.
    """
    height, width = x.shape[2:]
    for picture in x:
        if rng.random() >= chance:
            continue
        for _ in range(10):
            area = rng.uniform(0.02, 1 / 3) * height * width
            ratio = math.exp(rng.uniform(math.log(0.3), math.log(1 / 0.3)))
            tall, wide = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if tall < height and wide < width:
                top, left = rng.integers(0, height - tall + 1), rng.integers(0, width - wide + 1)
                noise = rng.standard_normal((len(picture), tall, wide), np.float32)
                picture[:, top : top + tall, left : left + wide] = torch.from_numpy(noise).to(x.device)
                break
    return x


def mix(x: Tensor, y: Tensor, classes: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Mixup or cutmix, by a coin, of each picture with its opposite in the batch; labels become shares.

    Mixup (Zhang et al., ICLR 2018) blends with a weight from Beta(0.8, 0.8); cutmix (Yun et al., ICCV 2019)
    pastes a rectangle whose area is from Beta(1, 1).
    """
    other = x.flip(0)
    if rng.random() < 0.5:
        height, width = x.shape[2:]
        side = math.sqrt(1 - rng.beta(1.0, 1.0))
        tall, wide = int(height * side), int(width * side)
        row, column = int(rng.integers(0, height)), int(rng.integers(0, width))
        top, bottom = max(row - tall // 2, 0), min(row + tall // 2, height)
        left, right = max(column - wide // 2, 0), min(column + wide // 2, width)
        x = x.clone()
        x[:, :, top:bottom, left:right] = other[:, :, top:bottom, left:right]
        weight = 1 - (bottom - top) * (right - left) / (height * width)
    else:
        weight = float(rng.beta(0.8, 0.8))
        x = weight * x + (1 - weight) * other
    shares = F.one_hot(y, classes).float()
    return x, weight * shares + (1 - weight) * shares.flip(0)
