"""A machine on which trainings can be started quickly, killed, and their files damaged."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import safetensors.torch
import torch

from zosam import files
from zosam.lab import checkpoints
from zosam.lab.run import Run

LOGS = tempfile.TemporaryDirectory()  # never on a disk that is filled
NET = """
import sys, types
from torch import nn
net = sys.modules["tiny_net"] = types.ModuleType("tiny_net")
net.build = lambda num_classes, colours=1: nn.Sequential(
    nn.Conv2d(colours, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
    nn.Dropout(0.1), nn.Flatten(), nn.Linear(72, num_classes),
)
net.colour = lambda num_classes: net.build(num_classes, 3)
"""
exec(NET, {})
WHAT = Run(model="tiny_net:build", epochs=5, method="rigl:every=5", sparsity=0.5, batch_size=64, rho=0.1)
EPOCH = 23  # steps
CHILD = """
import os, sys
{net}
sys.argv, out = {argv!r}, os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(out, 1), os.dup2(out, 2)
sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
import torch, warnings
warnings.simplefilter("always")
torch.set_num_threads(1)
{before}
from zosam.lab import cli, terminal
terminal.console.width = 1000
cli.main()
"""

server = multiprocessing.get_context("forkserver")


class Training:
    """One `zosam train` in a process of its own."""

    def __init__(self, out: Path, *more: str, what: Run = WHAT, before: str = "") -> None:
        self.folder, self.log = out / what.folder, Path(tempfile.mkstemp(".log", dir=LOGS.name)[1])
        argv = ["zosam", "train", "--out", str(out), *more]
        for field, value in what.written().items():
            argv += [f"--{field.replace('_', '-')}", str(value)]
        code = CHILD.format(net=NET, argv=argv, log=str(self.log), before=before)
        self.process = server.Process(target=exec, args=(code, {"__name__": "child"}))
        self.process.start()

    def ends(self) -> int:
        self.process.join(120)
        assert self.process.exitcode is not None, "it hangs"
        return self.process.exitcode

    def says(self) -> str:
        return " ".join(self.log.read_text().split())

    def stop(self, number: signal.Signals) -> int:
        os.kill(self.process.pid, number)
        return self.ends()

    def wait_for(self, count: int) -> None:
        while len(checkpoints.of(self.folder)) < count and self.process.is_alive():
            time.sleep(0.002)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def same(a: Path, b: Path) -> bool:
    """Bit for bit: the weights, and all of the record that is not a time."""
    x, y = weights(a), weights(b)
    told = [[_figures(e) for e in files.read_json(f / "record.json")["epochs"]] for f in (a, b)]
    return x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x) and told[0] == told[1]


def _figures(epoch: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in epoch.items() if k not in {"seconds", "cpu_seconds", "images_per_second"}}
