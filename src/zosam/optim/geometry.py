"""Lengths and angles of vectors over the active weights; where ranks hold a part each, of the whole vector."""

from __future__ import annotations

import torch
from torch import Tensor

from zosam.distributed.ranks import ALONE, Ranks


def norm(vector: Tensor, shards: Ranks = ALONE) -> Tensor:
    if shards.world == 1:
        length: Tensor = vector.norm()
        return length
    return dot(vector, vector, shards).sqrt()


def dot(a: Tensor, b: Tensor, shards: Ranks = ALONE) -> Tensor:
    """The inner product, in the vectors' own precision also where a step is taken under autocast."""
    if torch.is_autocast_enabled(a.device.type):
        with torch.autocast(a.device.type, enabled=False):
            return shards.sum(a @ b, "norms")
    return shards.sum(a @ b, "norms")


def largest(vector: Tensor, shards: Ranks = ALONE) -> Tensor:
    """The largest size of an entry; 0 where there is none."""
    return shards.max(vector.abs().amax() if vector.numel() else vector.new_zeros(()), "norms")


def unit(vector: Tensor, shards: Ranks = ALONE) -> Tensor:
    """The vector at length 1; zero stays zero, and no square under- or overflows on the way."""
    if not vector.numel() and shards.world == 1:
        return vector
    tiny = torch.finfo(vector.dtype).tiny
    scaled = vector / largest(vector, shards).clamp_min(tiny)
    return scaled / norm(scaled, shards).clamp_min(tiny)


def cosine(a: Tensor, b: Tensor, shards: Ranks = ALONE) -> Tensor:
    if shards.world == 1:
        return torch.cosine_similarity(a, b, dim=0)
    return dot(unit(a, shards), unit(b, shards), shards)
