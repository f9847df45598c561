"""Data sets: each is a function (batch_size, seed, device, ...) -> Data."""

from zosam.data.batches import Batches, Data, Tensors
from zosam.data.digits import digits

DATA = {f.__name__: f for f in (digits,)}

__all__ = ["DATA", "Batches", "Data", "Tensors", "digits"]
