"""A training in progress: all that a checkpoint must hold so that it goes on bit for bit."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from zosam.lab import serialize as tree
from zosam.lab.ema import Ema
from zosam.lab.measure.variance import GradientVariance
from zosam.lab.precision import Precision
from zosam.lab.record import are_epochs
from zosam.lab.train import Sums
from zosam.optim import SharpnessAware
from zosam.sparse import Sparsity


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

    def state(self) -> dict[str, Any]:
        """Everything, as tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sparse": None if self.sparse is None else self.sparse.state_dict(),
            "rng": torch.get_rng_state(),
            "passes": dict(self.optimizer.passes),
            "done": self.done,
            "epochs": self.epochs,
            "sums": dataclasses.asdict(self.sums),
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
            if self.sparse is not None:
                self.sparse.load_state_dict(state["sparse"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.optimizer.passes.update({k: float(state["passes"][k]) for k in self.optimizer.passes})
            self.done, self.epochs, self.sums = state["done"], state["epochs"], Sums(**state["sums"])
            if self.variance is not None:
                self.variance.load_state_dict(state["variance"])
            if self.ema is not None:
                self.ema.load_state_dict(state["ema"])
            self.precision.load_state_dict(state["precision"])
            torch.set_rng_state(state["rng"])
        except Exception as error:  # what does not fit can fail in any way
            raise ValueError(f"the checkpoint does not fit this run ({type(error).__name__}: {error})") from error

    def size(self) -> int:
        """Bytes of a checkpoint, with what the optimizer has not begun to keep: the base, and one vector of its own."""
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        kept = 3 if isinstance(self.optimizer.base, (torch.optim.Adam, torch.optim.AdamW)) else 2
        return len(tree.dumps(self.state())) + (0 if self.done else kept * weights)
