"""Tensors of which each rank holds a part, as `fully_shard` leaves them: the part and the whole."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from zosam.distributed.ranks import ALONE, Ranks, current


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds its part of the tensor only."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def any_sharded(tensors: Iterable[Tensor]) -> bool:
    if "torch.distributed.tensor" not in sys.modules:  # not imported: no tensor can be one
        return False
    return sys.modules["torch.distributed.tensor"].DTensor in set(map(type, tensors))


def local(tensor: Tensor) -> Tensor:
    """This rank's part, in the same memory; a plain tensor is its own."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(tensor, module.DTensor):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.to_local()
    return part


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the parts of all ranks, which all must ask for it; a plain one is whole."""
    if not is_sharded(tensor):
        return tensor
    gathered: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return gathered


def shared_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor as `like` is held: this rank keeps its part. Nothing is sent."""
    if is_sharded(tensor) or not is_sharded(like):
        return tensor
    from torch.distributed.tensor import DTensor

    held: Any = like
    tensor = tensor.contiguous()
    parts, mine = tensor.chunk(held.device_mesh.size()), held.device_mesh.get_local_rank()
    part = parts[mine] if mine < len(parts) else tensor[:0]
    mesh, rows, shape, stride = held.device_mesh, held.placements, tensor.shape, tensor.stride()
    return DTensor.from_local(part, mesh, rows, run_check=False, shape=shape, stride=stride)


def full_like(part: Tensor, like: Tensor) -> Tensor:
    """The whole tensor of which each rank has the part that it holds of `like`; all must ask for it."""
    if not is_sharded(like):
        return part
    from torch.distributed.tensor import DTensor

    held: Any = like
    return whole(
        DTensor.from_local(
            part, held.device_mesh, held.placements, run_check=False, shape=held.shape, stride=held.stride()
        )
    )


def shards(params: Sequence[Tensor]) -> Ranks:
    """The ranks that hold the parts of these parameters; alone where each is whole."""
    if not any_sharded(params):
        return ALONE
    parted: list[Any] = [p for p in params if is_sharded(p)]
    meshes = {p.device_mesh for p in parted}
    rows = all([s.is_shard(0) for s in p.placements] == [True] for p in parted)
    if len(parted) < len(params) or len(meshes) > 1 or not rows:
        raise ValueError(
            "these parameters are not all sharded in the same way: use fully_shard by rows, over one mesh of one"
            " dimension, for the whole model"
        )
    group, everybody = meshes.pop().get_group(), current()
    return everybody if everybody.group is group else Ranks(group)
