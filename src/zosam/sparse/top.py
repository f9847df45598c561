"""Choosing the k best of many scores, exactly."""

from __future__ import annotations

import torch
from torch import Tensor


def top(score: Tensor, k: int) -> Tensor:
    """A mask of the k highest scores, exactly k of them whatever the ties, laid out in memory like `score`."""
    mask = torch.zeros(score.numel(), dtype=torch.bool, device=score.device)
    mask[score.reshape(-1).topk(k, sorted=False).indices] = True
    return torch.empty_like(score, dtype=torch.bool).copy_(mask.view(score.shape))
