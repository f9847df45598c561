"""Checkpoints: all that a training must keep so that it goes on bit for bit, and how it is written and read."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zosam import files
from zosam.lab import serialize as tree
from zosam.lab.device import CPU, random_state, set_random_state
from zosam.lab.ema import Ema
from zosam.lab.measure.variance import GradientVariance
from zosam.lab.precision import Precision
from zosam.lab.record import are_epochs
from zosam.lab.train import Sums
from zosam.optim import SharpnessAware
from zosam.sparse import Sparsity

MAGIC, VERSION = b"zosam checkpoint ", b"2"


class OtherVersion(ValueError):
    """A checkpoint that is whole, but of another version."""


@dataclass
class Progress:
    """Network, optimizer and masks as they are after `done` of `steps` steps, and what is known of the epochs."""

    model: nn.Module
    optimizer: SharpnessAware
    sparse: Sparsity | None
    steps: int
    done: int = 0
    epochs: list[dict[str, Any]] = field(default_factory=list)
    sums: Sums = field(default_factory=Sums)
    variance: GradientVariance | None = None
    ema: Ema | None = None
    precision: Precision = field(default_factory=Precision)
    device: torch.device = CPU

    def state(self) -> dict[str, Any]:
        """Everything, as tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),  # the masks ride in there
            "rng": random_state(self.device),
            "device": self.device.type,
            "passes": dict(self.optimizer.passes),
            "done": self.done,
            "epochs": self.epochs,
            "sums": dataclasses.asdict(self.sums.settled()),
            "variance": None if self.variance is None else self.variance.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "precision": self.precision.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go back to where `state` was taken; a state of another training is a ValueError."""
        try:
            if not 0 <= state["done"] <= self.steps or not are_epochs(state["epochs"]):
                raise ValueError(f"it is after step {state['done']} of {self.steps}")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.optimizer.passes.update({k: float(state["passes"][k]) for k in self.optimizer.passes})
            self.done, self.epochs, self.sums = state["done"], state["epochs"], Sums(**state["sums"])
            if self.variance is not None:
                self.variance.load_state_dict(state["variance"], self.device)
            if self.ema is not None:
                self.ema.load_state_dict(state["ema"])
            self.precision.load_state_dict(state["precision"])
            set_random_state(self.device, state["rng"], state.get("device", "cpu"))
        except Exception as error:  # what does not fit can fail in any way
            raise ValueError(f"the checkpoint does not fit this run ({type(error).__name__}: {error})") from error

    def size(self) -> int:
        """Bytes of a checkpoint, with what the optimizer has not begun to keep: the base, and one vector of its own."""
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        kept = 3 if isinstance(self.optimizer.base, (torch.optim.Adam, torch.optim.AdamW)) else 2
        return len(tree.dumps(self.state())) + (0 if self.done else kept * weights)


def save(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write the checkpoint of `step`, with its checksum; it and those before it stay, `keep` in all."""
    payload = tree.dumps(state)
    path = folder / f"checkpoint-{step:09d}.pt"
    files.write(path, MAGIC + VERSION + b"\n" + hashlib.sha256(payload).digest() + payload)
    there = of(folder)
    last = there.index(path) + 1
    for other in there[: max(last - keep, 0)] + there[last:]:  # a later one was damaged, or we would not be here
        other.unlink(missing_ok=True)
    return path


def load_latest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, or None; a damaged one is named in a warning and passed over."""
    for path in reversed(of(folder)):
        try:
            return load(path)
        except OtherVersion:
            raise
        except ValueError as error:
            warnings.warn(f"{error}; going back to the one before, or to the beginning", stacklevel=2)
    return None


def load(path: Path) -> dict[str, Any]:
    """A checkpoint, if it is what was written; it holds data only, nothing in it is run."""
    with path.open("rb") as file:
        head = re.match(MAGIC + rb"(\d{1,9})\n(.{32})", file.read(len(MAGIC) + 42), re.DOTALL)
        file.seek(0 if head is None else head.end())
        payload = b"" if head is None else file.read()
    if head is None or head[2] != hashlib.sha256(payload).digest():
        raise ValueError(f"{path} is damaged or no checkpoint of ours")
    if head[1] != VERSION:
        raise OtherVersion(
            f"{path} is of version {int(head[1])}, and this zosam reads version {int(VERSION)}: go on with"
            f" the zosam that has begun it, or move {path.parent} away to train anew"
        )
    try:
        state = tree.loads(payload)
    except ValueError as error:
        raise ValueError(f"{path} holds {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds a {type(state).__name__}, not the state of a training")
    return state


def of(folder: Path) -> list[Path]:
    """The checkpoints of a folder, in the order of their steps."""
    there = [p for p in folder.glob("checkpoint-*.pt") if re.fullmatch(r"checkpoint-\d{9,18}\.pt", p.name)]
    return sorted(there, key=lambda p: (len(p.name), p.name))
