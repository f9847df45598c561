"""What a step of each optimizer costs: throughput as a ratio to SGD, and peak memory.

    python benchmarks/step.py [--model resnet32] [--rounds 7] [--out step_cost.json]

Batch 128, channels_last, 90 % sparse (ERK), fp32. All contestants take turns in one process, each step right after one
of SGD. A ratio is SGD's time / theirs: the median over rounds with its 95 % interval, and that of the least times.
SGD against itself shows what the machine's other work does to them. Peak memory is that of a process of its own, above
what the built model holds. Beside them stand the column of the paper and, where `pytorch-optimizer` is installed, its
SAM, LookSAM and GSAM.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from chart import machine
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.lab import models
from zosam.lab.device import CPU, placed
from zosam.lab.measure.throughput import beside
from zosam.layouts import bears_channels_last
from zosam.optim import (
    ASAM,
    ESAM,
    GSAM,
    MSAM,
    RWP,
    S2SAM,
    SAM,
    ZOSAM,
    Central,
    Gaussian,
    LastGradient,
    LookSAM,
    Momentum,
    Pair,
    Rademacher,
    RandomSAM,
    Subspace,
    Unperturbed,
)
from zosam.sparse import RigL

PAPER = {"SAM": 0.4767, "ESAM": 0.4048, "LookSAM k=5": 0.7014, "LookSAM k=10": 0.7529, "GSAM": 0.4760, "ZO-SAM": 0.7667}
OURS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "SGD": Unperturbed,
    "SAM": SAM,
    "SAM 1/4 batch": lambda b: SAM(b, batch_fraction=1 / 4),
    "SAM 1/8 batch": lambda b: SAM(b, batch_fraction=1 / 8),
    "ASAM": ASAM,
    "ESAM": ESAM,
    "ESAM, both savings off": lambda b: ESAM(b, beta=1.0, gamma=1.0),
    "LookSAM k=5": lambda b: LookSAM(b, k=5),
    "LookSAM k=10": lambda b: LookSAM(b, k=10),
    "GSAM": GSAM,
    "ZO-SAM": ZOSAM,
    "ZO-SAM rademacher": lambda b: ZOSAM(b, probe=Rademacher(1)),
    "RWP": RWP,
    "ZO-SAM as printed": lambda b: ZOSAM.paper(b),
    "ZO-SAM m=2": lambda b: ZOSAM(b, probe=Gaussian(2)),
    "ZO-SAM m=4": lambda b: ZOSAM(b, probe=Gaussian(4)),
    "ZO-SAM pair": lambda b: ZOSAM(b, decide=Pair()),
    "ZO-SAM 1/2 batch": lambda b: ZOSAM(b, decide=Central(batch_fraction=1 / 2)),
    "ZO-SAM 1/8 batch": lambda b: ZOSAM(b, decide=Central(batch_fraction=1 / 8)),
    "ZO-SAM every 5": lambda b: ZOSAM(b, every=5),
    "ZO-SAM momentum": lambda b: ZOSAM(b, probe=Momentum()),
    "ZO-SAM gradient": lambda b: ZOSAM(b, probe=LastGradient()),
    "ZO-SAM subspace 1/8": lambda b: ZOSAM(b, probe=Subspace(), decide=Central(batch_fraction=1 / 8)),
    "ZO-SAM fast": ZOSAM.fast,
    "RandomSAM": RandomSAM,
    "S2-SAM": S2SAM,
    "MSAM": MSAM,
}
PEERS = {
    "SAM (pytorch-optimizer)": "SAM",
    "LookSAM k=5 (pytorch-optimizer)": "LookSAM",
    "GSAM (pytorch-optimizer)": "GSAM",
}


def problem(model_name: str, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    side = 32
    model, x = placed(models.build(model_name, 10), CPU), torch.randn(batch, 3, side, side)
    if bears_channels_last(model):
        x = x.to(memory_format=torch.channels_last)
    return model, x, torch.randint(0, 10, (batch,))


def ours(name: str, model_name: str, batch: int, sparsity: float) -> Callable[[], object]:
    """Steps of one of our optimizers; as many as it takes for its average cost to show."""
    model, x, y = problem(model_name, batch)
    optimizer = OURS[name](torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4))
    RigL(model, optimizer, sparsity, every=10**9, steps=10**9).steps = 1
    reduction = "none" if optimizer.per_sample else "mean"

    def closure(keep: slice | Tensor = slice(None)) -> Tensor:
        return F.cross_entropy(model(x[keep]), y[keep], reduction=reduction)

    return lambda: optimizer.step(closure)


def peer(name: str, model_name: str, batch: int) -> Callable[[], object]:
    """The peer's own recipe: a first backward by hand, then step(closure); masks are not its business."""
    import pytorch_optimizer

    model, x, y = problem(model_name, batch)
    settings: dict[str, Any] = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4}
    kind = PEERS[name]
    if kind == "GSAM":
        base = torch.optim.SGD(model.parameters(), **settings)
        rho = pytorch_optimizer.ProportionScheduler(
            torch.optim.lr_scheduler.ConstantLR(base, 1.0), max_lr=1e-3, min_lr=0.0, max_value=0.05, min_value=0.05
        )
        gsam = pytorch_optimizer.GSAM(model.parameters(), base, model, rho)

        def both() -> None:
            gsam.set_closure(nn.CrossEntropyLoss(), x, y)
            gsam.step()

        return both
    extra = {"k": 5} if kind == "LookSAM" else {}
    optimizer = getattr(pytorch_optimizer, kind)(model.parameters(), torch.optim.SGD, rho=0.05, **extra, **settings)

    def closure() -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def step() -> None:
        closure()
        optimizer.step(closure)
        optimizer.zero_grad()

    return step


