"""Masks belong to the weights: who sets one, asks for it, lets go of it.

A sparse method sets them, and optimizers, kernels and files look them up, so it does not matter which of these objects
was made first.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor

from zosam.optim.vector import MaskOf, entries, masks_by_weight


def set_mask(weight: Tensor, mask: Tensor) -> None:
    """Let `mask` say which entries of `weight` are active; edit it in place, and everybody sees the change."""
    if mask.shape != weight.shape:
        raise ValueError(f"a mask of shape {tuple(mask.shape)} does not fit a weight of shape {tuple(weight.shape)}")
    key = id(weight)
    entries[key] = MaskOf(weakref.ref(weight, lambda gone: _drop(key, gone)), mask)


def mask_of(weight: Tensor) -> Tensor | None:
    """The mask of a weight; None: all of it is active. A copy of a weight has none of its own."""
    return masks_by_weight([weight])[0]


def masks_of(weights: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """The masks of those that have one."""
    found = list(weights)
    return {w: mask for w, mask in zip(found, masks_by_weight(found), strict=True) if mask is not None}


def forget(weight: Tensor) -> None:
    """Nobody keeps this weight sparse any more; its values stay as they are."""
    if mask_of(weight) is not None:
        del entries[id(weight)]


def _drop(key: int, gone: weakref.ref[Tensor]) -> None:
    if key in entries and entries[key].weight is gone:  # not the mask of a newer weight at the same address
        del entries[key]
