"""Where and how to train: nothing of it is part of what is trained."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from zosam.lab.logs import LOGS
from zosam.names import find


@dataclass(frozen=True)
class Where:
    """Where and how a run is trained. It has no part in the run's address: at most the last bits of a result differ."""

    data_dir: str | None = None
    """Where data sets lie; else $ZOSAM_DATA, else ~/.cache/zosam."""
    workers: int = 2
    """Processes that read pictures."""
    accelerate: bool = False
    """Run sparse layers on the sparse CPU kernels where they measure faster."""
    checkpoint_minutes: float = 10.0
    """How often to write a checkpoint within an epoch; there is one after every epoch."""
    log: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where else to write how it goes: tensorboard, wandb. CSV files are always written."""
    log_every: int = 100
    """After how many steps to say how it goes, also within an epoch; 0: after each epoch alone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "log", (self.log,) if isinstance(self.log, str) else tuple(self.log))
        for name in self.log:
            find({known: known for known in LOGS}, name, "log")
        if self.log_every < 0:
            raise ValueError(f"log_every must be 0 or more, not {self.log_every}")

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Where:
        """From arguments by name; an unknown one gets an error with the nearest valid one."""
        for name in settings:
            find({f.name: f for f in fields(cls)}, name, "argument of run")
        return cls(**settings)
