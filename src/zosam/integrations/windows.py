"""What every bridge does: climb once for a window of micro-batches, and be at the point found while each of them runs.

Between micro-batches the weights are at home: validation, checkpoints and averages of weights see nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure, Keep
from zosam.optim.state_hooks import unwrapped


def sharpness_aware(optimizer: Any) -> SharpnessAware | None:
    """The sharpness-aware optimizer inside of a trainer's wrapper; None for any other optimizer."""
    inside = unwrapped(optimizer)
    return inside if isinstance(inside, SharpnessAware) else None


@contextmanager
def micro_batch(
    optimizer: SharpnessAware, closure: Closure, scaler: torch.amp.GradScaler | None = None, share: float = 1.0
) -> Iterator[None]:
    """Be at the point climbed to while one micro-batch runs; the first of a window climbs, by `closure`."""
    if not optimizer.ascended:
        optimizer.ascend(closure, stay=False, scaler=scaler, share=share)
    with optimizer.perturbed():
        yield


def part(batch: Any, keep: Keep | None) -> Any:
    """Those samples of a batch: of every tensor in it, along the first dimension."""
    if keep is None:
        return batch
    sizes = {t.shape[0] for t in _tensors(batch)}
    if len(sizes) != 1:
        raise ValueError(
            "this optimizer evaluates part of the batch, but its tensors do not all have the samples in their first"
            f" dimension (found sizes {sorted(sizes)}): take one that needs the whole batch, with batch_fraction=1"
        )
    return _map(batch, keep)


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor) and batch.dim():
        yield batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for item in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(item)


def _map(batch: Any, keep: Keep) -> Any:
    if isinstance(batch, Tensor):
        return batch[keep].contiguous() if batch.dim() else batch
    if isinstance(batch, Mapping):
        return {key: _map(item, keep) for key, item in batch.items()}
    if isinstance(batch, tuple):
        items = [_map(item, keep) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else tuple(items)
    return [_map(item, keep) for item in batch] if isinstance(batch, list) else batch
