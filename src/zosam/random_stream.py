"""Private random numbers, derived from what they are for: nobody else's stream moves, and the same come out anywhere.

`Draw` makes each number from its key and its place by a hash of whole numbers (splitmix64), so that a CPU and a GPU
make the same ones up to the rounding of a logarithm, and a rank that holds a part of a vector makes just that part.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

GOLDEN, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # splitmix64, as signed numbers


def digest(*key: object) -> int:
    """Sixty-three bits that stand for `key`, such as (seed, step, layer)."""
    found = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(found, "little") >> 1


def stream(*key: object) -> torch.Generator:
    """A generator of torch's own on the CPU, seeded by `key`: those of other devices give other numbers."""
    return torch.Generator().manual_seed(digest(*key))


class Draw:
    """Random numbers by their place: number i is a hash of (key, i)."""

    def __init__(self, *key: object) -> None:
        self._key = digest(*key)

    def bits(self, count: int, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
        """Sixty-four random bits each, as whole numbers: those from place `start` on."""
        z = torch.arange(start + 1, start + count + 1, device=device).mul_(GOLDEN).add_(self._key)
        z ^= _shift(z, 30)
        z *= FIRST
        z ^= _shift(z, 27)
        z *= SECOND
        z ^= _shift(z, 31)
        return z

    def uniform(
        self, count: int, start: int = 0, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Numbers between 0 and 1, neither of them included."""
        high = _shift(self.bits(count, start, device), 41)  # 23 bits and a half are all that a float32 holds
        return high.to(_wide(dtype)).add_(0.5).mul_(2.0**-23).to(dtype)

    def normal(
        self, count: int, start: int = 0, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Normal numbers of variance 1, by Box and Muller: 64 bits give a radius and an angle, and so two of them."""
        first, last = start // 2, (start + count + 1) // 2
        bits = self.bits(last - first, first, device)
        radius = _shift(bits, 32).to(_wide(dtype)).add_(0.5).mul_(2.0**-32).log_().mul_(-2).sqrt_()
        angle = bits.bitwise_and_(0xFFFFFFFF).to(_wide(dtype)).mul_(math.pi * 2.0**-31)
        pairs = torch.complex(angle.cos().mul_(radius), angle.sin_().mul_(radius))  # eight times as fast as torch.stack
        return torch.view_as_real(pairs).flatten()[start % 2 :][:count].to(dtype)

    def signs(
        self, count: int, start: int = 0, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """1 or -1: cheaper than normal numbers, and of the same length in every draw."""
        return _shift(self.bits(count, start, device), 63).to(dtype).mul_(-2).add_(1)


def _shift(bits: Tensor, by: int) -> Tensor:
    """A shift to the right that fills with zeros; torch's own fills with the sign."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