def period(name: str) -> int:
    """After how many steps the costs of a method's steps repeat."""
    if name == "ZO-SAM fast":
        return 2
    return 10 if name == "LookSAM k=10" else 5 if name.startswith("LookSAM") or "every 5" in name else 1


def peak_memory(name: str, model_name: str, batch: int, sparsity: float) -> int:
    """Bytes that a few steps take above the built model, in a process of its own."""
    code = f"""
import step, pathlib
take = step.ours({name!r}, {model_name!r}, {batch}, {sparsity})
def status(key):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key)) * 1024
before = status("VmRSS")
for _ in range(6): take()
print(status("VmHWM") - before)
"""
    folder = Path(__file__).resolve().parent
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return int(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", nargs="+", default=["resnet32_he", "resnet32", "deit_tiny:image_size=32,patch_size=8"]
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[], help="some contestants, by name")
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu on a busy machine, one thread")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    names = [n for n in OURS if n == "SGD" or not arguments.only or n in arguments.only]
    peers = list(PEERS) if importlib.util.find_spec("pytorch_optimizer") and not arguments.only else []
    rows = []
    for model_name in arguments.model:
        turns = {n: ours(n, model_name, arguments.batch, arguments.sparsity) for n in names}
        turns |= {n: peer(n, model_name, arguments.batch) for n in peers}

        clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
        contestants = {n: (take, period(n)) for n, take in turns.items()}
        speed = beside(contestants, turns["SGD"], rounds=arguments.rounds, clock=clock)
        memory = {}
        if arguments.memory:
            memory = {n: peak_memory(n, model_name, arguments.batch, arguments.sparsity) for n in names}
        print(f"\n{model_name}, batch {arguments.batch}, {torch.get_num_threads()} threads")
        print(f"{'':32} {'speed / SGD':>11} {'95 %':>13} {'least':>6} {'paper':>6} {'peak memory':>12} {'/ SGD':>6}")
        for n, found in speed.items():
            low, high = found.interval
            paper = f"{PAPER[n]:6.2f}" if n in PAPER else " " * 6
            peak = f"{memory[n] / 2**20:9.0f} MB {memory[n] / memory['SGD']:6.2f}" if n in memory else ""
            print(f"{n:32} {found.median:11.3f} {low:6.3f}-{high:.3f} {found.least:6.3f} {paper} {peak}")
            row = {"model": model_name, "name": n, "ratio": found.median, "interval": [low, high]}
            row |= {"least": found.least, "rounds": found.rounds, "paper": PAPER.get(n), "peak_bytes": memory.get(n)}
            rows.append(row)
    made_with = {**machine(), "threads": torch.get_num_threads(), "clock": arguments.clock}
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"made_with": made_with, "batch": arguments.batch, "sparsity": arguments.sparsity, "rows": rows}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
