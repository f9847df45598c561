"""Sparse models in files: masks and method state, the model without its zeros, and what others can read."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from zosam import files
from zosam.names import find
from zosam.sparse.base import Sparsity
from zosam.sparse.prunable import plain, plain_state

STATE, MODEL = "zosam sparse state 1", "zosam sparse model 1"
FORMS = {"dense": "model.safetensors", "compressed": "model.sparse.safetensors", "onnx": "model.onnx"}


def save_state(sparse: Sparsity, path: str | Path) -> None:
    """Write masks and method state to one `.safetensors`; masks and other booleans take one bit per weight."""
    tensors, numbers = _flat(sparse.state_dict())
    packed, shapes = {}, {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.bool:
            shapes[name] = list(tensor.shape)
        packed[name] = pack(tensor) if tensor.dtype == torch.bool else tensor.cpu().contiguous()
    note = {"method": type(sparse).__name__, "numbers": numbers, "packed": shapes}
    files.write(Path(path), _content(packed, STATE, note))


def load_state(sparse: Sparsity, path: str | Path) -> None:
    """Take masks and method state from a file; one of another method or model is refused, and nothing is changed."""
    tensors, note = _read(path, STATE)
    if note.get("method") != type(sparse).__name__:
        raise ValueError(f"{path} holds the state of {note.get('method')}, not of {type(sparse).__name__}")
    before = sparse.state_dict()
    state: dict[str, Any] = {key: {} for key, value in before.items() if isinstance(value, dict)}
    for name, tensor in tensors.items():
        group, _, key = name.partition("/")
        state.setdefault(group, {})[key] = _mask(path, note, tensors, name) if name in note["packed"] else tensor
    state |= note["numbers"]
    try:
        sparse.load_state_dict(state)
    except ValueError:
        raise
    except Exception as error:  # a state that does not fit can fail in any way
        raise ValueError(f"{path} does not fit {type(sparse).__name__} ({type(error).__name__}: {error})") from error


def saved_masks(path: str | Path) -> dict[str, Tensor]:
    """The masks in a file written by `save_state`."""
    tensors, note = _read(path, STATE)
    names = [name for name in note["packed"] if name.startswith("masks/")]
    return {name.removeprefix("masks/"): _mask(path, note, tensors, name) for name in names}


def save(model: nn.Module, path: str | Path, masks: Mapping[str, Tensor] | None = None) -> None:
    """Write a model without its zeros, to be read by `zosam.load`: active weights and one bit per weight; the rest as
    it is.

    Without `masks`, every tensor that is smaller that way is written so.
    """
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    tied: dict[str, str] = {}
    seen: dict[tuple[int, ...], str] = {}
    for name, value in plain_state(model).items():
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
    files.write(Path(path), _content(tensors, MODEL, note))


def load_compressed(path: str | Path) -> dict[str, Tensor]:
    """The plain state_dict of a model written by `zosam.save`, for `model.load_state_dict`."""
    tensors, note = _read(path, MODEL)
    packed = {f"{name}/{part}" for name in note["packed"] for part in ("mask", "active")}
    state = {n: t for n, t in tensors.items() if n not in packed}
    for name in note["packed"]:
        mask, active = _mask(path, note, tensors, name, "/mask"), tensors.get(f"{name}/active")
        if active is None or active.dim() != 1 or len(active) != int(mask.sum()):
            raise ValueError(f"{path} is damaged: the active weights of {name} are not as many as its mask says")
        state[name] = torch.zeros(mask.shape, dtype=active.dtype).masked_scatter_(mask, active)
    for name, twin in note["tied"].items():
        if not isinstance(twin, str) or twin not in state:
            raise ValueError(f"{path} is damaged: {name} should be the same as {twin}, which is not there")
        state[name] = state[twin]
    return state


def compressed_masks(path: str | Path) -> dict[str, Tensor]:
    """The masks in a file written by `zosam.save`."""
    tensors, note = _read(path, MODEL)
    return {name: _mask(path, note, tensors, name, "/mask") for name in note["packed"]}


def export(
    model: nn.Module,
    folder: str | Path,
    form: str = "compressed",
    *,
    masks: Mapping[str, Tensor] | None = None,
    example: Any = None,
) -> Path:
    """Write `model` into `folder` as `dense`, `compressed` or `onnx` (which needs an `example` input) and say where."""
    path = Path(folder) / find(FORMS, form, "form to export to")
    if form == "compressed":
        save(model, path, masks)
    elif form == "dense":
        state = plain_state(model)
        tensors = {n: t.detach().cpu().clone(memory_format=torch.contiguous_format) for n, t in state.items()}
        files.write(path, to_bytes(tensors, {"format": "pt"}))
    else:
        _onnx(plain(model), path, example)
    return path


def _onnx(model: nn.Module, path: Path, example: Any) -> None:
    """The network in eval mode, for any batch size."""
    if example is None:
        raise ValueError("ONNX needs an example input, such as one batch of pictures")
    if any(importlib.util.find_spec(package) is None for package in ("onnx", "onnxscript")):
        raise ImportError("exporting to ONNX needs more packages: pip install 'zosam[onnx]'")
    was_training, log = model.training, logging.getLogger("torch.onnx")
    level = log.level
    model.eval()
    log.setLevel(logging.ERROR)  # it tells of other people's packages that are not there
    try:
        batch = torch.export.Dim("batch")
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
            aside = Path(folder) / path.name
            torch.onnx.export(
                model, (example,), str(aside), dynamo=True, dynamic_shapes=({0: batch},), external_data=False,
                verbose=False,
            )  # fmt: skip
            files.write(path, aside.read_bytes())
    finally:
        log.setLevel(level)
        model.train(was_training)


def pack(mask: Tensor) -> Tensor:
    """Eight entries per byte, in logical order; the last byte is filled with zeros."""
    return torch.from_numpy(np.packbits(mask.detach().cpu().contiguous().view(-1).numpy()))


def unpack(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask of that shape."""
    size = int(np.prod(shape, dtype=np.int64))
    if bits.numel() != -(-size // 8):
        raise ValueError(f"{bits.numel()} bytes are no mask of shape {tuple(shape)}")
    return torch.from_numpy(np.unpackbits(bits.cpu().numpy(), count=size).view(bool)).view(tuple(shape))


def _pays(value: Tensor, mask: Tensor) -> bool:
    size = value.element_size()
    return bool(value.is_floating_point()) and int(mask.sum()) * size + mask.numel() / 8 < mask.numel() * size


def _flat(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by `group/name`, and what JSON can hold."""
    groups = {k: v for k, v in state.items() if isinstance(v, Mapping) and k != "settings"}
    tensors = {f"{group}/{name}": t for group, named in groups.items() for name, t in named.items()}
    return tensors, {k: v for k, v in state.items() if k not in groups}


def _mask(
    path: str | Path, note: Mapping[str, Any], tensors: Mapping[str, Tensor], name: str, suffix: str = ""
) -> Tensor:
    """A packed mask; the shape that the note claims must be that of the bits."""
    bits, shape = tensors.get(name + suffix), note["packed"][name]
    if bits is None or bits.dtype != torch.uint8 or not isinstance(shape, list):
        raise ValueError(f"{path} is damaged: {name} has no mask")
    if any(type(n) is not int or n < 0 for n in shape) or math.prod(shape) > 8 * bits.numel():
        raise ValueError(f"{path} is damaged: {name} claims the shape {shape}, but has {8 * bits.numel()} bits")
    return unpack(bits, shape)


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file and the notes in its header; claims beyond the file's size are refused."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None


def _content(tensors: Mapping[str, Tensor], form: str, note: Mapping[str, Any]) -> bytes:
    """The bytes of a safetensors file, the same for the same content: in its header the library puts what is told of
    a file in any order."""
    content = to_bytes(dict(tensors), {"format": form, "note": json.dumps(note)})
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin where their numbers may
    return len(text).to_bytes(8, "little") + text + content[end:]


def _read(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and our note in a file of that kind."""
    tensors, about = read_tensors(path)
    if about.get("format") != kind:
        raise ValueError(f"{path} is no {kind.rpartition(' ')[0]} but {about.get('format', 'something else')!r}")
    try:
        note = json.loads(about.get("note", ""))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its note cannot be read ({error})") from None
    dicts = ("packed", "numbers") if kind == STATE else ("packed", "tied")
    if not isinstance(note, dict) or not all(isinstance(note.get(k), dict) for k in dicts):
        raise ValueError(f"{path} is damaged: its note is not what we write")
    return tensors, note
