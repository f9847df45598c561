"""How far a reader walks to follow one step: files, calls and changes of file, as JSON.

    python benchmarks/walk.py [--network digits_net] [--files]

One step of ZO-SAM with RigL's masks on the sparse kernels, after a few to warm up and between two updates of the masks.
Counted are calls of functions that stand in this package, and how often one of them is in another file than the one
before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import zosam
from zosam.kernels import accelerate
from zosam.lab import models
from zosam.optim import ZOSAM
from zosam.sparse import RigL

PACKAGE = str(Path(zosam.__file__).parent)
WARM_UP = 3


def walk(network: str) -> list[str]:
    """The files of the functions that one step calls, call by call."""
    torch.manual_seed(0)
    model = getattr(models, network)()
    small = network == "digits_net"
    x = torch.randn(16, 1, 8, 8) if small else torch.randn(16, 3, 32, 32)
    y = torch.randint(0, 10, (16,))
    optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), rho=0.05)
    sparse = RigL(model, optimizer, sparsity=0.9, every=1000, steps=1000)
    accelerate(model, sparse, x)

    def closure() -> Tensor:
        return F.cross_entropy(model(x), y)

    for _ in range(WARM_UP):
        optimizer.step(closure)
    calls: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls.append(frame.f_code.co_filename[len(PACKAGE) + 1 :])

    sys.setprofile(note)
    try:
        optimizer.step(closure)
    finally:
        sys.setprofile(None)
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="digits_net")
    parser.add_argument("--files", action="store_true", help="calls by file as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    calls = walk(arguments.network)
    changes = sum(a != b for a, b in pairwise(calls))
    found: dict[str, Any] = {"files": len(set(calls)), "calls": len(calls), "changes": changes}
    if arguments.files:
        found["by file"] = dict(Counter(calls).most_common())
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
