"""A small training on the ranks that torchrun has started: `two_ranks.py lightning|accelerate OPTIMIZER FILE`."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from zosam.names import fitting
from zosam.optim import OPTIMIZERS
from zosam.sparse import RigL

X, Y = torch.randn(80, 6, generator=torch.Generator().manual_seed(1)), torch.arange(80) % 3


def make(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))
    cls = OPTIMIZERS[name]
    optimizer = cls(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **fitting(cls, rho=0.2))
    return model, optimizer, RigL(model, optimizer, 0.7, every=2, steps=60)


def ends_with(model, sparse):
    return {**model.state_dict(), **{f"mask of {n}": m for n, m in sparse.masks.items()}}


def by_hand(name):
    """Windows of two, two and one micro-batch, twice, in one process."""
    model, optimizer, sparse = make(name)
    for i in [0, 32, 64] * 2:
        optimizer.zero_grad()
        optimizer.ascend(lambda i=i: F.cross_entropy(model(X[i : i + 16]), Y[i : i + 16]), stay=False)
        for j in (i, i + 16)[: 1 + (i < 64)]:
            with optimizer.perturbed():
                (F.cross_entropy(model(X[j : j + 16]), Y[j : j + 16]) / 2).backward()
        optimizer.step()
    return ends_with(model, sparse)


def by_accelerate(name):
    from accelerate import Accelerator

    from zosam.integrations.hf_accelerate import accumulate

    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    net, optimizer, sparse = make(name)
    model, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(TensorDataset(X, Y), batch_size=8))
    assert accelerator.num_processes == 2
    for _ in range(2):
        for x, y in loader:

            def closure(x=x, y=y):
                return F.cross_entropy(model(x), y)

            with accumulate(accelerator, model, optimizer, closure):
                accelerator.backward(closure())
                optimizer.step()
                optimizer.zero_grad()
    return ends_with(net, sparse)


def by_lightning(name):
    import lightning as L

    from zosam.integrations.lightning import Ascend

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.optimizer, self.sparse = make(name)

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return self.optimizer

        def train_dataloader(self):  # Lightning's own sampler would shuffle
            data = TensorDataset(X, Y)
            return DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))

    module = Module()
    trainer = L.Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        callbacks=[Ascend()],
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module)
    assert trainer.world_size == 2
    return ends_with(module.net, module.sparse)


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, trainer, name, file = sys.argv
    found = {"accelerate": by_accelerate, "lightning": by_lightning}[trainer](name)
    torch.save(found, f"{file}.{torch.distributed.get_rank()}")
