"""Every sparse method at 90 % on the digits under ZO-SAM, 15 epochs: a sanity check that each of them learns.

    python benchmarks/digits_methods.py [method ...]        # prints one JSON line per method

SGD 0.1 with momentum 0.9, weight decay 5e-4, batch 64, cosine; rho 0.05. `test_accuracy` is that of the last epoch.
LTH trains its whole schedule once per level, so its epochs are per level.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch import nn

from zosam.lab.data import digits
from zosam.lab.lr_schedules import Cosine
from zosam.lab.models import digits_net
from zosam.lab.train import classification, fit
from zosam.names import settings_of
from zosam.optim import OPTIMIZERS
from zosam.sparse import METHODS
from zosam.sparse.ever_active import Exploration

EPOCHS, SPARSITY, LR = 15, 0.9, 0.1
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in METHODS}
VARIANTS["mest, soft"] = ("mest", {"soft": True})
VARIANTS["mest, lam=0.1"] = ("mest", {"lam": 0.1})


def train(name: str, settings: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    data, model = digits(batch_size=64, seed=seed), digits_net()
    base = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
    optimizer = OPTIMIZERS["zosam"](base, rho=0.05, seed=seed)
    cls, steps = METHODS[name], EPOCHS * len(data.train)
    x, y = next(iter(data.train.epoch(0)))
    offered: dict[str, Any] = {
        "loss": classification(model, x, y),
        "every": 1 if name == "deepr" else len(data.train),
        "steps": steps,
    }
    sparse = cls(model, optimizer, SPARSITY, **{k: v for k, v in offered.items() if k in settings_of(cls)} | settings)
    explored, began = Exploration(sparse), time.perf_counter()
    *_, last = fit(
        model,
        optimizer,
        data.train,
        data.test,
        sparse.total_steps(steps),
        schedule=Cosine(lr=LR, epochs=EPOCHS),
        place=sparse.schedule_step,
    )
    return {
        "test_accuracy": round(last["test_accuracy"], 4),
        "sparsity": round(sparse.sparsity, 4),
        "explored": round(explored.rate, 3),
        "empty_layers": sum(not bool(m.any()) for m in sparse.masks.values()),
        "epochs": round(sparse.total_steps(steps) / len(data.train)),
        "seconds": round(time.perf_counter() - began, 1),
        "pruned_are_zero": _pruned_are_zero(sparse.weights, sparse.masks),
    }


def _pruned_are_zero(weights: dict[str, nn.Parameter], masks: dict[str, torch.Tensor]) -> bool:
    return all(not bool(w.detach()[~masks[n]].any()) for n, w in weights.items())


if __name__ == "__main__":
    for title in sys.argv[1:] or VARIANTS:
        print(json.dumps({"method": title, **train(*VARIANTS[title])}), flush=True)
