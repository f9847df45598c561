"""How often probes on part of a batch choose the sign that the whole batch would choose.

    python benchmarks/signs.py [--model resnet20:stem_stride=2] [--data cifar10] [--trials 400] [--out results/signs.json]

A network is trained first, 90 % sparse by RigL under SGD (in `runs`, once). Then, for each of many batches of 128 and
random directions u, the difference L(θ + ρu) − L(θ − ρu) is taken on the whole batch and on every n-th picture of it.
A coin agrees half of the time. Beside it stands what the two probes cost, in forward passes of the whole batch.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zosam import ZOSAM
from zosam.files import write_json
from zosam.run import Run, load_data, made_with, run
from zosam.train import classification

PARTS = (2, 4, 8, 16, 32)


def agreement(what: Run, data_dir: str | None, trials: int, distribution: Any) -> dict[int, float]:
    """For each n, how often every n-th picture of the batch agrees with all of it."""
    record = run(what, data_dir=data_dir)
    source = load_data(what, data_dir)
    model = record.load().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    base = torch.optim.SGD(model.parameters(), lr=what.lr)
    optimizer = ZOSAM(base, what.rho, distribution=distribution, seed=what.seed)
    masks = record.masks()
    optimizer.masks = {p: masks[name] for name, p in model.named_parameters() if name in masks}
    agree = dict.fromkeys(PARTS, 0)
    epoch = what.epochs
    batches = source.train.epoch(epoch)
    for trial in range(trials):
        batch = next(batches, None)
        if batch is None:
            epoch += 1
            batches = source.train.epoch(epoch)
            batch = next(batches)
        closure = classification(model, *batch)
        optimizer.steps = trial  # another direction each time
        u = optimizer.unit(optimizer._draw(0, "0"))

        def difference(n: int, closure: Any = closure, u: Tensor = u) -> float:
            losses = []
            for sign in (1, -1):
                with torch.no_grad(), optimizer.displaced(u, by=sign * what.rho):
                    losses.append(float(optimizer.evaluate(closure, slice(None, None, n)).double()))
            return losses[0] - losses[1]

        whole = difference(1)
        for n in PARTS:
            agree[n] += (difference(n) > 0) == (whole > 0)
    return {n: agree[n] / trials for n in PARTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20:stem_stride=2")
    parser.add_argument("--data", default="cifar10:train=20000")
    parser.add_argument("--data-dir")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--distribution", default="rademacher", choices=["gaussian", "rademacher"])
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    what = Run(model=a.model, data=a.data, epochs=a.epochs, optimizer="sgd", batch_size=128)
    found = agreement(what, a.data_dir, a.trials, a.distribution)
    print(f"{a.model} on {a.data}, {a.trials} batches of 128, rho {what.rho}\n{'part':>6} {'agree':>7} {'95 %':>8} cost")
    for n, share in found.items():
        error = 1.96 * math.sqrt(share * (1 - share) / a.trials)
        print(f"  1/{n:<3} {100 * share:6.1f}% ±{100 * error:5.1f}% {2 / n:.3f}")
    if a.out:
        write_json(a.out, {"made_with": made_with(), "run": what.changed(), "trials": a.trials, "agreement": found})


if __name__ == "__main__":
    main()
