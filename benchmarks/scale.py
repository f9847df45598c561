"""Bytes that ranks send in a step, counted on 1 to 4 of them, and what that means for 1024, by a model.

    python benchmarks/scale.py [--out results/bytes_between_ranks.json]

Counted: a hook on DistributedDataParallel's buckets gives the bytes of gradients, `Ranks.sent` all else that a rank
hands to an all-reduce or all-gather. Modelled: the time of an all-reduce of n bytes on W ranks, latency a and bandwidth
b, is that of a ring, 2(W-1)a + 2(W-1)/W n/b, or of a tree, 2 log2(W) a + 2n/b, whichever is less.
Gradients travel while backward runs, and only what takes longer than backward is paid; all else is paid in full. A
backward costs two forwards, and BatchNorm is left out. Figures of the model are no measurements.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F
from torch.optim import Optimizer

from zosam.distributed.ddp import parallel
from zosam.distributed.ranks import current
from zosam.lab.models import build
from zosam.lab.record import made_with
from zosam.optim import SAM, ZOSAM, Gaussian, SharpnessAware, Unperturbed
from zosam.sparse import RigL

STEPS = 3
METHODS: dict[str, Callable[[Optimizer], SharpnessAware]] = {
    "SGD": Unperturbed,
    "SAM": SAM,
    "SAM per rank": lambda base: SAM(base, per_rank=True),
    "ZO-SAM": ZOSAM,
    "ZO-SAM m=4": lambda base: ZOSAM(base, probe=Gaussian(4)),
}


@dataclass(frozen=True)
class Network:
    """What connects the ranks: seconds for the first byte, bytes per second."""

    name: str
    latency: float
    bandwidth: float

    def all_reduce(self, size: float, world: int) -> float:
        if world == 1 or not size:
            return 0.0
        ring = 2 * (world - 1) * self.latency + 2 * (world - 1) / world * size / self.bandwidth
        tree = 2 * math.log2(world) * self.latency + 2 * size / self.bandwidth
        return min(ring, tree)


NETWORKS = (Network("200 Gb/s, 5 us", 5e-6, 25e9), Network("10 Gb/s, 30 us", 30e-6, 1.25e9))


@dataclass(frozen=True)
class Training:
    """What is scaled: a network's weights, how many are active, and the seconds of a forward pass on one rank."""

    name: str
    weights: int
    active: int
    forward: float


TRAINING = Training("ResNet-50, 90 % sparse", 25_557_032, 2_600_000, 0.060)


def count(rank: int, world: int, meeting: str, model_name: str, out: str) -> None:
    """On each rank: train a little with every method, and count."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    rows = {name: counted(make, model_name) for name, make in METHODS.items()}
    if rank == 0:
        Path(out).write_text(json.dumps(rows))
    dist.destroy_process_group()


def counted(make: Callable[[Optimizer], SharpnessAware], model_name: str) -> dict[str, float]:
    """Bytes that this rank hands over in a step, by what they are for."""
    torch.manual_seed(0)
    model = build(model_name, 10)
    x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    network = parallel(model, x)
    gradients = 0

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations, and takes no strings
        nonlocal gradients
        gradients += bucket.buffer().numel() * bucket.buffer().element_size()
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    if network is not model:
        network.register_comm_hook(None, hook)  # type: ignore[operator]
    optimizer = make(torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))
    RigL(network, optimizer, 0.9, every=10**9, steps=10**9)
    optimizer.step(closure(network, x, y))  # RigL's first update, which compares masks
    gradients = 0
    current().sent.clear()
    for _ in range(STEPS):
        optimizer.step(closure(network, x, y))
    sent = {why: size / STEPS for why, size in current().sent.items()}
    return {
        "gradient": gradients / STEPS,
        "ascent": sent.pop("ascent", 0.0),
        "loss": sent.pop("loss", 0.0),
        "BatchNorm": sent.pop("statistics", 0.0),
        "weights": sum(p.numel() for p in model.parameters()),
        "active": len(optimizer.active),
        **sent,
    }


def closure(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: F.cross_entropy(network(x), y)


def expected(name: str, weights: float, active: float, world: int) -> dict[str, float]:
    """The same by reckoning: four bytes for each weight's gradient, eight for each number."""
    if world == 1:
        return {"gradient": 0, "ascent": 0, "loss": 0}
    ascent = {"SAM": 4 * active, "ZO-SAM": 8, "ZO-SAM m=4": 32, "ZO-SAM own directions": 8}.get(name, 0)
    return {"gradient": 4 * weights, "ascent": ascent, "loss": 16 if name.startswith("SAM") else 8}


