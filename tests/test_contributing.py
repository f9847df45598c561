"""The examples of CONTRIBUTING.md, exactly as printed: they train, and the laws hold for them."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch

from zosam import SharpnessAware
from zosam.optim import OPTIMIZERS
from zosam.sparse import METHODS, Sparsity

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def printed(kind):
    """The classes of that kind that the examples define."""
    found = []
    for block in BLOCKS:
        names: dict[str, object] = {"__name__": "printed"}
        exec(compile(block, "CONTRIBUTING.md", "exec"), names)
        found += [
            v for v in names.values() if isinstance(v, type) and issubclass(v, kind) and v.__module__ == "printed"
        ]
    return found


def test_there_is_one_of_each():
    assert len(BLOCKS) == 2
    assert len(printed(SharpnessAware)) == len(printed(Sparsity)) == 1


@pytest.fixture
def listed(monkeypatch):
    """Both under a name, as if they were in the package."""
    (optimizer,), (method,) = printed(SharpnessAware), printed(Sparsity)
    monkeypatch.setitem(OPTIMIZERS, "printed", optimizer)
    monkeypatch.setitem(METHODS, "printed", method)


def pruned_are_zero(t):
    return all(not bool(w.detach()[~t.sparse.masks[n]].any()) for n, w in t.sparse.weights.items())


def test_the_optimizer_is_what_it_says(listed, trial, same):
    """It is SAM, to the bit; at rho = 0 it is its base."""
    printed_one, ours = trial("printed"), trial("sam")
    for t in (printed_one, ours):
        t.step(5)
    assert same(printed_one.snapshot(), ours.snapshot())
    still, plain = trial("printed", rho=0.0), trial("sgd")
    for t in (still, plain):
        t.step(5)
    assert same(still.snapshot(), plain.snapshot())
    assert printed_one.optimizer.passes == {"forward": 10.0, "backward": 10.0}


def test_the_method_grows_by_the_dense_gradient(listed, trial):
    """Its grown weights are those of the largest dense gradient, which autograd takes on the side."""
    t = trial("sgd", "printed", method_settings={"drop_fraction": 0.5, "budget": "uniform"})
    t.step(2)
    before = {n: m.clone() for n, m in t.sparse.masks.items()}
    gradients: dict[str, torch.Tensor] = {}
    for n, w in t.sparse.weights.items():
        w.register_hook(lambda g, n=n: gradients.__setitem__(n, g.clone()))
    t.step()
    grown = 0
    for n, mask in t.sparse.masks.items():
        new = mask & ~before[n]
        grown += int(new.sum())
        if bool(new.any()):
            assert gradients[n].abs()[new].min() >= gradients[n].abs()[~mask & ~before[n]].max()
    assert grown > 10


@pytest.mark.parametrize("name", ["printed", "zosam"])
@pytest.mark.parametrize("sparse_first", [False, True])
def test_the_laws_hold(listed, trial, same, name, sparse_first):
    t = trial(name, "printed", sparse_first=sparse_first)

    def closure(keep=slice(None)):
        assert pruned_are_zero(t)
        return t.loss(keep)

    for _ in range(4):
        t.optimizer.step(closure)
        assert pruned_are_zero(t)
        assert sum(int(m.sum()) for m in t.sparse.masks.values()) == t.sparse.expected_active()

    straight, resumed = trial(name, "printed"), trial(name, "printed", sparse_first=sparse_first)
    straight.step(3)
    resumed.step(1)
    resumed.model.load_state_dict(straight.model.state_dict())
    resumed.optimizer.load_state_dict(copy.deepcopy(straight.optimizer.state_dict()))
    resumed.stream = straight.stream
    straight.step(3)
    resumed.step(3)
    assert same(straight.snapshot(), resumed.snapshot())
