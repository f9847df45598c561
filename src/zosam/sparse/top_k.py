"""Choosing the k best of many scores, exactly and fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def top(score: Tensor, k: int) -> Tensor:
    """A mask of the k highest scores, laid out in memory like `score`; of equal ones the first are taken."""
    flat = score.detach().reshape(-1)
    if k >= flat.numel() or k <= 0:
        return torch.full_like(score, k > 0, dtype=torch.bool)
    mask = _choose(_numbers(flat), k) if flat.device.type == "cpu" else _choose_on_device(flat, k)
    return laid_out_like(score, mask)


def top_of_all(scores: Mapping[str, Tensor], k: int) -> dict[str, Tensor]:
    """Masks of the k highest scores over all layers together."""
    keep = top(torch.cat([s.reshape(-1) for s in scores.values()]), k)
    parts = keep.split([s.numel() for s in scores.values()])
    return {n: laid_out_like(s, part) for (n, s), part in zip(scores.items(), parts, strict=True)}


def laid_out_like(tensor: Tensor, flat: Tensor) -> Tensor:
    """`flat`, in logical order, in the shape and the memory layout of `tensor`."""
    whole = flat.view(tensor.shape)
    return whole if tensor.is_contiguous() else torch.empty_like(tensor, dtype=flat.dtype).copy_(whole)


def _numbers(flat: Tensor) -> np.ndarray[Any, np.dtype[np.floating[Any]]]:
    values: np.ndarray[Any, Any] = (flat if flat.dtype in {torch.float32, torch.float64} else flat.float()).numpy()
    return values


def _choose(values: np.ndarray[Any, np.dtype[np.floating[Any]]], k: int) -> Tensor:
    """On the CPU: numpy's selection is many times faster than torch's."""
    low, high = values.min(), values.max()
    between = values[
        (values > low) & (values < high)
    ]  # pruned and kept weights are many and equal: slow to select from
    at = len(between) - (k - np.count_nonzero(values == high))
    threshold = high if at >= len(between) else low if at < 0 else np.partition(between, at)[at]
    mask = values > threshold
    short = k - np.count_nonzero(mask)
    if short:
        equal = np.flatnonzero(values == threshold)[:short]
        _require(len(equal) == short)
        mask[equal] = True
    return torch.from_numpy(mask)


def _choose_on_device(flat: Tensor, k: int) -> Tensor:
    threshold = flat.topk(k, sorted=False).values.min()
    mask = flat > threshold
    equal = (flat == threshold).nonzero().squeeze(1)[: k - int(mask.sum())]
    mask[equal] = True
    _require(int(mask.sum()) == k)
    return mask


def _require(numbers: bool) -> None:
    if not numbers:
        raise FloatingPointError("some scores are not numbers: nothing can be chosen by them")
