"""Checkpoints that all ranks write together, each its part, and that any number of ranks can load.

The tensors are safetensors, written and read by torch.distributed.checkpoint, the numbers beside them JSON: data alone.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zosam import files
from zosam.distributed.ddp import unwrapped
from zosam.distributed.ranks import current

if TYPE_CHECKING:
    from zosam.optim import SharpnessAware

NUMBERS = "zosam.json"


def save(folder: str | Path, model: nn.Module, optimizer: SharpnessAware) -> None:
    """Write model and optimizer, with the masks that ride in it, into a new folder, which all ranks see.

    It is there when it is whole.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_parts

    tensors: dict[str, Tensor] = {}
    numbers = _take_apart(_state(model, optimizer), "", tensors)
    path, ranks = Path(folder), current()
    aside = path.with_name(f".{path.name}.part")

    def begin() -> None:
        if path.exists():
            raise FileExistsError(f"{path} is there already: give a new folder")
        shutil.rmtree(aside, ignore_errors=True)

    def end() -> None:
        shapes = {name: list(t.shape) for name, t in tensors.items()}
        files.write_json(aside / NUMBERS, {"shapes": shapes, "state": numbers})
        aside.rename(path)

    ranks.lead(begin)
    writer = HuggingFaceStorageWriter(str(aside), save_distributed=True)
    save_parts(tensors, storage_writer=writer, no_dist=ranks.world == 1)
    ranks.lead(end)


def load(folder: str | Path, model: nn.Module, optimizer: SharpnessAware) -> None:
    """Read what `save` has written, by whatever number of ranks, into a training of the same description."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_parts

    path, ranks = Path(folder), current()
    numbers = files.read_json(path / NUMBERS)
    known: dict[str, Tensor] = {}
    _take_apart(_state(model, optimizer), "", known)
    params = dict(unwrapped(model).named_parameters())
    in_order = [p for group in optimizer.param_groups for p in group["params"]]

    def room(name: str, about: Any) -> Tensor:
        """Where the tensor shall go: parted as its parameter is, if it is of that shape."""
        part, _, rest = name.partition("/")
        if part == "model":
            return known[name]
        first, _, last = rest.partition("/")
        beside = in_order[int(last.partition("/")[0])] if first == "state" else None
        owner = params.get(name.rpartition("/")[2], beside)  # what a method keeps may be of another parameter
        if owner is not None and owner.shape == about.size:
            return torch.zeros_like(owner, dtype=about.properties.dtype, requires_grad=False)
        return torch.zeros(about.size, dtype=about.properties.dtype)

    reader = HuggingFaceStorageReader(str(path))
    with _readable(path):
        index: dict[str, Any] = reader.read_metadata().state_dict_metadata
        found = {name: sum(c.sizes.numel() for c in about.chunks) for name, about in index.items()}
        if found != {name: math.prod(shape) for name, shape in numbers["shapes"].items()}:
            raise ValueError("parts are missing")
        _put_together(numbers["state"], index)  # whether it can be, before anything is written over
        theirs = {(n, tuple(shape)) for n, shape in numbers["shapes"].items() if n.startswith("model/")}
    ours = {(n, tuple(t.shape)) for n, t in known.items() if n.startswith("model/")}
    if theirs != ours:
        differ = sorted({name.removeprefix("model/") for name, _ in theirs ^ ours})
        raise ValueError(f"{path} holds another network: {', '.join(differ[:5])} differ")
    with _readable(path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*in a single process")  # which is what was asked for
        tensors = {name: room(name, about) for name, about in index.items()}
        load_parts(tensors, storage_reader=reader, no_dist=ranks.world == 1)
        state = _put_together(numbers["state"], tensors)
        optimizer.load_state_dict(state["optimizer"])


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Whatever torch says of damaged files is a ValueError here."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is damaged or not a checkpoint: {error}") from error


def _state(model: nn.Module, optimizer: SharpnessAware) -> dict[str, Any]:
    module: Any
    for module in model.modules():
        if hasattr(module, "reshard"):  # after a forward alone, whole weights may stand in for the parameters
            module.reshard()
    return {"optimizer": optimizer.state_dict(), "model": unwrapped(model).state_dict()}


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


def _put_together(value: Any, tensors: Mapping[str, Any]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "tensor":
        return tensors[inside]
    if kind == "dict":
        return {k: _put_together(v, tensors) for k, v in inside}
    if kind not in {"list", "tuple"}:
        raise ValueError(f"{kind!r} is nothing that was saved")
    parts = [_put_together(v, tensors) for v in inside]
    return parts if kind == "list" else tuple(parts)
