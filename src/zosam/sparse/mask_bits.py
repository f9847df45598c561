"""Boolean masks at one bit per weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def pack(mask: Tensor) -> Tensor:
    """Eight entries per byte, in logical order; the last byte is filled with zeros."""
    return torch.from_numpy(np.packbits(mask.detach().cpu().contiguous().view(-1).numpy()))


def unpack(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask of that shape."""
    size = int(np.prod(shape, dtype=np.int64))
    if bits.numel() != -(-size // 8):
        raise ValueError(f"{bits.numel()} bytes are no mask of shape {tuple(shape)}")
    return torch.from_numpy(np.unpackbits(bits.cpu().numpy(), count=size).view(bool)).view(tuple(shape))