def step_seconds(name: str, what: Training, network: Network, world: int, share: float = 1.0) -> float:
    """The time of a step in the model; `share` is the part of the batch that a rank has, 1 for that of one rank."""
    forward, backward = what.forward * share, 2 * what.forward * share
    probes = {"ZO-SAM": 2, "ZO-SAM m=4": 8, "ZO-SAM own directions": 2}.get(name, 0)
    ascents = 1 if name.startswith("SAM") else 0
    sent = expected(name, what.weights, what.active, world)
    compute = (1 + probes + ascents) * forward + (1 + ascents) * backward
    late = max(0.0, network.all_reduce(sent["gradient"], world) - backward)
    ascent = sent["ascent"] * (world / 2 if name.endswith("own directions") else 1)  # an all-gather moves W - 1 parts
    messages = network.all_reduce(ascent, world) + (1 + ascents) * network.all_reduce(8, world)
    return compute + late + messages


def curve(what: Training, network: Network) -> list[dict[str, Any]]:
    """Speed per rank against one rank alone: with the same batch for each (weak), with one batch shared (strong)."""
    rows = []
    for name in METHODS:
        for world in (2**i for i in range(11)):
            alone, weak = step_seconds(name, what, network, 1), step_seconds(name, what, network, world)
            strong = step_seconds(name, what, network, world, share=1 / world)
            plain = step_seconds("SGD", what, network, world)
            row = {"method": name, "ranks": world, "weak": alone / weak, "strong": alone / (world * strong)}
            rows.append(row | {"speed of SGD": plain / weak})
    return rows


def chart(curves: dict[str, list[dict[str, Any]]], path: Path) -> bool:
    """Both efficiencies on each network as SVG; False without matplotlib."""
    try:
        plot: Any = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return False
    figure, axes = plot.subplots(len(curves), 2, figsize=(10, 7), sharex=True, sharey=True, squeeze=False)
    for row, (title, rows) in zip(axes, curves.items(), strict=True):
        for axis, kind in zip(row, ("weak", "strong"), strict=True):
            for name in METHODS:
                mine = [r for r in rows if r["method"] == name]
                axis.plot([r["ranks"] for r in mine], [r[kind] for r in mine], label=name)
            axis.set_xscale("log", base=2)
            axis.set_title(f"{title}: {'same batch per rank' if kind == 'weak' else 'one batch shared'}", fontsize=9)
    axes[0][0].legend(fontsize=8)
    figure.supxlabel("ranks")
    figure.supylabel("efficiency in the model")
    figure.tight_layout()
    figure.savefig(path)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", default="resnet20")
    arguments = parser.parse_args()
    measured = []
    print(f"Counted: bytes that a rank hands over in a step, {arguments.model}, RigL at 90 %\n")
    print("| ranks | method | gradient | ascent | loss | BatchNorm | as reckoned |\n|---|---|---|---|---|---|---|")
    for world in (1, 2, 3, 4):
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/rows"
            spawn(count, (world, f"{folder}/meeting", arguments.model, out), nprocs=world)
            rows = json.loads(Path(out).read_text())
        for name, row in rows.items():
            right = expected(name, row["weights"], row["active"], world)
            same = all(row[k] == v for k, v in right.items())
            measured.append({"ranks": world, "method": name, **row, "as_reckoned": same})
            figures = " | ".join(f"{row[k]:,.0f}" for k in ("gradient", "ascent", "loss", "BatchNorm"))
            print(f"| {world} | {name} | {figures} | {'yes' if same else 'NO'} |")
    curves = {network.name: curve(TRAINING, network) for network in NETWORKS}
    print(f"\nModelled: {TRAINING.name}, {TRAINING.forward * 1e3:.0f} ms for a forward pass on one rank\n")
    for title, table in curves.items():
        print(f"| {title} | ranks | efficiency, same batch per rank | one batch shared | speed of SGD on as many |")
        print("|---|---|---|---|---|")
        for row in table:
            if row["ranks"] in (1, 8, 64, 1024):
                print(
                    f"| {row['method']} | {row['ranks']} | {row['weak']:.3f} | {row['strong']:.3f}"
                    f" | {row['speed of SGD']:.3f} |"
                )
        print()
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"made_with": made_with(), "model": arguments.model, "measured": measured}
        record |= {"training": vars(TRAINING), "networks": [vars(n) for n in NETWORKS], "modelled": curves}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
        if not chart(curves, arguments.out.with_suffix(".svg")):
            print("no chart: pip install matplotlib")


if __name__ == "__main__":
    main()
