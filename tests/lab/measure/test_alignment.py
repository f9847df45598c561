"""The cosine of an ascent with the true gradient: exact cases, the law of random directions, and no traces."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from zosam.lab.measure.alignment import alignment
from zosam.names import fitting
from zosam.optim import S2SAM, SAM, ZOSAM, Coordinates, Gaussian, LastGradient, LookSAM, Subspace, Unperturbed

K = 200


def linear(make, seed=0):
    """k active weights and a loss that is linear in them, so differences are exact."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Linear(K, 1, bias=False).double()
        slope = torch.randn(K, dtype=torch.float64)
    optimizer = make(torch.optim.SGD(model.parameters(), lr=0.1), **fitting(make, seed=seed))
    return optimizer, lambda: model(slope).sum()


def test_sam_climbs_along_its_batch_gradient(trial):
    trial = trial("sam", "rigl")
    assert alignment(trial.optimizer, trial.closure)["batch"] == pytest.approx(1.0, abs=1e-6)


def test_the_reference_is_another_gradient():
    model = nn.Linear(2, 1, bias=False).double()
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    batch, whole = torch.tensor([1.0, 0.0]).double(), torch.tensor([3.0, 4.0]).double()
    found = alignment(optimizer, lambda: model(batch).sum(), lambda: model(whole).sum())
    assert found == pytest.approx({"batch": 1.0, "reference": 0.6})

    def in_parts():
        optimizer.zero_grad()
        for part in (torch.tensor([3.0, 0.0]).double(), torch.tensor([0.0, 4.0]).double()):
            loss = model(part).sum()
            loss.backward()
        return loss

    assert alignment(optimizer, in_parts)["batch"] == pytest.approx(1.0)
    assert alignment(optimizer, lambda: model(batch).sum(), in_parts)["reference"] == pytest.approx(0.6)


@pytest.mark.parametrize("m", [1, 4, 16])
def test_zero_order_estimates_follow_the_law_of_random_directions(m):
    found = []
    for seed in range(200 if m == 1 else 40):
        optimizer, closure = linear(lambda base, seed: ZOSAM(base, probe=Gaussian(m), seed=seed), seed)
        found.append(alignment(optimizer, closure)["batch"])
    assert min(found) > 0  # up, always: the loss is linear
    law = math.sqrt(2 / (math.pi * K)) if m == 1 else math.sqrt(m / (K + m + 1))
    assert sum(found) / len(found) == pytest.approx(law, rel=0.15)


def test_coordinatewise_estimates_are_exact():
    optimizer, closure = linear(lambda base, seed: ZOSAM(base, probe=Coordinates()))
    assert alignment(optimizer, closure)["batch"] == pytest.approx(1.0, abs=1e-6)


def test_steps_that_do_not_climb(trial):
    assert alignment(*linear(Unperturbed)) == {}
    assert alignment(*linear(S2SAM)) == {}  # no gradient to remember yet
    looking, closure = linear(LookSAM)
    assert alignment(looking, closure)["batch"] == pytest.approx(1.0)
    looking.step(closure)
    assert alignment(looking, closure) == {}


def test_what_is_remembered_counts():
    remembering, closure = linear(S2SAM)
    remembering.step(closure)
    assert alignment(remembering, closure)["batch"] == pytest.approx(1.0)  # a linear loss has one gradient
    assert alignment(remembering, lambda: -closure())["batch"] == pytest.approx(-1.0)


def test_it_leaves_no_trace(trial, same, optimizer_name):
    free, measured = (trial(optimizer_name, "rigl") for _ in range(2))
    for t in (free, measured):
        t.optimizer.diagnostics = {}
    for _ in range(4):
        torch.set_rng_state(measured.stream)
        grads = [p.grad for p in measured.model.parameters()]
        alignment(measured.optimizer, measured.closure, measured.loss)
        assert torch.equal(torch.get_rng_state(), measured.stream)
        assert all(p.grad is g for p, g in zip(measured.model.parameters(), grads, strict=True))
        assert same(free.snapshot(), measured.snapshot())
        assert free.optimizer.passes == measured.optimizer.passes
        assert free.optimizer.diagnostics == measured.optimizer.diagnostics
        for t in (free, measured):
            t.step()
    assert same(free.snapshot(), measured.snapshot())


@pytest.mark.parametrize("settings", [{"every": 3}, {"probe": Subspace()}, {"probe": LastGradient()}])
def test_memory_is_left_alone(trial, same, settings):
    free, measured = (trial("zosam", "rigl", settings=settings) for _ in range(2))
    for _ in range(5):
        alignment(measured.optimizer, measured.closure)
        for t in (free, measured):
            t.step()
        kept, other = (t.optimizer._memory.state(t.optimizer.active) for t in (free, measured))
        assert kept.keys() == other.keys()
        assert all(same(kept[k], other[k]) for k in kept)
    assert same(free.snapshot(), measured.snapshot())


def test_a_failing_closure_leaves_no_trace(trial, same):
    trial = trial("zosam")
    before, calls = trial.snapshot(), []

    def closure():
        calls.append(1)
        if len(calls) == 2:
            raise KeyError
        return trial.loss()

    with pytest.raises(KeyError):
        alignment(trial.optimizer, closure)
    assert same(before, trial.snapshot())
    assert trial.optimizer.passes == {"forward": 0.0, "backward": 0.0}
    assert not trial.optimizer.is_displaced


def test_not_in_the_middle_of_a_step(trial):
    trial = trial("sam")
    trial.optimizer.ascend(trial.closure)
    with pytest.raises(RuntimeError, match="under way"):
        alignment(trial.optimizer, trial.closure)
    assert trial.optimizer.ascended
