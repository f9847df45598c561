"""Where and how to train: nothing of it is part of what is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import torch

from zosam.lab import device
from zosam.lab.logs import LOGS
from zosam.lab.settings import typed
from zosam.names import find


@dataclass(frozen=True)
class Where:
    """Where and how a run is trained. It has no part in the run's address: at most the last bits of a result differ."""

    device: str = "auto"
    """auto (the accelerator, if there is one), cpu, cuda, cuda:1, mps or xpu; under torchrun each process its own."""
    compile: bool = False
    """Compile the network with torch.compile."""
    threads: int | None = None
    """Threads of the CPU; by default as many as torch takes."""
    data_dir: str | None = None
    """Folder of the data sets; by default $ZOSAM_DATA, else ~/.cache/zosam."""
    workers: int = 2
    """Processes that read pictures."""
    accelerate: bool = False
    """Run sparse layers on the sparse CPU kernels, where these are measured to be faster."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints within an epoch, 0 for one after every step; one more ends every epoch."""
    test_every: int = 1
    """Epochs between two tests; each ends a line of the record. The network is always tested at the end."""
    log: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Loggers beside the CSV files, which are always written: tensorboard, wandb."""
    log_every: int = 100
    """Steps between lines of the log within an epoch; 0 writes one line per epoch."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "log", (self.log,) if isinstance(self.log, str) else tuple(self.log))
        if isinstance(self.data_dir, Path):
            object.__setattr__(self, "data_dir", str(self.data_dir))
        for name, wanted in get_type_hints(type(self)).items():
            if name != "log":
                object.__setattr__(self, name, typed(name, getattr(self, name), wanted))
        for name in self.log:
            find({known: known for known in LOGS}, name, "log")
        if self.checkpoint_minutes < 0:
            raise ValueError(f"checkpoint_minutes must be 0 or more, not {self.checkpoint_minutes}")
        if self.test_every < 1:
            raise ValueError(f"test_every must be 1 or more epochs, not {self.test_every}")
        if self.log_every < 0:
            raise ValueError(f"log_every must be 0 or more, not {self.log_every}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be 1 or more, not {self.threads}")
        if self.workers < 0:
            raise ValueError(f"workers must be 0 or more, not {self.workers}")
        if self.accelerate and self.compile:
            raise ValueError("torch.compile would run the network dense: choose accelerate or compile")

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Where:
        """From arguments by name; an unknown one gets an error with the nearest valid one."""
        for name in settings:
            find({f.name: f for f in fields(cls)}, name, "argument of run")
        return cls(**settings)

    @contextmanager
    def here(self) -> Iterator[torch.device]:
        """The device, which is the current one inside, with so many threads; its random stream and that of the CPU,
        the current device and the threads are afterwards as before."""
        found, threads = device.choose(self.device), torch.get_num_threads()
        if self.accelerate and found.type != "cpu":
            raise ValueError(f"the sparse kernels are for CPUs, and this is {found}: leave accelerate out, or say cpu")
        with device.current(found):
            try:
                if self.threads is not None:
                    torch.set_num_threads(self.threads)
                yield found
            finally:
                torch.set_num_threads(threads)
