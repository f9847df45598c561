"""At home in other people's loops: Lightning, accelerate and transformers, with the real packages."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from zosam import SAM, ZOSAM, LookSAM, RigL
from zosam.optim import OPTIMIZERS

X, Y = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3
PURE = sorted(n for n in OPTIMIZERS if n != "esam")  # ESAM's closure must know the samples; a trainer's cannot


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def by_hand(make, epochs=2, model=None):
    """The same training in a plain loop."""
    model = net() if model is None else model
    optimizer = make(sgd(model))
    sparse = RigL(model, optimizer, 0.7, every=3)
    for _ in range(epochs):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=16):
            optimizer.step(lambda x=x, y=y: F.cross_entropy(getattr(model, "net", model)(x), y))
    return model, sparse


def assert_same(a, b):
    for (name, s), t in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(s, t, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("name", PURE)
def test_lightning_automatic_optimization(name):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.calls = net(), 0

        def training_step(self, batch, index):
            self.calls += 1
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer = OPTIMIZERS[name](sgd(self.net))
            self.sparse = RigL(self.net, optimizer, 0.7, every=3)
            self.made = optimizer
            return optimizer

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(TensorDataset(X, Y), batch_size=16))
    expected, sparse = by_hand(OPTIMIZERS[name])
    assert_same(module.net, expected)
    assert module.calls == pytest.approx(module.made.passes["forward"])
    assert module.sparse.sparsity == sparse.sparsity


@pytest.mark.parametrize("name", PURE)
def test_accelerate(name):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = net()
    optimizer = OPTIMIZERS[name](sgd(model))
    RigL(model, optimizer, 0.7, every=3)
    model, wrapped, loader = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(X, Y), batch_size=16))
    for _ in range(2):
        for x, y in loader:

            def closure(x=x, y=y):
                wrapped.zero_grad()
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                return loss

            wrapped.step(closure)
    assert_same(accelerator.unwrap_model(model), by_hand(OPTIMIZERS[name])[0])


class Classifier(nn.Module):
    """What transformers' Trainer wants: a model that returns its loss."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(Y)

    def __getitem__(self, i):
        return {"x": X[i], "labels": Y[i]}


@pytest.mark.parametrize("make", [SAM, ZOSAM, LookSAM], ids=lambda c: c.__name__)
def test_transformers_trainer(make, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from zosam.integrations.transformers import AscendMixin

    class Trainer(AscendMixin, transformers.Trainer):
        def _get_train_sampler(self, *_):
            return None  # in order, as the loop by hand

    model = Classifier()
    optimizer = make(sgd(model))
    RigL(model, optimizer, 0.7, every=3)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        num_train_epochs=2,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        max_grad_norm=0.0,
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=Rows(), optimizers=(optimizer, None)).train()
    assert not optimizer.ascended
    expected = by_hand(make, model=Classifier())[0]
    for (name, s), t in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(s, t, msg=lambda m, name=name: f"{name}: {m}")


def test_accelerated_state_round_trip():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = net()
    wrapped = accelerator.prepare(LookSAM(sgd(model)))
    wrapped.step(lambda: F.cross_entropy(model(X), Y))
    state = copy.deepcopy(wrapped.state_dict())
    wrapped.load_state_dict(state)
    assert wrapped.optimizer.steps == 1
