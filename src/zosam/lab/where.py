"""Where and how to train: nothing of it is part of what is trained."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

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

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Where:
        """From arguments by name; an unknown one gets an error with the nearest valid one."""
        for name in settings:
            find({f.name: f for f in fields(cls)}, name, "argument of run")
        return cls(**settings)
