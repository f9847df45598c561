"""The training loop: data in order, schedule by step, rewinding, evaluation."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.lab.data import Tensors
from zosam.lab.train import evaluate, fit
from zosam.optim import ZOSAM, Unperturbed


def setting(n=10, batch_size=4):
    torch.manual_seed(0)
    x, y = torch.randn(n, 3), torch.arange(n) % 2
    return nn.Linear(3, 2), Tensors(x, y, batch_size, shuffle=True, seed=3), Tensors(x, y, n)


def test_it_is_plain_training():
    model, train, test = setting()
    twin = nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    optimizer = Unperturbed(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))
    base = torch.optim.SGD(twin.parameters(), lr=0.5, momentum=0.9)
    records = list(fit(model, optimizer, train, test, steps=6, schedule=lambda epoch: 0.5 * (1 - epoch / 2)))
    for t in range(6):
        if t % 3 == 0:
            batches = list(train.epoch(t // 3))
        x, y = batches[t % 3]
        base.param_groups[0]["lr"] = 0.5 * (1 - t / 3 / 2)  # three steps are an epoch
        base.zero_grad()
        F.cross_entropy(twin(x), y).backward()
        base.step()
    assert torch.equal(model.weight, twin.weight)
    assert [r["epoch"] for r in records] == [1, 2]
    assert records[-1]["step"] == 6
    assert records[-1]["lr"] == pytest.approx(0.5 / 6)
    assert records[-1]["forward"] == 6


def test_waiting_is_time_but_no_computing():
    model, train, test = setting()
    optimizer = Unperturbed(torch.optim.SGD(model.parameters(), lr=0.1))
    original = optimizer.step
    optimizer.step = lambda closure: (time.sleep(0.1), original(closure))[1]
    last = list(fit(model, optimizer, train, test, steps=3))[-1]
    assert last["seconds"] > 0.3
    assert last["cpu_seconds"] < last["seconds"] - 0.2


def test_a_place_that_jumps_back_replays_schedule_and_data():
    seen, places = [], [0, 1, 2, 3, 4, 1, 2]
    model, train, test = setting()
    optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.1))
    original = optimizer.step

    def step(closure):
        names = dict(zip(closure.__code__.co_freevars, closure.__closure__, strict=True))
        seen.append((names["x"].cell_contents, optimizer.param_groups[0]["lr"]))
        return original(closure)

    optimizer.step = step
    list(
        fit(
            model,
            optimizer,
            train,
            test,
            steps=7,
            schedule=lambda epoch: 0.1 * (3 * epoch + 1),
            place=lambda s: places[s],
        )
    )
    batches = [*train.epoch(0), *train.epoch(1)]
    for (x, lr), place in zip(seen, places, strict=True):
        assert lr == pytest.approx(0.1 * (place + 1))
        assert torch.equal(x, batches[place][0])


def test_evaluate_is_exact_over_uneven_batches_and_keeps_the_mode():
    model, _, test = setting(n=10)
    uneven = Tensors(test.x, test.y, batch_size=3)
    model.train()
    whole, parts = evaluate(model, test), evaluate(model, uneven)
    assert whole["test_accuracy"] == parts["test_accuracy"]
    assert whole["test_loss"] == pytest.approx(parts["test_loss"], rel=1e-6)
    assert model.training
