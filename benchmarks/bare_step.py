"""What a step costs beside its passes, side by side with another checkout: 30 small layers, and a loss that is free.

    git worktree add ../before COMMIT
    python benchmarks/bare_step.py --beside ../before

Two processes take turns, one for each tree, so that a slow moment hits both; their CPU time is compared. The row of
plain SGD runs none of our code: what it differs by is noise.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn

HERE = Path(__file__).resolve().parents[1]
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
}  # page faults come and go by chance
CASES = ("SGD", "SGD + RigL", "SAM", "SAM + RigL", "ZO-SAM", "ZO-SAM + RigL")


def free_loss(model: nn.Module) -> Callable[[], torch.Tensor]:
    """A loss whose forward and backward cost next to nothing, and that leaves a gradient everywhere."""
    gradients = [torch.randn_like(p) for p in model.parameters()]

    def loss() -> torch.Tensor:
        if torch.is_grad_enabled():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p.grad = g
        return torch.zeros(())

    return loss


def step_of(case: str) -> Callable[[], object]:
    """A step around a model of 30 layers whose gradients are handed over ready-made."""
    from zosam import optim, sparse  # of the tree that this process was started for

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(30)])
    base = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    wrapper = {"SAM": "SAM", "ZO-SAM": "ZOSAM"}.get(case.split(" + ", maxsplit=1)[0])
    optimizer = getattr(optim, wrapper)(base, rho=0.05) if wrapper else base
    if "RigL" in case:
        try:
            sparse.RigL(model, optimizer, sparsity=0.9, every=10**9, steps=10**9).steps = 1
        except TypeError:  # a tree in which methods did not ask for the length of training
            sparse.RigL(model, optimizer, sparsity=0.9, every=10**9).steps = 1
    loss = free_loss(model)
    if wrapper:
        return lambda: optimizer.step(loss)

    def plain() -> None:
        loss()
        base.step()

    return plain


def serve(steps: int) -> None:
    """Time the cases that are asked for on standard input, one a line."""
    torch.set_num_threads(1)
    made: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        case = line.strip()
        if case not in made:
            made[case] = step_of(case)
            for _ in range(steps):
                made[case]()
        began = time.process_time()
        for _ in range(steps):
            made[case]()
        print((time.process_time() - began) / steps, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="the other checkout; by default this tree is compared with itself")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=100, help="steps in a turn")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.steps)
        return
    trees = {"before": (arguments.beside or HERE).resolve(), "now": HERE}
    sides = {}
    for name, tree in trees.items():
        command = [sys.executable, __file__, "--serve", "--steps", str(arguments.steps)]
        sides[name] = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(tree / "src"), **KEEP_MEMORY},
        )

    def turn(name: str, case: str) -> float:
        side = sides[name]
        assert side.stdin is not None
        assert side.stdout is not None
        print(case, file=side.stdin, flush=True)
        answer = side.stdout.readline()
        if not answer:
            sys.exit(f"{trees[name]} cannot run {case}: see above")
        return float(answer)

    rows = []
    print(f"{'':14} {'before':>9} {'now':>9} {'now / before':>13}")
    for case in CASES:
        times: dict[str, list[float]] = {name: [] for name in sides}
        for round_ in range(arguments.rounds):
            for name in sorted(sides, reverse=bool(round_ % 2)):
                times[name].append(turn(name, case))
        ratio = median(n / b for n, b in zip(times["now"], times["before"], strict=True))
        rows.append({"case": case, "ratio": ratio, "seconds": times})
        before, now = (1e3 * median(times[name]) for name in ("before", "now"))
        print(f"{case:14} {before:6.3f} ms {now:6.3f} ms {ratio:13.3f}")
    for side in sides.values():
        side.terminate()
    if arguments.out:
        from zosam.machine import cpu_name  # of this tree; the other one may have none

        commits = {name: commit(tree) for name, tree in trees.items()}
        made_with = {"torch": torch.__version__, "machine": platform.machine(), "cpu": cpu_name(), **commits}
        found = {"made_with": made_with, "steps": arguments.steps, "rows": rows}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


def commit(tree: Path) -> str:
    """The commit that is checked out there."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
