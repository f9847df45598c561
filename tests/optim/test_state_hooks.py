"""State that rides in the base optimizer's state_dict: every way to save and load it, every copy, every refusal."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.nn import functional as F

from zosam.optim import OPTIMIZERS, SAM, ZOSAM, LookSAM
from zosam.optim.masked import mask_of
from zosam.sparse import GMP, SET, RigL, TopKAST

BASES = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
}


def make(base="adamw", wrapper=ZOSAM, method=SET, sparsity=0.8, first="method", **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
    inner = BASES[base](model.parameters())
    settings = {"every": 2, "steps": 100, **settings}
    if first == "method":
        sparse = method(model, inner, sparsity, **settings)
        return model, wrapper(inner), sparse
    optimizer = wrapper(inner)
    return model, optimizer, method(model, optimizer, sparsity, **settings)


def train(model, optimizer, first, last):
    for i in range(first, last):
        stream = torch.Generator().manual_seed(i)
        x, y = torch.randn(16, 20, generator=stream), torch.randint(5, (16,), generator=stream)
        optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))


def through_bytes(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("saves", ["wrapper", "base"])
@pytest.mark.parametrize("loads", ["wrapper", "base"])
@pytest.mark.parametrize("weights", ["first", "last"])
def test_model_and_optimizer_are_all_that_a_checkpoint_needs(base, saves, loads, weights):
    straight, optimizer, _ = make(base)
    train(straight, optimizer, 0, 5)
    saved = through_bytes([straight.state_dict(), (optimizer if saves == "wrapper" else optimizer.base).state_dict()])
    train(straight, optimizer, 5, 10)

    model, optimizer, sparse = make(base, first="wrapper")
    train(model, optimizer, 50, 53)  # other masks and momentum, all to be replaced
    if weights == "first":
        model.load_state_dict(saved[0])
    (optimizer if loads == "wrapper" else optimizer.base).load_state_dict(saved[1])
    if weights == "last":
        model.load_state_dict(saved[0])
    train(model, optimizer, 5, 10)
    assert equal(model, straight)
    assert (optimizer.steps, sparse.steps) == (10, 10)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("cls", [SET, RigL, TopKAST, GMP], ids=lambda m: m.__name__)
@pytest.mark.parametrize("outer", [True, False])
def test_distributed_checkpoints_keep_all_of_it(base, cls, outer):
    straight, optimizer, sparse = make(base, method=cls)
    weights = [p.clone() for p in straight.parameters()]
    get_state_dict(straight, optimizer if outer else optimizer.base)  # torch steps once to make the base's state
    assert (optimizer.steps, sparse.steps) == (0, 0)
    assert all(torch.equal(a, b) for a, b in zip(weights, straight.parameters(), strict=True))
    train(straight, optimizer, 0, 5)
    saved = copy.deepcopy(get_state_dict(straight, optimizer if outer else optimizer.base))
    train(straight, optimizer, 5, 10)

    model, optimizer, sparse = make(base, method=cls)
    set_state_dict(model, optimizer if outer else optimizer.base, model_state_dict=saved[0], optim_state_dict=saved[1])
    train(model, optimizer, 5, 10)
    assert equal(model, straight)
    assert (optimizer.steps, sparse.steps) == (10, 10)


def test_masks_that_come_back_unchanged_do_not_touch_the_weights():
    """Some trainers load weights, then send the fresh optimizer's state through load_state_dict, then load it."""
    model, optimizer, _ = make()
    trained = {n: torch.ones_like(t) for n, t in model.state_dict().items()}
    model.load_state_dict(trained)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(torch.equal(t, trained[n]) for n, t in model.state_dict().items())


def test_the_optimizer_does_not_see_what_rides():
    _, optimizer, _ = make()
    optimizer.load_state_dict(optimizer.state_dict())
    assert not optimizer.base.state
    assert optimizer.state_dict()["state"][0].keys() == {"sparsity", "sharpness_aware"}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
@pytest.mark.parametrize("first", ["method", "wrapper"])
def test_copies_go_their_own_way(copied, first):
    model, optimizer, sparse = make(first=first)
    train(model, optimizer, 0, 3)
    other, twin, masks = copied((model, optimizer, sparse))
    assert masks.sharpness is twin
    assert mask_of(other[0].weight) is masks.masks["0.weight"] is not sparse.masks["0.weight"]
    train(model, optimizer, 3, 8)
    before = twin.state_dict()
    train(other, twin, 3, 8)
    assert equal(model, other)
    assert before["state"][0]["sharpness_aware"]["steps"] == 3
    twin.load_state_dict(optimizer.state_dict())


