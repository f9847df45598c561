"""Nested dictionaries of tensors and plain values as safetensors: data only, and never larger than the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

TREE = "tree"  # the entry that holds, as JSON, all that is not a tensor


def dumps(state: Any) -> bytes:
    """The bytes of tensors, numbers, text, None, lists, tuples and dictionaries, nested at will."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_take_apart(state, tensors)).encode()
    tensors[TREE] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return save(tensors)


def loads(content: bytes) -> Any:
    """What `dumps` was given, bit for bit and laid out as it was; whatever else is in there is a ValueError."""
    try:
        tensors = load(content)
        return _put_together(json.loads(tensors.pop(TREE).numpy().tobytes()), tensors)
    except Exception as error:  # hostile content can fail in any way
        raise ValueError(f"no tree of tensors ({type(error).__name__}: {error})") from error


def _take_apart(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON, with its tensors by number."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        name = str(len(tensors))
        order = sorted(range(value.dim()), key=value.stride, reverse=True)  # as it lies in memory
        tensors[name] = value.detach().cpu().permute(order).clone(memory_format=torch.contiguous_format)
        return {"tensor": [name, order]}
    if isinstance(value, Mapping):
        if not all(isinstance(key, (str, int)) for key in value):
            raise TypeError("the keys of a dictionary in a checkpoint must be text or whole numbers")
        return {"dict": [[k, _take_apart(v, tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [_take_apart(v, tensors) for v in value]}
    raise TypeError(f"a checkpoint holds tensors, numbers, text and containers of them, not {type(value).__name__}")


def _put_together(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a bare list")
        return value
    ((kind, inside),) = value.items()
    if kind == "tensor":
        name, order = inside
        return tensors[name].permute([order.index(d) for d in range(len(order))])
    if kind == "dict":
        return {k: _put_together(v, tensors) for k, v in inside}
    parts = [_put_together(v, tensors) for v in inside]
    return {"list": parts, "tuple": tuple(parts)}[kind]
