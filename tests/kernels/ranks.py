"""One rank of an accelerated training under DistributedDataParallel: `python ranks.py rank world store out`."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from zosam.kernels import accelerate, choose, report
from zosam.optim import ZOSAM
from zosam.sparse import METHODS, RigL

WAYS = ("sgd", "sgd, accelerated after DDP", "zosam", "zosam, masks that move")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.GELU(), nn.Conv2d(8, 6, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(6), nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 3),
    )  # fmt: skip


def train(way: str, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
    """Five steps on this rank's share of one batch; the weights afterwards."""
    torch.manual_seed(0)
    model = network()
    share = slice(rank * 12 // world, (rank + 1) * 12 // world)
    x, y = torch.randn(12, 2, 8, 8)[share], torch.randint(0, 3, (12,))[share]
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer: Any = ZOSAM(base, rho=0.05) if way.startswith("zosam") else base
    make: Any = RigL if "move" in way else METHODS["random"]
    sparse = make(model, optimizer, 0.5, **({"every": 2, "steps": 100} if make is RigL else {}))
    ddp: nn.Module = model
    if world > 1 and "after" in way:
        ddp = DistributedDataParallel(model)
    accelerate(model, sparse, x)
    assert report(model).count("layers on the kernels") == 2
    if world > 1 and "after" not in way:
        ddp = DistributedDataParallel(model)

    def closure() -> Tensor:
        return F.cross_entropy(ddp(x), y)

    def with_gradient() -> Tensor:
        base.zero_grad()
        loss = closure()
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(with_gradient if optimizer is base else closure)
    return {name: value.clone() for name, value in model.state_dict().items()}


def main() -> None:
    rank, world, store, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    choose.remember = lambda key, measure: 2.0
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.save({way: train(way, rank, world) for way in WAYS}, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
