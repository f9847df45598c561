"""How often probes choose the right sign: on part of a batch, on the batch before, or in bf16 and fp16.

    python benchmarks/signs.py [--model resnet20:stem_stride=2] [--data cifar10] [--trials 400] [--out signs.json]

A network is trained first, 90 % sparse by RigL under SGD (in `runs`, once). Then, for each of many batches of 128 and
random directions u, the sign of L(θ + ρu) − L(θ − ρu) on the whole batch is compared with that on every n-th picture of
it, or of the batch before, as where a perturbation is kept for two steps. A coin agrees half of the time. Beside it
stands what the two probes cost, in forward passes of the whole batch.

The second table is about rounding. The sign of L(θ + δu) − L(θ − δu), where the network runs in fp32, bf16 or fp16 by
autocast and u has a variance of 1, is compared with that of the slope along u by backpropagation in fp32. A δ of ρ/‖u‖
is where the candidates themselves are.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zosam import ZOSAM
from zosam.files import write_json
from zosam.lab.assemble import load_data
from zosam.lab.device import CPU, placed
from zosam.lab.precision import Precision
from zosam.lab.record import made_with
from zosam.lab.run import Run, run
from zosam.lab.train import classification
from zosam.optim.masked import set_mask
from zosam.optim.passes import Closure

RHO = 0.05
CHOICES = [(0, 2), (0, 4), (0, 8), (0, 12), (0, 16), (1, 1), (1, 8)]  # so many batches ago, every n-th picture


DELTAS = [None, 1e-3, 3e-3, 1e-2]  # how far apart probes are; None: as far as the candidates


def batches(what: Run, data_dir: str | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The training batches of a run, one after another, for ever."""
    source, epoch = load_data(what, data_dir).train, what.epochs
    while True:
        yield from source.epoch(epoch)
        epoch += 1


def trained(what: Run, data_dir: str | None, root: Path = Path("runs")) -> tuple[nn.Module, ZOSAM]:
    """The network of a run, and an optimizer that knows its masks."""
    record = run(what, root, data_dir=data_dir)
    model = placed(record.load(), CPU)
    optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=what.lr), RHO, seed=what.seed)
    for name, mask in record.masks().items():
        set_mask(model.get_parameter(name), mask)
    return model, optimizer


def agreement(what: Run, data_dir: str | None, trials: int, distribution: Any) -> dict[tuple[int, int], float]:
    """How often each of the choices is that of the whole batch."""
    model, optimizer = trained(what, data_dir)

    @torch.no_grad()
    def rises(closure: Closure, u: Tensor, n: int) -> bool:
        losses = []
        for sign in (1, -1):
            with optimizer.displaced(u, by=sign * RHO):
                losses.append(float(optimizer.evaluate(closure, slice(None, None, n)).double()))
        return losses[0] > losses[1]

    agree = dict.fromkeys(CHOICES, 0)
    closures = (classification(model, x, y) for x, y in batches(what, data_dir))
    before = next(closures)
    for trial, now in zip(range(trials), closures, strict=False):
        optimizer.steps = trial  # each step has directions of its own
        u = optimizer.active.unit(optimizer.draw(signs=distribution == "rademacher"))
        whole = rises(now, u, 1)
        for ago, n in CHOICES:
            agree[ago, n] += rises((now, before)[ago], u, n) == whole
        before = now
    return {choice: count / trials for choice, count in agree.items()}


def rounding(
    what: Run, data_dir: str | None, trials: int, precisions: Sequence[str], root: Path = Path("runs")
) -> dict[tuple[str, float | None], float]:
    """How often probes in each precision, at each distance, choose the sign of the slope."""
    model, optimizer = trained(what, data_dir, root)
    agree = {(precision, delta): 0 for precision in precisions for delta in DELTAS}
    for trial, (x, y) in zip(range(trials), batches(what, data_dir), strict=False):
        optimizer.steps = trial
        u = optimizer.draw()
        optimizer.gradient(classification(model, x, y))
        slope = float(optimizer.active.dot(u, optimizer.grads()))
        for precision, delta in agree:
            closure = classification(model, x, y, precision=Precision(precision))
            reach = RHO / float(optimizer.active.norm(u)) if delta is None else delta
            losses = []
            for sign in (1, -1):
                with torch.no_grad(), optimizer.displaced(u, by=sign * reach):
                    losses.append(float(optimizer.evaluate(closure).double()))
            agree[precision, delta] += (losses[0] - losses[1]) * slope > 0
    return {choice: count / trials for choice, count in agree.items()}


def margin(share: float, trials: int) -> float:
    """Half the width of the 95 % interval of a share."""
    return 1.96 * math.sqrt(share * (1 - share) / trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20:stem_stride=2")
    parser.add_argument("--data", default="cifar10:train=20000")
    parser.add_argument("--data-dir")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--distribution", default="rademacher", choices=["gaussian", "rademacher"])
    parser.add_argument("--precision", nargs="*", default=["fp32", "bf16"], choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    what = Run(model=a.model, data=a.data, epochs=a.epochs, optimizer="sgd", batch_size=128)
    found = agreement(what, a.data_dir, a.trials, a.distribution)
    print(f"{a.model} on {a.data}, {a.trials} batches of 128, rho {RHO}\n{'':24}  agree    95 %   cost")
    rows = []
    for (ago, n), share in found.items():
        name = f"1/{n} of " + ("the batch before" if ago else "the batch")
        error = margin(share, a.trials)
        print(f"{name:24} {100 * share:5.1f} % ± {100 * error:.1f} % {2 / n:6.3f}")
        rows.append({"batches_ago": ago, "part": 1 / n, "agree": share, "error": error, "forward_passes": 2 / n})
    print(f"\nagainst the slope in fp32\n{'':24}  agree    95 %")
    rounded = []
    for (precision, delta), share in rounding(what, a.data_dir, a.trials, a.precision).items():
        error = margin(share, a.trials)
        name = f"{precision}, delta " + ("rho/|u|" if delta is None else f"{delta:g}")
        print(f"{name:24} {100 * share:5.1f} % ± {100 * error:.1f} %")
        rounded.append({"precision": precision, "delta": delta, "agree": share, "error": error})
    if a.out:
        content = {"made_with": made_with(), "run": what.description, "trials": a.trials, "rows": rows}
        write_json(a.out, content | {"precision": rounded})


if __name__ == "__main__":
    main()
