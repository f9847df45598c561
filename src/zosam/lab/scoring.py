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
    ranks = current()
    if not per_class:
        x, y = next(source.train.epoch(0))
        return lambda: F.cross_entropy(model(x) / temperature, y)
    x, y, total = balanced(source, per_class, ranks)  # its mean over ranks is the mean over all pictures
    return lambda: F.cross_entropy(model(x) / temperature, y, reduction="sum") * (ranks.world / total)


def balanced(source: Data, per_class: int, ranks: Ranks) -> tuple[Tensor, Tensor, int]:
    """The first pictures of each class, in the order of the first epoch, and how many they are.

    Ranks choose those that one process would choose; each gets the ones that it holds. Where labels are mixed, it is
    the first batch.
    """
    pictures, labels, total = [], [], 0
    left = [per_class] * source.classes
    for x, y in source.train.epoch(0):
        if y.dim() != 1 or y.is_floating_point():  # mixed labels have no class
            return x, y, len(y) * ranks.world
        everybody = torch.stack(ranks.gather(y, "scores"), 1).flatten()  # as one process would see them
        for i, label in enumerate(everybody.tolist()):
            if left[label]:
                left[label] -= 1
                total += 1
                if i % ranks.world == ranks.rank:
                    pictures.append(x[i // ranks.world])
                    labels.append(label)
        if not any(left):
            break
    return torch.stack(pictures), torch.tensor(labels, device=y.device), total
