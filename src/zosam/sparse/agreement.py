"""Ranks that train together must have the same masks: checksums are compared whenever masks change."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from zosam.distributed.fsdp import whole
from zosam.distributed.ranks import Ranks


class MasksDiffer(RuntimeError):
    """The ranks of one training have different masks: it cannot go on."""


def require_same(new: Mapping[str, Tensor], masks: Mapping[str, Tensor], ranks: Ranks, who: str) -> None:
    """Stop if some rank has other new masks, among all `masks`, than the rest."""
    if ranks.world == 1:
        return
    device = next(iter(masks.values())).device
    found = [zlib.crc32(whole(new[n]).cpu().contiguous().numpy().data) if n in new else 0 for n in masks]
    sums = torch.tensor(found, device=device)
    highest, lowest = ranks.max(torch.stack([sums, -sums]), "masks").unbind()
    differ = [n for n, other in zip(masks, (highest != -lowest).tolist(), strict=True) if other]
    if differ:
        raise MasksDiffer(
            f"{who}: ranks have different masks for {', '.join(differ[:5])}"
            f"{' ...' if len(differ) > 5 else ''}; they must start from the same weights and seed, and see averaged"
            " gradients: wrap the model in DistributedDataParallel before it is made sparse"
        )
