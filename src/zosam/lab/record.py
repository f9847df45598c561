"""record.json, what a run has to say, read without trusting it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zosam import files
from zosam.lab import models
from zosam.names import parse

NUMBERS = ("epoch", "step", "train_loss", "test_loss", "test_accuracy", "sparsity", "forward", "backward", "seconds")
MOST_CLASSES, LARGEST_SETTING = 1_000_000, 10_000  # more than any network has


def write_record(folder: Path, content: dict[str, Any]) -> None:
    """Write the record of a run, with a checksum of its own."""
    files.write_json(folder / "record.json", content | {"checksum": _digest(content)})


def read_record(folder: Path) -> dict[str, Any]:
    """The record in a run's folder; every entry that others rely on is there and of its kind."""
    path = folder / "record.json"
    content = files.read_json(path)
    if content.pop("checksum", None) not in (None, _digest(content)):
        raise ValueError(f"{path} is damaged: its checksum is another")
    wrong = [
        name
        for name, fits in {
            "status": content.get("status") in ("training", "finished"),
            "run": isinstance(content.get("run"), dict),
            "made_with": isinstance(content.get("made_with"), dict),
            "classes": type(content.get("classes")) is int and 0 < content["classes"] <= MOST_CLASSES,
            "epochs": content.get("epochs") != [] and are_epochs(content.get("epochs")),
            "checksums": isinstance(content.get("checksums", {}), dict),
        }.items()
        if not fits
    ]
    if wrong:
        raise ValueError(f"{path} is damaged or no record of a run: {', '.join(wrong)} cannot be right")
    return content


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def are_epochs(value: Any) -> bool:
    """Whether it is a list with the figures of epochs."""
    if not isinstance(value, list) or not all(isinstance(epoch, dict) for epoch in value):
        return False
    return all(type(epoch.get(name)) in (int, float) for epoch in value for name in NUMBERS)


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, checksums: dict[str, str]) -> None:
    """Compare a run's files with the checksums in its record."""
    for name, expected in checksums.items():
        path = folder / Path(name).name  # never outside of the folder
        if not path.is_file() or checksum(path) != expected:
            raise ValueError(f"{path} is missing, or is not what the run has written")


def check_size(network: str, classes: int, tensors: Mapping[str, Tensor]) -> None:
    """Whether the network that a record names has the tensors of its file: found out before it takes memory."""
    name = network.partition(":")[0]
    if name in {"timm", "transformers"}:
        return
    if name not in models.MODELS:
        raise ValueError(f"the record names the network {network}, which is code: if you trust it, build and pass it")
    if any(isinstance(v, int) and abs(v) > LARGEST_SETTING for v in parse(network)[1].values()):
        raise ValueError(f"the record names the network {network}, which is absurdly large")
    with torch.random.fork_rng(), torch.device("meta"):
        claimed = {n: t.shape for n, t in models.build(network, classes).state_dict().items()}
    differ = sorted(n for n in {*claimed, *tensors} if n not in tensors or claimed.get(n) != tensors[n].shape)
    if differ:
        raise ValueError(f"the record names the network {network}, but its file differs in {', '.join(differ[:5])}")
