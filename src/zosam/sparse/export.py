"""A trained sparse model for others: plain state_dict, compressed file, or ONNX."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from zosam import files
from zosam.names import find
from zosam.sparse.save import save_compressed

FORMS = {"dense": "model.safetensors", "compressed": "model.sparse.safetensors", "onnx": "model.onnx"}


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
        save_compressed(model, path, masks)
    elif form == "dense":
        tensors = {
            n: t.detach().cpu().clone(memory_format=torch.contiguous_format) for n, t in model.state_dict().items()
        }
        files.write(path, save(tensors, {"format": "pt"}))
    else:
        _onnx(model, path, example)
    return path


def _onnx(model: nn.Module, path: Path, example: Any) -> None:
    """The network in eval mode, for any batch size."""
    if example is None:
        raise ValueError("ONNX needs an example input, such as one batch of pictures")
    if any(importlib.util.find_spec(package) is None for package in ("onnx", "onnxscript")):
        raise ImportError("exporting to ONNX needs more packages: pip install 'zosam[onnx]'")
    path.parent.mkdir(parents=True, exist_ok=True)
    was_training = model.training
    model.eval()
    try:
        batch = torch.export.Dim("batch")
        torch.onnx.export(
            model, (example,), str(path), dynamo=True, dynamic_shapes=({0: batch},), external_data=False, verbose=False
        )
    finally:
        model.train(was_training)
