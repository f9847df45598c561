"""How masks are kept: what happens to weights that somebody else writes, to gradients, to compiled models."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional as F

from zosam.optim import SAM, ZOSAM
from zosam.sparse import LTH, METHODS, SET, DeepR, Magnitude, RigL, SViTE, TopKAST
from zosam.sparse.dynamic import Dynamic

X, Y = torch.randn(16, 20, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 5


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))


def loss(model):
    return F.cross_entropy(model(X), Y)


def bare_step(model, optimizer):
    optimizer.zero_grad()
    loss(model).backward()
    optimizer.step()


def two_phases(model, optimizer):
    optimizer.ascend(lambda: loss(model))
    loss(model).backward()
    optimizer.step()


def by_closure(model, optimizer):
    optimizer.step(lambda: loss(model))


WAYS = {"bare": (lambda base: base, bare_step), "closure": (ZOSAM, by_closure), "phases": (SAM, two_phases)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sparse_first", [True, False])
def test_a_dense_checkpoint_that_is_loaded_later_is_noticed(way, sparse_first):
    wrap, step = WAYS[way]
    model, dense = net(), copy.deepcopy(net().state_dict())
    base = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if sparse_first:
        sparse = SET(model, base, 0.8, steps=1000)
        optimizer = wrap(base)
    else:
        optimizer = wrap(base)
        sparse = SET(model, optimizer, 0.8, steps=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is wrong so far
        for _ in range(3):
            step(model, optimizer)
        model.load_state_dict(model.state_dict())  # nor now: the weights agree with their masks
        step(model, optimizer)
    model.load_state_dict(dense)
    with pytest.warns(UserWarning, match=r"SET: [\d,]+ pruned weights of 0\.weight and 1 more are not zero"):
        step(model, optimizer)
    assert sparse.sparsity == pytest.approx(0.8, abs=1e-3)
    assert not any(bool(w.detach()[~sparse.masks[n]].any()) for n, w in sparse.weights.items())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, optimizer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "resumes", "said"), [("set", False, True), ("set", True, False), ("magnitude", 0, 0)])
def test_fresh_masks_on_a_network_that_is_sparse_already_are_said(way, name, resumes, said):
    def make(seed, state=None):
        model = net()
        model.load_state_dict(state or model.state_dict())
        optimizer = wrap(torch.optim.SGD(model.parameters(), 0.1))
        settings = {} if name == "magnitude" else {"steps": 1000, "seed": seed}
        METHODS[name](model, optimizer, 0.8, **settings)
        return model, optimizer

    wrap, step = WAYS[way]
    model, optimizer = make(0)
    step(model, optimizer)
    other, anew = make(1, model.state_dict())
    anew.load_state_dict(anew.state_dict())  # as accelerate does
    if resumes:
        anew.load_state_dict(optimizer.state_dict())
    with pytest.warns(UserWarning, match="were sparse, and fresh masks") if said else warnings.catch_warnings():
        warnings.simplefilter("default" if said else "error")
        step(other, anew)


def test_weights_are_not_read_again_as_long_as_nobody_else_writes_them(monkeypatch):
    for way in ("bare", "closure"):
        wrap, step = WAYS[way]
        model = net()
        optimizer = wrap(torch.optim.SGD(model.parameters(), 0.1))
        sparse, read = SET(model, optimizer, 0.8, steps=1000), []
        step(model, optimizer)
        monkeypatch.setattr(sparse._written, "not_zero", lambda names, read=read: read.extend(names) or {})
        for _ in range(3):
            step(model, optimizer)
        assert read == []
        model.load_state_dict(model.state_dict())
        step(model, optimizer)
        assert read == ["0.weight", "2.weight"]


@pytest.mark.parametrize("way", WAYS)
def test_they_are_noticed_after_a_step_that_failed_too(way):
    wrap, step = WAYS[way]
    model = net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), 0.1))
    sparse = RigL(model, optimizer, 0.8, every=1, steps=100)
    with torch.no_grad():
        model[2].bias.fill_(torch.inf)
    with pytest.raises(FloatingPointError):
        step(model, optimizer)
    model.load_state_dict(net().state_dict())
    with pytest.warns(UserWarning, match="are not zero"):
        step(model, optimizer)
    assert not any(bool(w.detach()[~sparse.masks[n]].any()) for n, w in sparse.weights.items())


def test_weights_put_in_place_of_others_are_noticed_too():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    SET(model, optimizer, 0.8, steps=1000)
    model[0].weight.data = torch.ones(32, 20)
    with pytest.warns(UserWarning, match=r"SET: 547 pruned weights of 0\.weight are not zero"):
        bare_step(model, optimizer)


@pytest.mark.parametrize("way", WAYS)
def test_a_write_that_leaves_no_mark_is_noticed_too(way):
    wrap, step = WAYS[way]
    model = net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), 0.1))
    sparse = RigL(model, optimizer, 0.8, every=2, steps=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            step(model, optimizer)
    for p, other in zip(model.parameters(), net().parameters(), strict=True):
        p.data.copy_(other.data)
    with pytest.warns(UserWarning, match="are not zero"):
        step(model, optimizer)
    assert not any(bool(w.detach()[~sparse.masks[n]].any()) for n, w in sparse.weights.items())


@pytest.mark.parametrize("way", WAYS)
def test_parameters_put_in_place_of_others_are_noticed(way):
    wrap, step = WAYS[way]
    model = net()
    optimizer = wrap(torch.optim.SGD(model.parameters(), 0.1))
    SET(model, optimizer, 0.8, steps=1000)
    step(model, optimizer)
    model.load_state_dict(net().state_dict(), assign=True)
    with pytest.warns(
        UserWarning, match=r"another parameter is in the place of 0\.weight, 2\.weight \(was .* assign=True"
    ):
        step(model, optimizer)


# --- gradients -------------------------------------------------------------------------------------------------------


def test_a_layer_put_in_place_of_another_is_noticed_and_one_put_around_it_is_not():
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    Magnitude(model, optimizer, 0.5)

    def step():
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()

    model[0] = nn.Sequential(model[0])  # as torch.compile and other wrappers do
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
    model[1] = nn.Sequential(nn.Linear(8, 4))  # a new head
    with pytest.warns(UserWarning, match=r"another parameter is in the place of 1\.0\.weight"):
        step()


@pytest.mark.parametrize("cls", [SET, Magnitude, TopKAST, DeepR], ids=lambda c: c.__name__)
def test_clipping_before_the_step_sees_what_the_optimizer_will_use(cls):
    """By hand: the norm over active weights and biases; for Top-KAST over those that learn."""
    model, dense = net(), net()
    base = torch.optim.SGD(model.parameters(), 0.1)
    sparse = cls(model, base, 0.95, **({"steps": 100} if cls is SET else {}))
    dense.load_state_dict(model.state_dict())
    loss(model).backward()
    loss(dense).backward()
    seen = {n: getattr(sparse, "learning", sparse.masks)[n] for n in sparse.masks}
    expected = torch.cat([(p.grad * seen.get(n, 1)).flatten() for n, p in dense.named_parameters()]).norm()
    full = torch.cat([p.grad.flatten() for p in dense.parameters()]).norm()
    found = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    torch.testing.assert_close(found, expected)
    assert full > 1.3 * expected  # what it used to be clipped by


class Growing(Dynamic):
    def grow_score(self, name, weight):
        return self.gradient(name).abs()


MOVING = {
    "set": (SET, {}),
    "svite": (SViTE, {}),
    "candidates": (SViTE, {"candidates": 0.5}),
    "growing": (Growing, {}),
    "dsr": (METHODS["dsr"], {"threshold": 0.05, "dense": ()}),
    "snfs": (METHODS["snfs"], {}),
    "mest": (METHODS["mest"], {"dense": ()}),
    "mest lam": (METHODS["mest"], {"dense": (), "lam": 1.0}),
    "mest soft": (METHODS["mest"], {"dense": (), "soft": True}),
}


@pytest.mark.parametrize("way", ["bare", "phases", "window", "scaler", "by hand"])
@pytest.mark.parametrize("name", MOVING)
def test_it_sees_so_where_the_masks_move_too(name, way):
    """Clipped to some length, the gradient is as long when the optimizer gets it, and no other than it was clipped."""
    model = net()
    base = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = SAM(base, 0.05) if way in {"phases", "window"} else base
    cls, settings = MOVING[name]
    sparse = cls(model, optimizer, 0.9, steps=100, every=2, **settings)
    scaler = torch.amp.GradScaler("cpu", enabled=way == "scaler", init_scale=2.0**10)
    lengths, masks = [], []
    base.register_step_pre_hook(lambda *_: lengths.append(float(gradient(model).norm())))
    for _ in range(5):
        masks.append({n: m.clone() for n, m in sparse.masks.items()})
        optimizer.zero_grad()
        if way == "phases":
            optimizer.ascend(lambda: loss(model))
        elif way == "window":
            optimizer.ascend(lambda: loss(model), stay=False)
        if way == "by hand":
            for p, g in zip(
                model.parameters(), torch.autograd.grad(loss(model), list(model.parameters())), strict=True
            ):
                p.grad = g
            for n, w in sparse.weights.items():
                if sparse.gradient_mask(n) is not None:
                    w.grad *= sparse.gradient_mask(n)
        for part in (slice(0, 8), slice(8, 16)) if way != "by hand" else ():
            with optimizer.perturbed() if way == "window" else nullcontext():
                scaler.scale(F.cross_entropy(model(X[part]), Y[part]) / 2).backward()
        scaler.unscale_(base) if way == "scaler" else None
        nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
        seen = gradient(model)
        scaler.step(optimizer)
        scaler.update()
        assert lengths[-1] == pytest.approx(1e-2, rel=1e-4)
        torch.testing.assert_close(gradient(model), seen)
        for n, w in sparse.weights.items():
            assert not w.detach()[~sparse.masks[n]].any()
            if name != "snfs":
                assert not base.state[w]["momentum_buffer"][~sparse.masks[n]].any()
    assert any(not torch.equal(m, sparse.masks[n]) for n, m in masks[0].items())


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("scaled", [False, True])
def test_growth_does_not_depend_on_clipping_or_micro_batches(scaled):
    """The dense gradient of all micro-batches of this step, in the unit that the optimizer sees."""
    found = []

    class Seeing(Growing):
        def grow_score(self, name, weight):
            found[-1].append(self.gradient(name).clone())
            return super().grow_score(name, weight)

    for parts, clip in (
        ((slice(0, 16),), 1e9),
        ((slice(0, 8), slice(8, 16)), 1e9),
        ((slice(0, 8), slice(8, 16)), 1e-3),
    ):
        found.append([])
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**10)
        Seeing(model, optimizer, 0.9, steps=100, every=2)
        for i in range(3):
            for set_to_none in (False, True):
                scaler.scale(loss(model) * 7).backward()  # thrown away
                optimizer.zero_grad(set_to_none=set_to_none if i else True)
            for part in parts:
                scaler.scale(F.cross_entropy(model(X[part]), Y[part]) / len(parts)).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    for a, b, c in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c * norm / clip)


@pytest.mark.parametrize("name", ["rigl", "mest", "topkast", "deepr"])
def test_a_fused_optimizer_under_a_scaler_is_one_without(name):
    """It is handed scaled gradients, and steps that overflow: neither may reach the method."""
    settings = {"mest": {"lam": 1.0, "dense": ()}, "deepr": {"l1": 0.01, "dense": ()}}.get(name, {})
    settings |= {} if name in {"topkast", "deepr"} else {"steps": 100}
    ends = []
    for fused in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01, fused=fused)
        sparse = METHODS[name](model, optimizer, 0.8, every=3, **settings)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        for i in range(8):
            optimizer.zero_grad()
            scaler.scale(loss(model) * (torch.inf if i in {3, 5} else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        assert sparse.steps == 6
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*ends)


def test_gradients_of_several_micro_batches_add_up_masked():
    model, other = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sparse = SET(model, optimizer, 0.8, steps=100)
    other.load_state_dict(model.state_dict())
    for part in (slice(0, 8), slice(8, 16)):
        for m in (model, other):
            F.cross_entropy(m(X[part]), Y[part]).backward()
    for n, p in other.named_parameters():
        mask = sparse.masks.get(n, torch.ones_like(p, dtype=torch.bool))
        torch.testing.assert_close(model.get_parameter(n).grad, p.grad * mask)


def test_a_gradient_that_is_part_of_a_graph_is_left_alone():
    """A gradient penalty differentiates through it."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sparse = SET(model, optimizer, 0.8, steps=100)
    loss(model).backward(create_graph=True)
    penalty = sum(p.grad.square().sum() for p in model.parameters())
    penalty.backward()
    optimizer.step()
    assert not any(bool(w.detach()[~sparse.masks[n]].any()) for n, w in sparse.weights.items())


