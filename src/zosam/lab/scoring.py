"""The batch on which a method scores the weights of a fresh network, as the papers choose it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.distributed.ranks import Ranks, current
from zosam.lab.data import Data


def scoring_loss(model: nn.Module, source: Data, method: Any) -> Callable[[], Tensor]:
    """The loss that `method` asks for: on so many pictures of each class, at its temperature."""
    per_class, temperature = getattr(method, "per_class", 0), getattr(method, "temperature", 1.0)
    x, y = balanced(source, per_class, current()) if per_class else next(source.train.epoch(0))
    return lambda: F.cross_entropy(model(x) / temperature, y)


def balanced(source: Data, per_class: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """The first pictures of each class, in the order of the first epoch; ranks share them."""
    wanted, pictures, labels = -(-per_class // ranks.world), [], []
    left = torch.full((source.classes,), wanted)
    for x, y in source.train.epoch(0):
        if y.dim() != 1 or y.is_floating_point():  # mixed labels have no class
            return x, y
        for i, label in enumerate(y.tolist()):
            if left[label] > 0:
                left[label] -= 1
                pictures.append(x[i])
                labels.append(label)
        if not bool(left.any()):
            break
    return torch.stack(pictures), torch.tensor(labels)
