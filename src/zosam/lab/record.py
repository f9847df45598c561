"""record.json, what a run has to say, read without trusting it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import zosam
from zosam import files
from zosam.distributed.ranks import current
from zosam.lab import models
from zosam.lab.logs import write_epochs
from zosam.lab.settings import Choice
from zosam.machine import cpu_name
from zosam.sparse.save import read_tensors, saved_masks

if TYPE_CHECKING:
    from zosam.lab.run import Run

NUMBERS = ("epoch", "step", "train_loss", "test_loss", "test_accuracy", "sparsity", "forward", "backward", "seconds")
LARGEST_WHOLE = 1 << 53  # whole numbers up to this are exact as floats
MOST_CLASSES = 1_000_000  # more than any network has


@dataclass(frozen=True)
class Record:
    """What a finished run has to say."""

    run: Run
    path: Path
    epochs: list[dict[str, Any]]
    classes: int
    checksums: dict[str, str] = dataclasses.field(default_factory=dict)
    """SHA-256 of the files that the run has written."""
    made: dict[str, Any] = dataclasses.field(default_factory=dict)
    """On which device and kernels it was trained."""

    @property
    def last(self) -> dict[str, Any]:
        return self.epochs[-1]

    def load(self, model: nn.Module | None = None, averaged: bool = False) -> nn.Module:
        """The trained network, or with its averaged weights; one whose code is not ours is not imported because a
        record says so: pass it."""
        name = "ema.safetensors" if averaged else "model.safetensors"
        if averaged and self.run.ema is None:
            raise ValueError(f"{self.path} has no averaged weights: it was trained without ema")
        check_files(self.path, {k: v for k, v in self.checksums.items() if k == name})
        tensors = read_tensors(self.path / name)[0]
        if model is None:
            check_size(self.run.model, self.classes, tensors)
            with torch.random.fork_rng(devices=[]):
                model = models.build(self.run.model, self.classes)
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(f"{self.path / name} holds another network: {error}") from None
        return model

    def masks(self) -> dict[str, Tensor]:
        """The masks it ended with, by the name of the weight."""
        file = self.path / "sparse.safetensors"
        return saved_masks(file) if file.exists() else {}

    def masks_over_training(self) -> list[tuple[int, dict[str, Tensor]]]:
        """(step, masks) as they were, step 0 first: of a run with diagnostics; else there are none."""
        return [(int(file.stem), saved_masks(file)) for file in sorted((self.path / "masks").glob("*.safetensors"))]


def write(record: Record, status: str) -> None:
    """Write what is known of a run: record.json, and its epochs once more as CSV."""
    write_epochs(record.path, record.epochs)
    content: dict[str, Any] = {"status": status, "run": record.run.description, "made_with": made_with() | record.made}
    content |= {"classes": record.classes, "epochs": record.epochs, "checksums": record.checksums}
    write_record(record.path, content)


def write_record(folder: Path, content: dict[str, Any]) -> None:
    """Write the record of a run, with a checksum of its own."""
    files.write_json(folder / "record.json", content | {"checksum": _digest(content)})


def read_record(folder: Path) -> dict[str, Any]:
    """The record in a run's folder; every entry that others rely on is there and of its kind."""
    path = folder / "record.json"
    content = files.read_json(path)
    if content.pop("checksum", None) not in (None, _digest(content)):
        raise ValueError(f"{path} is damaged: its checksum is another")
    wrong = [] if content.get("status") in ("training", "finished") else ["status"]
    wrong += what_is_wrong(content)
    if wrong:
        raise ValueError(f"{path} is damaged or no record of a run: {', '.join(wrong)} cannot be right")
    return content


def what_is_wrong(content: Mapping[str, Any]) -> list[str]:
    """The entries of a record, or of a line of results, that others rely on and that cannot be right."""
    fits = {
        "run": isinstance(content.get("run"), dict),
        "made_with": _is_made_with(content.get("made_with")),
        "classes": type(content.get("classes")) is int and 0 < content["classes"] <= MOST_CLASSES,
        "epochs": content.get("epochs") != [] and are_epochs(content.get("epochs")),
        "checksums": isinstance(content.get("checksums", {}), dict),
    }
    return [name for name, right in fits.items() if not right]


def _is_made_with(value: Any) -> bool:
    """Whether it tells versions and hardware in words and whole numbers, and the kernels by name."""
    told = isinstance(value, dict) and all(isinstance(v, (str, int)) for v in value.values())
    return told and isinstance(value.get("kernels", ""), str)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def are_epochs(value: Any) -> bool:
    """Whether it is a list with the figures of epochs: numbers, those among them that others rely on."""
    return isinstance(value, list) and all(isinstance(epoch, dict) and _is_epoch(epoch) for epoch in value)


def _is_epoch(epoch: Mapping[str, Any]) -> bool:
    if not all(type(v) is float or (type(v) is int and abs(v) <= LARGEST_WHOLE) for v in epoch.values()):
        return False
    counts = (epoch.get(name, -1) for name in ("epoch", "step"))
    amounts = (epoch.get(name, -1) for name in ("forward", "backward", "seconds"))
    shares = (epoch.get(name, -1) for name in ("test_accuracy", "sparsity"))
    return (
        all(type(n) is int and n >= 0 for n in counts)
        and all(0 <= n < math.inf for n in amounts)
        and all(0 <= n <= 1 for n in shares)
        and {"train_loss", "test_loss"} <= epoch.keys()
    )


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


def check_size(network: Choice, classes: int, tensors: Mapping[str, Tensor]) -> None:
    """Whether the network that a record names has the tensors of its file: found out before it takes memory."""
    if network.name.partition(":")[0] in models.NETWORKS.packages:
        return
    if network.name not in models.MODELS:
        raise ValueError(
            f"the record names the network {network}, which is code: if you trust it, build and pass it"
            f" (on the command line: --model {network})"
        )
    claimed = models.sizes(network, classes)
    differ = sorted(n for n in {*claimed, *tensors} if n not in tensors or claimed.get(n) != tensors[n].shape)
    if differ:
        raise ValueError(f"the record names the network {network}, but its file differs in {', '.join(differ[:5])}")


def kernels_gained(folder: Path) -> str | None:
    """What the sparse kernels were measured to gain in the run of a folder, in a line, if it was trained with them."""
    file = folder / "kernels.txt"
    return file.read_text(errors="replace") if file.is_file() else None


def made_with() -> dict[str, Any]:
    """Versions and hardware, to stand beside every result."""
    return {
        "zosam": zosam.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        **({"processes": current().world} if current().world > 1 else {}),
    }