class Sometimes(nn.Module):
    """A network with a branch that some steps leave out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.branch, self.last = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 5)
        self.used = True

    def forward(self, x):
        h = self.first(x).relu()
        return self.last(h + self.branch(h) if self.used else h)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("growth_gradient", ["perturbed", "theta"])
@pytest.mark.parametrize("cls", [RigL, SViTE], ids=lambda c: c.__name__)
def test_a_layer_without_gradient_stays_and_the_others_move(cls, growth_gradient, set_to_none):
    model = Sometimes()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    settings = {"every": 1, "steps": 100, "drop_fraction": 0.5, "budget": "uniform"}
    sparse = cls(model, optimizer, 0.5, growth_gradient=growth_gradient, **settings)
    bare_step(model, optimizer)
    before = {n: m.clone() for n, m in sparse.masks.items()}
    model.used = False
    if not set_to_none:
        model.branch.weight.grad = torch.zeros_like(model.branch.weight)
    optimizer.zero_grad(set_to_none)
    loss(model).backward()
    optimizer.step()
    moved = {n: not torch.equal(m, before[n]) for n, m in sparse.masks.items()}
    assert moved == {"first.weight": True, "branch.weight": False, "last.weight": True}
    assert all(int(m.sum()) == sparse.n_active_by_layer[n] for n, m in sparse.masks.items())


def test_a_new_method_gets_the_dense_gradient_for_the_asking():
    seen = []

    class Grow(Dynamic):
        def grow_score(self, name, weight):
            seen.append(self.gradient(name).clone())
            return seen[-1].abs()

    model, dense = nn.Sequential(nn.Linear(20, 5)), nn.Sequential(nn.Linear(20, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sparse = Grow(model, optimizer, 0.8, every=2, steps=100)
    for i in range(3):
        dense.load_state_dict(model.state_dict())
        dense.zero_grad()
        loss(dense).backward()
        bare_step(model, optimizer)
        if i == 2:
            (found,) = seen
            torch.testing.assert_close(found, dense[0].weight.grad)
    assert sparse.needs_dense_gradient() is False


def test_a_method_that_says_it_does_not_look_cannot_look():
    class Blind(SET):
        def grow_score(self, name, weight):
            return self.gradient(name).abs()

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    Blind(model, optimizer, 0.8, every=1, steps=100)
    bare_step(model, optimizer)
    with pytest.raises(RuntimeError, match=r"update_needs_gradient\(\) is False"):
        bare_step(model, optimizer)


# --- optimizers ------------------------------------------------------------------------------------------------------


def test_lbfgs_is_refused():
    model = net()
    base = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ValueError, match="LBFGS evaluates its closure many times"):
        SET(model, base, 0.8, steps=100)


class Trainers(torch.optim.Optimizer):
    """A wrapper as accelerate has it: an optimizer that was never made one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        return self.optimizer.step(closure)

    def zero_grad(self):
        self.optimizer.zero_grad()


