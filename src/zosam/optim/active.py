"""Which weights are active: masks belong to the weights, and whoever touches a weight asks here.

A sparse method sets the masks; optimizers that perturb, probe or step, kernels that compute and files that are
written look them up, so it does not matter which of these objects was made first.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor


class _Entry(NamedTuple):
    weight: weakref.ref[Tensor]
    mask: Tensor


_entries: dict[int, _Entry] = {}  # by id: tensors compare by value, and this is the fastest way to find one


def set_mask(weight: Tensor, mask: Tensor) -> None:
    """Let `mask` say which entries of `weight` are active; edit it in place, and everybody sees the change."""
    if mask.shape != weight.shape:
        raise ValueError(f"a mask of shape {tuple(mask.shape)} does not fit a weight of shape {tuple(weight.shape)}")
    key = id(weight)
    _entries[key] = _Entry(weakref.ref(weight, lambda gone: _drop(key, gone)), mask)


def mask_of(weight: Tensor) -> Tensor | None:
    """The mask of a weight; None: all of it is active. A copy of a weight has none of its own."""
    entry = _entries.get(id(weight))
    return entry.mask if entry is not None and entry.weight() is weight else None


def masks_by_weight(weights: Iterable[Tensor]) -> list[Tensor | None]:
    """The mask of each weight, all at one go."""
    entries = [(w, _entries.get(id(w))) for w in weights]
    return [e.mask if e is not None and e.weight() is w else None for w, e in entries]


def masks_of(weights: Iterable[Tensor]) -> dict[Tensor, Tensor]:
    """The masks of those that have one."""
    found = list(weights)
    return {w: mask for w, mask in zip(found, masks_by_weight(found), strict=True) if mask is not None}


def forget(weight: Tensor) -> None:
    """Nobody keeps this weight sparse any more; its values stay as they are."""
    if mask_of(weight) is not None:
        del _entries[id(weight)]


def _drop(key: int, gone: weakref.ref[Tensor]) -> None:
    if key in _entries and _entries[key].weight is gone:  # not the mask of a newer weight at the same address
        del _entries[key]