def test_a_copy_does_not_step_the_original():
    model, optimizer, sparse = make()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    other, twin, _masks = copy.deepcopy((model, optimizer, sparse))
    before = [p.clone() for p in model.parameters()]
    train(other, twin, 0, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not equal(model, other)
    assert twin.steps == 2


def state(**made):
    model, optimizer, _ = make(**made)
    train(model, optimizer, 0, 3)
    return optimizer.state_dict()


def bare():
    model = make()[0]
    return torch.optim.AdamW(model.parameters()).state_dict()


def other_network():
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    optimizer = ZOSAM(torch.optim.AdamW(model.parameters()))
    SET(model, optimizer, 0.8, steps=1000)
    return optimizer.state_dict()


def renamed(saved):
    """As torch's distributed checkpoints make of a `state_dict` that did not come through `get_state_dict`."""
    return {**saved, "state": {str(k): v for k, v in saved["state"].items()}}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda: state(sparsity=0.5), "sparsity 0.5, not 0.8"),
        (lambda: state(method=RigL), "not the state of SET but of RigL"),
        (lambda: state(wrapper=SAM), "state of SAM, not of ZOSAM"),
        (bare, "before"),
        (other_network, "another model"),
        (lambda: state(budget="uniform"), "budget='uniform', not 'erk'"),
        (lambda: state(pattern="block:4"), "pattern='block:4', not None"),
        (lambda: state(over="masked", dense="first"), "belong to another model or setting"),
        (lambda: renamed(state()), "speaks of '0', which is none of the optimizer's parameters"),
    ],
)
def test_the_state_of_something_else_is_refused_and_nothing_changes(what, message):
    model, optimizer, _ = make()
    train(model, optimizer, 0, 4)
    before, weights = copy.deepcopy(optimizer.state_dict()), [p.clone() for p in model.parameters()]
    for loads in (optimizer, optimizer.base):
        with pytest.raises(ValueError, match=message):
            loads.load_state_dict(what())
    train(model, optimizer, 4, 6)
    twin, again, _ = make()
    twin.load_state_dict(dict(zip(twin.state_dict(), weights, strict=True)))
    again.load_state_dict(before)
    train(twin, again, 4, 6)
    assert equal(model, twin)


def test_a_schedule_that_goes_on_otherwise_is_said_once():
    _, optimizer, sparse = make(steps=200, seed=1)
    with pytest.warns(
        UserWarning, match="SET goes on with other settings: it had steps=100, not 200; seed=0, not 1"
    ) as said:
        optimizer.load_state_dict(state())
    assert len(said) == 1
    assert sparse.steps == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()[1].load_state_dict(state(budget="erk", until=1.0))  # what it prefers, spelled out


def test_masks_that_nobody_takes_are_refused():
    _, optimizer, sparse = make()
    saved = optimizer.state_dict()
    sparse.release()
    with pytest.raises(ValueError, match="sparsity state that nothing here takes"):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("made", [lambda m, o: SAM(o), lambda m, o: SET(m, o, 0.8, every=2, steps=100)])
def test_a_state_that_was_loaded_before_its_takers_were_made_is_refused(made):
    """Their masks and steps would be fresh ones, and trained weights would be multiplied by zero."""
    model, optimizer, sparse = make()
    train(model, optimizer, 0, 3)
    saved = optimizer.state_dict()
    sparse.release()
    plain = BASES["adamw"](model.parameters())
    plain.load_state_dict(saved)
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"holds sparsity and sharpness_aware state.*make them first, then load"):
        made(model, plain)
    assert all(torch.equal(t, weights[n]) for n, t in model.state_dict().items())
    for state in plain.state.values():  # the way out for who wants none of it
        for key in ("sparsity", "sharpness_aware"):
            state.pop(key, None)
    made(model, plain)


def test_a_flat_state_is_refused_by_torch():
    model, optimizer, _ = make()
    with pytest.raises(NotImplementedError, match="Flattening"):
        get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))


def test_two_wrappers_of_one_base():
    _, optimizer, _ = make()
    newer = LookSAM(optimizer.base)
    with pytest.raises(ValueError, match="wrapped around AdamW since"):
        optimizer.state_dict()
    assert newer.state_dict()["state"][0]["sharpness_aware"]["method"] == "LookSAM"


def test_two_methods_on_the_same_weights_are_refused_on_any_optimizer():
    model, optimizer, sparse = make()
    for another in (optimizer, optimizer.base, torch.optim.SGD(model.parameters(), 0.1)):
        with pytest.raises(ValueError, match=r"keeps 0\.weight sparse already, and 1 more: release"):
            SET(model, another, steps=1000)
    sparse.release()
    SET(model, optimizer, steps=1000)


def test_two_methods_on_different_weights_both_travel():
    def both():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
        optimizer = ZOSAM(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        return (
            model,
            optimizer,
            SET(model, optimizer, include="0", every=2, steps=1000),
            RigL(model, optimizer, 0.5, include="2", every=3, steps=1000),
        )

    model, optimizer, *_ = both()
    train(model, optimizer, 0, 5)
    saved = through_bytes([model.state_dict(), optimizer.state_dict()])
    train(model, optimizer, 5, 9)
    other, twin, *_ = both()
    other.load_state_dict(saved[0])
    twin.load_state_dict(saved[1])
    train(other, twin, 5, 9)
    assert equal(model, other)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_the_state_names_the_method(name):
    optimizer = OPTIMIZERS[name](torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1, momentum=0.9))
    assert optimizer.state_dict()["state"][0]["sharpness_aware"]["method"] == optimizer.method()