@pytest.mark.parametrize("inside", [lambda base: base, SAM], ids=["bare", "sam"])
def test_a_method_made_on_a_trainers_wrapper_masks_what_is_inside(inside):
    model = net()
    optimizer = Trainers(inside(with_one(model)))
    sparse = RigL(model, optimizer, 0.8, every=2, steps=100)
    for _ in range(3):
        by_closure(model, optimizer) if inside is SAM else bare_step(model, optimizer)
    assert sparse.steps == 3
    assert not any(bool(w.detach()[~sparse.masks[n]].any()) for n, w in sparse.weights.items())
    with pytest.raises(TypeError, match="a trainer's own wrapper goes around SAM"):
        SAM(optimizer)
    with pytest.raises(TypeError, match=r"one of torch's, or a list of them, not NoneType"):
        SET(net(), None, steps=100)


def pair(model):
    first = torch.optim.AdamW(model[0].parameters(), 0.01)
    return [first, torch.optim.SGD(model[2].parameters(), 0.1, momentum=0.9)]


def with_one(model):
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    return torch.optim.AdamW(groups, 0.01)


SEVERAL = {
    "set": {"every": 2},
    "rigl": {"every": 2},
    "snfs": {"every": 2},
    "dsr": {"every": 2, "dense": ()},
    "topkast": {"every": 2},
    "deepr": {"dense": ()},
    "gmp": {"every": 2, "budget": "global"},
    "lth": {"steps": 3, "rewind": 1, "levels": 2},
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_optimizers_are_as_one(name):
    """The same weights under one AdamW with two groups, and under two of them."""
    made = []
    for several in (False, True):
        model = net()
        optimizers = [torch.optim.AdamW(model[i].parameters(), 0.01) for i in (0, 2)] if several else [with_one(model)]
        settings = {"steps": 8} | SEVERAL[name]
        sparse = METHODS[name](model, optimizers if several else optimizers[0], 0.8, **settings)
        for _ in range(8):
            for o in optimizers:
                o.zero_grad()
            loss(model).backward()
            for o in optimizers:
                o.step()
        assert sparse.steps == 8
        made.append((model, sparse))
    for (n, a), b in zip(made[0][0].named_parameters(), made[1][0].parameters(), strict=True):
        assert torch.equal(a, b), n
    assert all(torch.equal(m, made[1][1].masks[n]) for n, m in made[0][1].masks.items())


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("seldom", [0, 1], ids=["first", "last"])
def test_one_of_several_optimizers_may_step_less_often(name, seldom):
    """As those of two players do, or where a GradScaler lets one of them wait: pruned weights are zero all the same."""
    model = net()
    optimizers = pair(model)
    sparse = METHODS[name](model, optimizers, 0.8, **{"steps": 8} | SEVERAL[name])
    for i in range(8):
        model.zero_grad()
        loss(model).backward()
        for which, optimizer in enumerate(optimizers):
            if which != seldom or i % 3 == 0:
                optimizer.step()
        assert not any(bool(w.detach()[~sparse.masks[n]].any()) for n, w in sparse.weights.items())


def test_several_optimizers_travel_each_with_its_part():
    def steps(model, optimizers, n):
        for _ in range(n):
            model.zero_grad()
            loss(model).backward()
            for o in optimizers:
                o.step()

    model = net()
    optimizers = pair(model)
    TopKAST(model, optimizers, 0.8, every=2)
    steps(model, optimizers, 3)
    saved = copy.deepcopy([model.state_dict(), *(o.state_dict() for o in optimizers)])
    steps(model, optimizers, 4)
    other = net()
    twins = pair(other)
    sparse = TopKAST(other, twins, 0.8, every=2)
    other.load_state_dict(saved[0])
    for o, state in zip(twins, saved[1:], strict=True):
        o.load_state_dict(state)
    steps(other, twins, 4)
    assert sparse.steps == 7
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("biases_first", [False, True])
def test_an_optimizer_of_biases_alone_travels_too(biases_first):
    def make():
        model = net()
        parts = [[p for p in model.parameters() if (p.dim() > 1) != biases_first]]
        parts.append([p for p in model.parameters() if (p.dim() > 1) == biases_first])
        optimizers = [torch.optim.SGD(part, 0.1, momentum=0.9) for part in parts]
        return model, optimizers, SET(model, optimizers, 0.8, every=2, steps=100)

    def steps(model, optimizers, n):
        for _ in range(n):
            model.zero_grad()
            loss(model).backward()
            for o in optimizers:
                o.step()

    model, optimizers, _ = make()
    steps(model, optimizers, 3)
    saved = copy.deepcopy([model.state_dict(), *(o.state_dict() for o in optimizers)])
    steps(model, optimizers, 4)
    other, twins, sparse = make()
    other.load_state_dict(saved[0])
    for o, state in zip(twins, saved[1:], strict=True):
        o.load_state_dict(state)
    steps(other, twins, 4)
    assert sparse.steps == 7
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_several_optimizers_are_stepped_in_order_and_unwrapped():
    model = net()
    first, second = pair(model)
    with pytest.raises(ValueError, match="unwrapped"):
        SET(model, [SAM(first), second], steps=10)
    with pytest.raises(ValueError, match=r"does not hold 2\.weight"):
        SET(model, [first], steps=10)
    SET(model, [first, second], steps=10)
    loss(model).backward()
    with pytest.raises(RuntimeError, match=r"the AdamW of 0\.weight first"):
        second.step()


def test_a_budget_over_all_optimizers():
    model = net()
    sparse = Magnitude(model, pair(model), 0.9)
    assert sparse.n_active_by_layer == {}
    assert sum(int(m.sum()) for m in sparse.masks.values()) == round(0.1 * 800)


# --- length of training ----------------------------------------------------------------------------------------------

SCHEDULED = ["dsr", "gmp", "lth", "mest", "rigl", "set", "snfs", "svite"]


def test_a_schedule_needs_the_length_of_training():
    for name in METHODS:
        model = net()
        settings = {"loss": lambda model=model: loss(model)} if name in {"snip", "grasp", "synflow"} else {}
        settings |= {"every": 5} if name == "snfs" else {}
        settings |= {"dense": ()} if name in {"mest", "dsr", "deepr"} else {}
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        if name in SCHEDULED:
            with pytest.raises(ValueError, match=r"pass steps="):
                METHODS[name](model, optimizer, 0.5, **settings)
        else:
            METHODS[name](model, optimizer, 0.5, **settings)


@pytest.mark.parametrize("name", ["set", "dsr", "gmp", "snfs", "topkast"])
def test_masks_that_would_never_move_are_said(name):
    model, settings = net(), {"dense": ()} if name == "dsr" else {}
    with pytest.warns(UserWarning, match="they never move on the way: pass a smaller every="):
        METHODS[name](model, torch.optim.SGD(model.parameters(), 0.1), 0.5, steps=50, every=100, **settings)


@pytest.mark.parametrize("name", [n for n in SCHEDULED if n != "lth"])
def test_steps_is_all_that_a_schedule_needs(name):
    """In a short training every method moves, ends at its target, and leaves its masks alone at the end."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    settings = {"every": 5} if name != "svite" else {}
    settings |= {"dense": ()} if name in {"mest", "dsr"} else {}
    sparse = METHODS[name](model, optimizer, 0.8, steps=100, **settings)
    changed = []
    first = {n: m.clone() for n, m in sparse.masks.items()}
    sparse.watchers.append(lambda: changed.append(sparse.steps))
    for _ in range(100):
        bare_step(model, optimizer)
    assert any(not torch.equal(m, first[n]) for n, m in sparse.masks.items())
    assert sparse.sparsity == pytest.approx(0.8, abs=1e-3)
    last = {"set": 95, "snfs": 95, "rigl": 70, "mest": 70, "svite": 79, "gmp": 75, "dsr": 90}[name]
    assert max(changed) == last


def test_lth_ends_where_it_should():
    model = net()
    sparse = LTH(model, torch.optim.SGD(model.parameters(), 0.1), 0.8, steps=10, levels=2)
    for _ in range(sparse.total_steps(10)):
        bare_step(model, sparse.optimizer)
    assert sparse.sparsity == pytest.approx(0.8, abs=1e-3)


# --- compiled models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["before", "inside", "checkpointed"])
def test_names_of_a_wrapped_model_are_plain(how):
    plain, model = net(), net()
    expected = SET(plain, torch.optim.SGD(plain.parameters(), 0.1), 0.8, steps=10)
    if how == "inside":
        model[0] = torch.compile(model[0], backend="eager")
    if how == "checkpointed":
        model[0] = checkpoint_wrapper(model[0])
    compiled = torch.compile(model, backend="eager") if how == "before" else model
    optimizer = torch.optim.SGD(compiled.parameters(), 0.1)
    sparse = SET(compiled, optimizer, 0.8, steps=10)
    assert list(sparse.masks) == list(expected.masks) == ["0.weight", "2.weight"]
    sparse.load_state_dict(expected.state_dict())
    bare_step(compiled, optimizer)
    assert not any(bool(w.detach()[~sparse.masks[n]].any()) for n, w in sparse.weights.items())
    sparse.apply_to(torch.compile(net(), backend="eager"))
    sparse.apply_to(model)


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda things: pickle.loads(pickle.dumps(things))])
def test_a_copy_without_its_sparse_method_does_not_train_dense(trial, way, bare):
    def step(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = model(t.x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    t = trial("sam", "set", bare=bare)
    step(t.model, t.optimizer)
    model, optimizer = way((t.model, t.optimizer))
    before = [p.clone() for p in model.state_dict().values()]
    with pytest.raises(RuntimeError, match="copied without the sparse method"):
        step(model, optimizer)
    if not bare:
        with pytest.raises(RuntimeError, match="copied without the sparse method"):
            optimizer.ascend(lambda: model(t.x).square().mean())
        assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    SET(model, optimizer, 0.5, steps=10)
    step(model, optimizer)
    model, optimizer, sparse = way((t.model, t.optimizer, t.sparse))
    for _ in range(2):
        step(model, optimizer)
    assert all(not w[~sparse.masks[n]].any() for n, w in sparse.weights.items())
    for released in (sparse, t.sparse):
        released.release()
    step(model, optimizer)
    step(*way((t.model, t.optimizer)))


def test_one_that_was_pickled_does_not_train_dense_in_another_process_either(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    SET(model, optimizer, 0.5, steps=10)
    (tmp_path / "both").write_bytes(pickle.dumps((model, optimizer)))
    program = """
import pathlib, pickle, sys
model, optimizer = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
next(model.parameters()).sum().backward()
optimizer.step()
"""
    found = subprocess.run([sys.executable, "-c", program, tmp_path / "both"], capture_output=True, text=True)
    assert "copied without the sparse method" in found.stderr
