"""Sparse models in files: masks and method state beside the weights, and the model itself without its zeros."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor, nn

from zosam import files
from zosam.sparse.base import Sparsity
from zosam.sparse.bits import pack, unpack

STATE, MODEL = "zosam sparse state 1", "zosam sparse model 1"


def save_state(sparse: Sparsity, path: str | Path) -> None:
    """Write masks and method state to one `.safetensors`; masks and other booleans take one bit per weight."""
    tensors, numbers = _flat(sparse.state_dict())
    packed, shapes = {}, {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.bool:
            shapes[name] = list(tensor.shape)
        packed[name] = pack(tensor) if tensor.dtype == torch.bool else tensor.cpu().contiguous()
    note = {"method": type(sparse).__name__, "numbers": numbers, "packed": shapes}
    files.write(Path(path), save(packed, {"format": STATE, "note": json.dumps(note)}))


def load_state(sparse: Sparsity, path: str | Path) -> None:
    """Take masks and method state from a file; one of another method or model is refused, and nothing is changed."""
    tensors, note = _read(Path(path), STATE)
    if note["method"] != type(sparse).__name__:
        raise ValueError(f"{path} holds the state of {note['method']}, not of {type(sparse).__name__}")
    state = sparse.state_dict()
    empty: dict[str, Any] = {key: {} for key, value in state.items() if isinstance(value, dict)}
    for name, tensor in tensors.items():
        group, _, key = name.partition("/")
        shape = note["packed"].get(name)
        empty.setdefault(group, {})[key] = tensor if shape is None else unpack(tensor, shape)
    sparse.load_state_dict(empty | note["numbers"])


def saved_masks(path: str | Path) -> dict[str, Tensor]:
    """The masks in a file written by `save_state`."""
    tensors, note = _read(Path(path), STATE)
    return {
        name.removeprefix("masks/"): unpack(tensors[name], shape)
        for name, shape in note["packed"].items()
        if name.startswith("masks/")
    }


def save_compressed(model: nn.Module, path: str | Path, masks: Mapping[str, Tensor] | None = None) -> None:
    """Write a model without its zeros: active weights and one bit per weight; the rest as it is.

    Without `masks`, every tensor that is smaller that way is written so.
    """
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    tied: dict[str, str] = {}
    seen: dict[tuple[int, ...], str] = {}
    for name, value in model.state_dict().items():
        place = (value.data_ptr(), *value.shape, *value.stride())
        if value.numel() and place in seen:
            tied[name] = seen[place]
            continue
        seen[place] = name
        mask = masks[name] if masks is not None and name in masks else value != 0
        if (masks is None or name in masks) and _pays(value, mask):
            shapes[name] = list(value.shape)
            tensors[f"{name}/mask"], tensors[f"{name}/active"] = pack(mask), value[mask].cpu()
        else:
            tensors[name] = value.detach().cpu().contiguous()
    note = {"packed": shapes, "tied": tied}
    files.write(Path(path), save(tensors, {"format": MODEL, "note": json.dumps(note)}))


def load_compressed(path: str | Path) -> dict[str, Tensor]:
    """The plain state_dict of a model written by `save_compressed`, for `model.load_state_dict`."""
    tensors, note = _read(Path(path), MODEL)
    state = {n: t for n, t in tensors.items() if "/" not in n}
    for name, shape in note["packed"].items():
        mask, active = unpack(tensors[f"{name}/mask"], shape), tensors[f"{name}/active"]
        state[name] = torch.zeros(shape, dtype=active.dtype).masked_scatter_(mask, active)
    return state | {name: state[twin] for name, twin in note["tied"].items()}


def compressed_masks(path: str | Path) -> dict[str, Tensor]:
    """The masks in a file written by `save_compressed`."""
    tensors, note = _read(Path(path), MODEL)
    return {name: unpack(tensors[f"{name}/mask"], shape) for name, shape in note["packed"].items()}


def _pays(value: Tensor, mask: Tensor) -> bool:
    size = value.element_size()
    return bool(value.is_floating_point()) and int(mask.sum()) * size + mask.numel() / 8 < mask.numel() * size


def _flat(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Tensors by `group/name`, and numbers."""
    groups = {k: v for k, v in state.items() if isinstance(v, Mapping)}
    tensors = {f"{group}/{name}": t for group, named in groups.items() for name, t in named.items()}
    return tensors, {k: v for k, v in state.items() if k not in groups}


def _read(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None
    if about.get("format") != kind:
        raise ValueError(f"{path} is no {kind.rpartition(' ')[0]} but {about.get('format', 'something else')!r}")
    note: dict[str, Any] = json.loads(about["note"])
    return tensors, note
