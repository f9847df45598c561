"""Whole training steps with and without the sparse kernels, as ratios to dense SGD in the same run.

    python benchmarks/train_step.py [resnet32 ...] [--sparsity 0.9 0.95 0.98] [--threads 1] [--out step.json]

Every contestant takes one step per round, in turns, through the public interface; the figure is the median over
rounds of (dense SGD's time / its time). "masked-dense" is ZO-SAM on the same sparse model without the kernels, and
`--bf16` adds dense SGD under autocast. `--clock cpu` counts the CPU time of the process, for one thread on a busy
machine; two threads need `--clock wall` and an idle one. With --out a bar chart lands beside the JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.kernels import accelerate, doctor, report
from zosam.models import deit_tiny, resnet32, resnet32_he, resnet50_cifar, wrn28_10
from zosam.optim import SAM, ZOSAM
from zosam.sparse import METHODS

Step = Callable[[], object]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {  # network, batch, pixels
    "resnet32": (resnet32, 128, 32),
    "resnet32_he": (resnet32_he, 128, 32),
    "resnet50_cifar": (resnet50_cifar, 32, 32),
    "wrn28_10": (wrn28_10, 16, 32),
    "deit_tiny": (lambda: deit_tiny(10, image_size=64, drop_path=0.0), 64, 64),
}
KINDS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda base: SAM(base, rho=0.0),  # at rho = 0 it is its base optimizer
    "SAM": lambda base: SAM(base, rho=0.05),
    "ZO-SAM": lambda base: ZOSAM(base, rho=0.05),
    "ZO-SAM fast": lambda base: ZOSAM.fast(base, rho=0.05),
}


def dense(network: str, bf16: bool = False) -> Step:
    """A step of SGD on the dense model in torch's fastest layout."""
    build, batch, pixels = NETWORKS[network]
    model = build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(batch, 3, pixels, pixels).to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,))
    optimizer = sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4)


def sparse(network: str, sparsity: float, kind: str, fast: bool) -> tuple[Step, str]:
    """A step of one optimizer on a sparse model, with or without the kernels; and how its regions run."""
    build, batch, pixels = NETWORKS[network]
    model = build()
    optimizer = KINDS[kind](sgd(model))
    masks = METHODS["random"](model, optimizer, sparsity, budget="uniform", dense=first_layer(model))
    x, y = torch.randn(batch, 3, pixels, pixels), torch.randint(0, 10, (batch,))
    if fast:
        accelerate(model, masks, x)
    else:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def closure(keep: Any = slice(None)) -> Tensor:
        return F.cross_entropy(model(x[keep]), y[keep])

    return lambda: optimizer.step(closure), report(model)


def first_layer(model: nn.Module) -> list[str]:
    """The stem stays dense, as in the literature on uniform sparsity; the patches of a transformer do not."""
    name, conv = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d))
    return [f"{name}.weight"] if conv.kernel_size == (3, 3) else []


def compare(
    network: str, level: float, rounds: int, clock: Callable[[], float], bf16: bool
) -> tuple[dict[str, float], dict[str, float], str]:
    """Ratio to dense SGD and milliseconds of every contestant at one sparsity, and how the regions run."""
    steps: dict[str, Step] = {"dense SGD": dense(network)}
    if bf16:
        steps["dense SGD bf16"] = dense(network, bf16=True)
    steps["masked-dense ZO-SAM"] = sparse(network, level, "ZO-SAM", fast=False)[0]
    way = ""
    for kind in KINDS:
        steps[kind], way = sparse(network, level, kind, fast=True)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            began = clock()
            step()
            if turn:  # the first round warms up
                times[name].append(clock() - began)
    reference = times["dense SGD"]
    ratio = {name: median(r / t for r, t in zip(reference, own, strict=True)) for name, own in times.items()}
    return ratio, {name: median(own) * 1e3 for name, own in times.items()}, way


def bars(title: str, values: dict[str, float]) -> str:
    """A horizontal bar chart as SVG."""
    high, room = max(values.values()), 420
    rows = []
    for i, (name, value) in enumerate(values.items()):
        y, wide = 40 + 24 * i, room * value / high
        fill = "#9aa5b1" if "dense" in name else "#2f6f9f"
        rows.append(
            f'<text x="210" y="{y + 12}" text-anchor="end">{name}</text>'
            f'<rect x="220" y="{y}" width="{wide:.1f}" height="16" fill="{fill}"/>'
            f'<text x="{226 + wide:.1f}" y="{y + 12}">{value:.2f}</text>'
        )
    size = f'width="700" height="{60 + 24 * len(values)}"'
    style = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}><text x="10" y="22">{title}</text>'
    return head + "".join(rows) + "</svg>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["resnet32"], choices=[*NETWORKS, []])
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.95, 0.98])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--bf16", action="store_true", help="dense SGD under autocast too: slow on CPUs without bf16")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    print("\n".join(doctor()))
    record: dict[str, Any] = {"cpu": doctor()[0], "torch": torch.__version__, "python": platform.python_version()}
    record |= {"threads": arguments.threads, "clock": arguments.clock, "rounds": arguments.rounds, "networks": {}}
    for network in arguments.networks:
        _, batch, pixels = NETWORKS[network]
        head = f"{network}, batch {batch}, {arguments.threads} thread(s)"
        found: dict[str, Any] = {"batch": batch, "pixels": pixels, "ratio": {}, "milliseconds": {}}
        chart: dict[str, float] = {}
        for level in arguments.sparsity:
            torch.manual_seed(0)
            ratio, took, way = compare(network, level, arguments.rounds, clock, arguments.bf16)
            print(f"\n{head}, {level:.0%} sparse: dense SGD time / time", flush=True)
            for name, value in ratio.items():
                print(f"  {name:22} {value:6.2f}   {took[name]:8.1f} ms", flush=True)
            found["ratio"][f"{level:.0%}"], found["milliseconds"][f"{level:.0%}"] = ratio, took
            found["way"] = way
            chart |= {f"{name} {level:.0%}": value for name, value in ratio.items()}
        record["networks"][network] = found
        if arguments.out is not None:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            picture = bars(f"{head}: speed against a dense SGD step", chart)
            arguments.out.with_name(f"{arguments.out.stem}-{network}.svg").write_text(picture)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
