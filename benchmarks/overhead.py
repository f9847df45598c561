"""What the bookkeeping of a step costs: masks, perturbation, restore and hooks, as a share of the training step.

    python benchmarks/overhead.py [--out results/step_bookkeeping.json]

ResNet-32 at batch 128, RigL at 90 %. A step of ours is timed against the bare passes that it is made of — the same
number of forwards without a graph and of forward-backward passes, and the base optimizer's update — turn about in one
process. The difference is bookkeeping; a profile of the step without its passes is the second witness.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from bare_step import free_loss
from chart import machine
from torch.nn import functional as F

from zosam.lab.measure.throughput import seconds
from zosam.lab.models import resnet32
from zosam.optim import OPTIMIZERS, SharpnessAware
from zosam.sparse import RigL


def build(name: str, batch: int) -> tuple[Callable[[], object], Callable[[], object], Callable[[], object]]:
    """A step of ours, the bare passes of that step, and our step around a model that costs nothing."""
    torch.manual_seed(0)
    model = resnet32().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,))
    base = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
    optimizer: SharpnessAware = OPTIMIZERS[name](base)
    sparse = RigL(model, optimizer, 0.9, every=10**9, steps=10**9)
    plain_model = resnet32().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    plain = torch.optim.SGD(plain_model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)
    per_step = optimizer.passes_per_step()
    backwards = round(per_step["backward"])
    forwards = round(per_step["forward"]) - backwards
    sparse.steps = 1

    def passes() -> None:
        with torch.no_grad():
            for _ in range(forwards):
                F.cross_entropy(plain_model(x), y)
        for _ in range(backwards):
            plain.zero_grad()
            F.cross_entropy(plain_model(x), y).backward()
        plain.step()

    free = free_loss(model)
    return lambda: optimizer.step(lambda: F.cross_entropy(model(x), y)), passes, lambda: optimizer.step(free)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batch", type=int, default=128)
    arguments = parser.parse_args()
    rows = []
    print(f"{'':8} {'step':>9} {'bare passes':>12} {'difference':>11} {'bookkeeping alone':>18}")
    for name in ("sgd", "sam", "zosam"):
        step, passes, alone = build(name, arguments.batch)
        times = seconds({"step": step, "passes": passes, "alone": alone}, rounds=arguments.rounds)
        share = median(s / p - 1 for s, p in zip(times["step"], times["passes"], strict=True))
        direct = median(times["alone"]) / median(times["step"])
        rows.append({"optimizer": name, "difference": share, "alone": direct, "seconds": times})
        print(
            f"{name:8} {median(times['step']) * 1e3:6.0f} ms {median(times['passes']) * 1e3:9.0f} ms"
            f" {share:10.2%} {median(times['alone']) * 1e3:8.2f} ms {direct:6.2%}"
        )
    made_with = {**machine(), "threads": torch.get_num_threads()}
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"made_with": made_with, "batch": arguments.batch, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
