"""Checkpoints that all ranks write together, each its part, and that any number of ranks can load.

The tensors are in the format of torch.distributed.checkpoint, the numbers beside them as JSON. torch reads the index
of its format by pickle: load only checkpoints that you trust.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zosam import files
from zosam.optim import SharpnessAware
from zosam.parallel import unwrapped
from zosam.ranks import current
from zosam.sparse import Sparsity

NUMBERS = "zosam.json"


def save(folder: str | Path, model: nn.Module, optimizer: SharpnessAware, sparse: Sparsity | None = None) -> None:
    """Write model, optimizer and masks into a new folder, which all ranks see; it is there when it is whole."""
    from torch.distributed.checkpoint.state_dict_saver import save as save_parts

    tensors: dict[str, Tensor] = {}
    numbers = _take_apart(_state(model, optimizer, sparse), "", tensors)
    path, ranks = Path(folder), current()
    aside = path.with_name(f".{path.name}.part")

    def begin() -> None:
        if path.exists():
            raise FileExistsError(f"{path} is there already: give a new folder")
        shutil.rmtree(aside, ignore_errors=True)

    def end() -> None:
        files.write_json(aside / NUMBERS, numbers)
        aside.rename(path)

    ranks.lead(begin)
    save_parts(tensors, checkpoint_id=aside, no_dist=ranks.world == 1)
    ranks.lead(end)


def load(folder: str | Path, model: nn.Module, optimizer: SharpnessAware, sparse: Sparsity | None = None) -> None:
    """Read what `save` has written, by whatever number of ranks, into a training of the same description."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_parts

    path, ranks = Path(folder), current()
    numbers = files.read_json(path / NUMBERS)
    known: dict[str, Tensor] = {}
    _take_apart(_state(model, optimizer, sparse), "", known)
    params = dict(unwrapped(model).named_parameters())
    in_order = [p for group in optimizer.param_groups for p in group["params"]]

    def room(name: str, about: Any) -> Tensor:
        """Where the tensor shall go: parted as its parameter is, if it is of that shape."""
        part, _, rest = name.partition("/")
        if part == "model":
            return known[name]
        first, _, last = rest.partition("/")
        owner = in_order[int(last.partition("/")[0])] if first == "state" else params.get(last)
        if owner is not None and owner.shape == about.size:
            return torch.zeros_like(owner, dtype=about.properties.dtype, requires_grad=False)
        return torch.zeros(about.size, dtype=about.properties.dtype)

    index = FileSystemReader(path).read_metadata().state_dict_metadata
    theirs, ours = ({n for n in names if n.startswith("model/")} for names in (index, known))
    if theirs != ours:
        raise ValueError(f"{path} holds another network: {', '.join(sorted(theirs ^ ours)[:5])} differ")
    tensors = {name: room(name, about) for name, about in index.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*in a single process")  # which is what was asked for
        load_parts(tensors, checkpoint_id=path, no_dist=ranks.world == 1)
    state = _put_together(numbers, tensors)
    if sparse is not None:
        sparse.load_state_dict(state["sparse"])
    optimizer.load_state_dict(state["optimizer"])


def _state(model: nn.Module, optimizer: SharpnessAware, sparse: Sparsity | None) -> dict[str, Any]:
    module: Any
    for module in model.modules():
        if hasattr(module, "reshard"):  # after a forward alone, whole weights may stand in for the parameters
            module.reshard()
    state = {"optimizer": optimizer.state_dict(), "model": unwrapped(model).state_dict()}
    return state if sparse is None else state | {"sparse": sparse.state_dict()}


def _take_apart(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON, with its tensors by their path."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return {"tensor": path}
    if isinstance(value, dict):
        return {"dict": [[k, _take_apart(v, f"{path}/{k}" if path else str(k), tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        parts = [_take_apart(v, f"{path}/{i}", tensors) for i, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": parts}
    return value


def _put_together(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "tensor":
        return tensors[inside]
    if kind == "dict":
        return {k: _put_together(v, tensors) for k, v in inside}
    parts = [_put_together(v, tensors) for v in inside]
    return parts if kind == "list" else tuple(parts)
