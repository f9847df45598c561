"""One small training, to be run by every trainer and by a loop by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from zosam.names import fitting
from zosam.optim import OPTIMIZERS
from zosam.sparse import RigL

SIZE, BATCH = 72, 16  # five batches: windows of two, two and one, the last batch being half as large


@dataclass(frozen=True)
class Training:
    """What is trained, and how: `name` is the optimizer's, or "bare" for torch's own."""

    name: str
    accumulate: int = 1
    clip: float | None = None
    epochs: int = 2

    def net(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))

    def optimizer(self, model: nn.Module) -> Any:
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return base if self.name == "bare" else OPTIMIZERS[self.name](base, **fitting(OPTIMIZERS[self.name], rho=0.2))

    def sparse(self, model: nn.Module, optimizer: Any) -> RigL:
        return RigL(model, optimizer, 0.7, every=3, steps=60)

    @property
    def loader(self) -> DataLoader:
        x = torch.randn(SIZE, 6, generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(x, torch.arange(SIZE) % 3), batch_size=BATCH)

    def by_hand(self, divide_by_length: bool = False, model: nn.Module | None = None) -> dict[str, torch.Tensor]:
        """A plain loop over windows, and what it ends with.

        Lightning and accelerate divide the loss by the number of micro-batches that they were told, also in a window
        that is shorter; transformers (`divide_by_length`) by those that there are.
        """
        model = self.net() if model is None else model
        net, optimizer = getattr(model, "net", model), self.optimizer(model)
        sparse = self.sparse(model, optimizer)
        for _ in range(self.epochs):
            batches = list(self.loader)
            for i in range(0, len(batches), self.accumulate):
                window = batches[i : i + self.accumulate]
                n = len(window) if divide_by_length else self.accumulate
                if self.name != "bare":
                    x, y = window[0]
                    optimizer.ascend(lambda x=x, y=y: F.cross_entropy(net(x), y), stay=False)
                optimizer.zero_grad()
                for x, y in window:
                    if self.name == "bare":
                        (F.cross_entropy(net(x), y) / n).backward()
                    else:
                        with optimizer.perturbed():
                            (F.cross_entropy(net(x), y) / n).backward()
                if self.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
        return self.ends_with(model, sparse)

    def sam_in_plain_torch(self) -> dict[str, torch.Tensor]:
        """SAM over windows as a page of torch, with nothing of ours but the masks."""
        model = self.net()
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        sparse, params = self.sparse(model, base), list(model.parameters())
        masks = {id(sparse.weights[n]): m for n, m in sparse.masks.items()}
        for _ in range(self.epochs):
            batches = list(self.loader)
            for i in range(0, len(batches), self.accumulate):
                window = batches[i : i + self.accumulate]
                buffers = [b.clone() for b in model.buffers()]
                grads = torch.autograd.grad(F.cross_entropy(model(window[0][0]), window[0][1]), params)
                for b, before in zip(model.buffers(), buffers, strict=True):
                    b.copy_(before)
                grads = [g * masks.get(id(p), 1) for p, g in zip(params, grads, strict=True)]
                length = torch.stack([g.norm() for g in grads]).norm()
                home = [p.detach().clone() for p in params]
                with torch.no_grad():
                    for p, g in zip(params, grads, strict=True):
                        p += 0.2 / length * g
                base.zero_grad()
                for x, y in window:
                    (F.cross_entropy(model(x), y) / self.accumulate).backward()
                with torch.no_grad():
                    for p, h in zip(params, home, strict=True):
                        p.copy_(h)
                if self.clip:
                    nn.utils.clip_grad_norm_(params, self.clip)
                base.step()
        return self.ends_with(model, sparse)

    @staticmethod
    def ends_with(model: nn.Module, sparse: RigL) -> dict[str, torch.Tensor]:
        """All that a training has made: weights, statistics, masks and momentum."""
        state = {n.removeprefix("net."): t.detach().clone() for n, t in model.state_dict().items()}
        state |= {f"mask of {n.removeprefix('net.')}": m.clone() for n, m in sparse.masks.items()}
        momentum = {
            f"momentum of {n.removeprefix('net.')}": sparse.optimizer.state[p]["momentum_buffer"].clone()
            for n, p in model.named_parameters()
        }
        return state | momentum


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    differ = {n: int((a[n] != b[n]).sum()) for n in a if not torch.equal(a[n], b[n])}
    assert not differ, f"numbers that differ: {differ}"


@pytest.fixture(name="Training")
def _training() -> type[Training]:
    return Training


@pytest.fixture(name="same")
def _same() -> Any:
    return same
