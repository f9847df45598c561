"""One layer at a time: the sparse kernels against torch's dense convolution and its sparse matrices.

    python benchmarks/kernels.py [--batch 128] [--threads 1] [--out kernels.json]

Forward, input gradient and weight gradient of the layers of the paper's networks at 80, 90, 95 and 98 % sparsity, in
turns with the dense layer (oneDNN, channels_last) in fp32 and, where the CPU has it, in bf16; with torch.sparse for
linear layers, and with `sparseprop` where it is installed. Figures are dense fp32 time / time, from the least time of
each. With --out a bar chart lands beside the JSON.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from chart import bars, has_bf16, machine, write

from zosam.kernels import build, doctor
from zosam.kernels.operations.index import Geometry
from zosam.kernels.operations.timed import DenseLayer, SparseLayer
from zosam.kernels.timing import best

Calls = dict[str, Callable[[], object]]
LAYERS = {  # name: geometry, share of the batch that it runs at
    "16->16 32x32": (Geometry(16, 16, 32, 32, (3, 3), 1, (1, 1)), 1.0),
    "32->32 32x32": (Geometry(32, 32, 32, 32, (3, 3), 1, (1, 1)), 1.0),
    "64->64 16x16": (Geometry(64, 64, 16, 16, (3, 3), 1, (1, 1)), 1.0),
    "128->128 8x8": (Geometry(128, 128, 8, 8, (3, 3), 1, (1, 1)), 1.0),
    "32->64 stride 2": (Geometry(32, 64, 32, 32, (3, 3), 2, (1, 1)), 1.0),
    "32->64 1x1 stride 2": (Geometry(32, 64, 32, 32, (1, 1), 2), 1.0),
    "512->128 1x1 16x16": (Geometry(512, 128, 16, 16), 0.25),
    "160->160 32x32": (Geometry(160, 160, 32, 32, (3, 3), 1, (1, 1)), 0.25),
    "640->640 8x8": (Geometry(640, 640, 8, 8, (3, 3), 1, (1, 1)), 0.25),
    "linear 384->1536": (Geometry(384, 1536, 2, 4), 2.0),
}
SPARSITIES = (0.8, 0.9, 0.95, 0.98)


def contestants(name: str, g: Geometry, images: int, bf16: bool) -> dict[str, Calls]:
    """Everything that can run this layer, by name."""
    lib = build.load()
    if lib is None:
        raise SystemExit("no sparse kernels on this machine: see `zosam doctor`")
    found: dict[str, Calls] = {"dense": DenseLayer(g, images).calls()}
    if bf16:
        half = DenseLayer(g, images)
        half.x, half.y, half.weight = half.x.bfloat16(), half.y.bfloat16(), half.weight.bfloat16()
        found["dense bf16"] = half.calls()
    noise = torch.Generator().manual_seed(0)
    for sparsity in SPARSITIES:
        mask = torch.rand(g.weight, generator=noise) >= sparsity
        found[f"kernels {sparsity:.0%}"] = SparseLayer(lib, g, mask, images).calls()
        if name.startswith("linear"):
            matrix = (torch.randn(mask.shape) * mask).flatten(1).to_sparse_csr()
            rows = torch.randn(g.inputs, images * g.height * g.width)
            found[f"torch.sparse {sparsity:.0%}"] = {"forward": partial(torch.matmul, matrix, rows)}
        found |= {f"{peer} {sparsity:.0%}": calls for peer, calls in sparseprop(name, g, mask, images).items()}
    return found


def sparseprop(name: str, g: Geometry, mask: torch.Tensor, images: int) -> dict[str, Calls]:
    """The peer, if it is installed: IST-DASLab/sparseprop, forward and both gradients, in each of its layouts."""
    try:
        modules: Any = importlib.import_module("sparseprop.modules")
    except ImportError:
        return {}
    x = torch.randn(images, g.inputs, g.height, g.width, requires_grad=True)
    weight = torch.randn(mask.shape) * mask
    if name.startswith("linear"):
        x = torch.randn(images * g.height * g.width, g.inputs, requires_grad=True)
        layers = {"sparseprop": modules.SparseLinear(weight.flatten(1))}
    else:
        make = partial(modules.SparseConv2d, weight, padding=g.pad, stride=g.stride)
        layers = {"sparseprop": make(), "sparseprop over columns": make(vectorizing_over_on=True)}
    return {name: _both(layer, x) for name, layer in layers.items()}


def _both(layer: torch.nn.Module, x: torch.Tensor) -> Calls:
    y = layer(x)
    inputs, gradient = [x, *layer.parameters()], torch.randn_like(y)
    return {
        "forward": lambda: layer(x.detach()),
        "backward": lambda: torch.autograd.grad(y, inputs, gradient, retain_graph=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=list(LAYERS), help="which, by name; all if none is given")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--bf16", action="store_true", default=has_bf16(), help="dense bf16 where it is emulated too")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    print("\n".join(doctor()))
    record = machine() | {name: getattr(arguments, name) for name in ("threads", "clock", "rounds", "batch")}
    record["layers"] = {}
    for name in arguments.layers:
        g, share = LAYERS[name]
        everyone = contestants(name, g, round(arguments.batch * share), arguments.bf16)
        rows: dict[str, dict[str, float]] = {}
        for what in ("forward", "input_gradient", "weight_gradient", "backward"):
            calls = {who: calls[what] for who, calls in everyone.items() if what in calls}
            took = best(calls, arguments.rounds, clock)
            rows[what] = {who: took["dense"] / t for who, t in took.items()}
            rows[what]["dense milliseconds"] = took["dense"] * 1e3
        record["layers"][name] = rows
        print(f"\n{name}: dense {rows['forward']['dense milliseconds']:.1f} ms forward, then dense time / time")
        for what, row in rows.items():
            families = dict.fromkeys(who.rpartition(" ")[0] for who in row if who.endswith("%"))
            cells = {f: " / ".join(f"{row[f'{f} {s:.0%}']:.1f}" for s in SPARSITIES) for f in families}
            cells |= {"dense bf16": f"{row['dense bf16']:.1f}"} if "dense bf16" in row else {}
            print(f"  {what:16}" + "   ".join(f"{who} {cell}" for who, cell in cells.items()))
    if arguments.out is not None:
        forward = {name: rows["forward"] for name, rows in record["layers"].items()}
        at_95 = {name: {who: row[who] for who in row if who.endswith("95%")} for name, row in forward.items()}
        note = f"batch {arguments.batch}, {record['cpu']}, {record['kernels']}, torch {record['torch']}"
        title = "The forward pass of a layer at 95 %, times as fast as dense"
        write(arguments.out, record, {"": bars(title, note, at_95)})


if __name__ == "__main__":
    main()
