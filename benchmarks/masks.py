"""How long a mask update of ResNet-50 (23.5 million weights) takes, and what scoring by SNIP costs.

    python benchmarks/masks.py [--threads 2] [--repeats 5]        # prints JSON; seconds, the best of the repeats

`update` is the whole update: choose drops and growth, set masks, weights and optimizer state. `processor_seconds` is
what it took of all cores together: the figure to read on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from chart import machine
from torch import nn
from torch.nn import functional as F

from zosam.lab.models import resnet50_cifar
from zosam.sparse import METHODS

SETTINGS: dict[str, dict[str, Any]] = {"deepr": {"temperature": 0.0}, "mest": {"lam": 0.1}}


def best_of(repeats: int, run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    times = []
    for _ in range(repeats):
        began = clock()
        run()
        times.append(clock() - began)
    return round(min(times), 3)


def updating(method: str, model: nn.Module) -> tuple[Callable[[], None], int]:
    """An update of the masks where gradients and momentum are there, as in training; and of how many weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparse = METHODS[method](model, optimizer, 0.9, every=1, steps=10**6, **SETTINGS.get(method, {}))  # type: ignore[call-arg]
    for p in model.parameters():
        p.grad = torch.randn_like(p) * 1e-3
    optimizer.step()
    for p in model.parameters():
        p.grad = torch.randn_like(p)

    @torch.no_grad()
    def update() -> None:
        masks = sparse.update()
        assert masks is not None
        sparse.commit(masks)
        sparse.steps += 1

    return update, sum(w.numel() for w in sparse.weights.values())


def update_time(method: str, repeats: int) -> dict[str, float]:
    """How long an update takes, by the clock and of all cores together."""
    torch.manual_seed(0)
    update, weights = updating(method, resnet50_cifar())
    return {
        "update": best_of(repeats, update),
        "processor_seconds": best_of(repeats, update, time.process_time),
        "weights": weights,
    }


def snip_cost(repeats: int) -> dict[str, float]:
    """Scoring against one forward and backward of the same batch."""
    torch.manual_seed(0)
    model = resnet50_cifar()
    x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(x), y)

    def once() -> None:
        loss().backward()
        model.zero_grad()

    def score() -> None:
        METHODS["snip"](model, torch.optim.SGD(model.parameters(), lr=0.1), 0.9, loss=loss).release()  # type: ignore[call-arg]

    once()
    return {"snip": best_of(repeats, score), "forward_and_backward": best_of(repeats, once)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name in ("set", "rigl", "mest", "dsr", "snfs", "svite"):
        print(json.dumps({"method": name, **update_time(name, arguments.repeats)}), flush=True)
    print(json.dumps({"method": "snip", **snip_cost(arguments.repeats)}))
    print(json.dumps({**machine(), "threads": arguments.threads}))
