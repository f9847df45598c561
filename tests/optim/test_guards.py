"""Loops that would go wrong without a word: gathered gradients, steps that never climb, perturbations too short."""

from __future__ import annotations

import copy
import os
import random
import warnings
from functools import partial
from typing import get_overloads

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.names import fitting
from zosam.optim import (
    ESAM,
    GSAM,
    OPTIMIZERS,
    RWP,
    S2SAM,
    SAM,
    ZOSAM,
    LookSAM,
    Pair,
    RandomSAM,
    SharpnessAware,
    Unperturbed,
    schedules,
)

X, Y = torch.randn(16, 5, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model, keep=slice(None), reduction="mean"):
    return F.cross_entropy(model(X[keep]), Y[keep], reduction=reduction)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# --- micro-batches ---------------------------------------------------------------------------------------------------


def test_gradients_of_earlier_micro_batches_are_not_dropped():
    model = net()
    optimizer = SAM(sgd(model))
    loss_of(model, slice(0, 8)).backward()
    before = flat(model)
    with pytest.raises(RuntimeError, match="micro-batches are there"):
        optimizer.step(lambda: loss_of(model, slice(8, 16)))
    assert torch.equal(flat(model), before)
    optimizer.zero_grad()
    optimizer.step(lambda: loss_of(model))
    optimizer.step(lambda: loss_of(model))  # what the step itself has left is no sign of gathering
    loss_of(model).backward()
    with pytest.raises(RuntimeError, match="stay=False"):
        optimizer.step(lambda: loss_of(model))


@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_loop_that_clears_its_gradients_is_left_alone(set_to_none):
    model = net()
    optimizer = ZOSAM(sgd(model))
    for _ in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        optimizer.step(lambda: loss_of(model))


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"esam"}))
@pytest.mark.parametrize("last_by_closure", [False, True])
def test_a_window_climbs_once_and_gathers_all_micro_batches_there(name, last_by_closure):
    """As by hand: the offset of the first micro-batch, the mean gradient of both there, one step of the base."""
    model, plain = (nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    cls, parts = OPTIMIZERS[name], (slice(0, 8), slice(8, 16))
    optimizer, hand = (cls(sgd(m), **fitting(cls, rho=0.3)) for m in (model, plain))
    for _ in range(3):
        optimizer.zero_grad()
        optimizer.ascend(lambda: loss_of(model, parts[0]), stay=False)
        home = flat(model)
        with optimizer.perturbed():
            (loss_of(model, parts[0]) / 2).backward()
        assert torch.equal(flat(model), home)  # in between, validation and checkpoints see clean weights
        if last_by_closure:
            optimizer.step(lambda: loss_of(model, parts[1]) / 2)
        else:
            with optimizer.perturbed():
                (loss_of(model, parts[1]) / 2).backward()
            optimizer.step()
        hand.ascend(lambda: loss_of(plain, parts[0]))
        for part in parts:
            (loss_of(plain, part) / 2).backward()
        hand.step()
        torch.testing.assert_close(flat(model), flat(plain), rtol=1e-6, atol=1e-7)


def test_a_closure_after_an_ascent_that_stayed_is_taken_at_the_point_climbed_to():
    model, plain = net(), net()
    optimizer, whole = SAM(sgd(model), rho=0.3), SAM(sgd(plain), rho=0.3)
    for _ in range(3):
        optimizer.ascend(lambda: loss_of(model))
        optimizer.step(lambda: loss_of(model))
        whole.step(lambda: loss_of(plain))
        assert torch.equal(flat(model), flat(plain))


@pytest.mark.parametrize("clears", [None, True, False])
def test_a_closure_in_torchs_form_ends_a_window_and_drops_nothing(clears):
    """Its own `zero_grad` does not reach the gradients of the micro-batches before."""
    model, pure = net(), net()
    optimizer, other = SAM(sgd(model), rho=0.3), SAM(sgd(pure), rho=0.3)

    def closure():
        if clears is not None:
            optimizer.zero_grad(set_to_none=clears)
        loss = loss_of(model, slice(8, 16))
        loss.backward()
        return loss

    for _ in range(3):
        for o, m in ((optimizer, model), (other, pure)):
            o.zero_grad()
            o.ascend(lambda m=m: loss_of(m, slice(0, 8)), stay=False)
            with o.perturbed():
                loss_of(m, slice(0, 8)).backward()
        optimizer.step(closure)
        other.step(lambda: loss_of(pure, slice(8, 16)))
        assert torch.equal(flat(model), flat(pure))


@pytest.mark.parametrize("clears", [True, False])
def test_but_it_clears_what_the_last_step_has_left(clears):
    """As Lightning does: its closure clears gradients in the first micro-batch of a window, here the only one."""
    model, pure = net(), net()
    optimizer, other = SAM(sgd(model), rho=0.3), SAM(sgd(pure), rho=0.3)

    def closure():
        loss = loss_of(model)
        optimizer.zero_grad(set_to_none=clears)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.ascend(lambda: loss_of(model), stay=False)
        optimizer.step(closure)
        other.ascend(lambda: loss_of(pure))
        loss_of(pure).backward()
        other.step()
        assert torch.equal(flat(model), flat(pure))
        other.zero_grad()


def test_a_closure_that_fails_in_a_window_leaves_its_gradients():
    model = net()
    optimizer = SAM(sgd(model))
    optimizer.ascend(lambda: loss_of(model), stay=False)
    with optimizer.perturbed():
        loss_of(model).backward()
    gathered = [p.grad.clone() for p in model.parameters()]

    def fails():
        optimizer.zero_grad()
        raise KeyError

    with pytest.raises(KeyError):
        optimizer.step(fails)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gathered, strict=True))


def test_being_perturbed_needs_an_ascent():
    optimizer = SAM(sgd(net()))
    with pytest.raises(RuntimeError, match="ascend"), optimizer.perturbed():
        pass


# --- steps that do nothing -------------------------------------------------------------------------------------------


def bare(optimizer, model, n):
    for _ in range(n):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def test_a_wrapper_that_never_climbs_says_so_once():
    model = net()
    optimizer = SAM(sgd(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare(optimizer, model, 1)
    with pytest.warns(UserWarning, match="without a climb"):
        bare(optimizer, model, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare(optimizer, model, 3)
        bare(Unperturbed(sgd(model)), model, 3)
        bare(SAM(sgd(model), rho=0.0), model, 3)
        optimizer.zero_grad()
        optimizer.step(lambda: loss_of(model))
        bare(optimizer, model, 3)  # not again after a climb in between


@pytest.mark.parametrize("scheduled", [False, True])
def test_what_is_said_points_to_the_line_of_the_loop(scheduled):
    model = net()
    optimizer = SAM(sgd(model))
    if scheduled:  # torch then wraps step once more
        torch.optim.lr_scheduler.ConstantLR(optimizer)
    with pytest.warns(UserWarning, match="without a climb") as said:
        bare(optimizer, model, 2)
    assert said[0].filename == __file__
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = net()
        short = SAM(sgd(model), rho=1e-7)
        for _ in range(30):
            short.step(lambda: loss_of(model))
    assert [w.filename for w in said if "of their length" in str(w.message)] == [__file__]


def test_so_does_one_whose_schedule_begins_at_zero():
    model = net()
    optimizer = SAM(sgd(model), rho=schedules.Late(0.5, 0.3, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare(optimizer, model, 5)
    with pytest.warns(UserWarning, match="without a climb"):
        bare(optimizer, model, 1)


LENGTHS = {
    "sam": (SAM, 1e-7, 0.05),
    "zosam": (ZOSAM, 1e-4, 1.0),
    "random": (RandomSAM, 1e-4, 1.0),
    "rwp": (RWP, 1e-5, 0.2),
    "pair": (lambda base, rho: ZOSAM(base, rho, decide=Pair()), 1e-4, 1.0),
    "paper": (ZOSAM.paper, 1e-4, 1.0),
    "looksam": (lambda base, rho: LookSAM(base, rho, k=7), 1e-7, 0.05),  # it does not climb in every step
    "schedule": (lambda base, rho: SAM(base, schedules.Late(0.5, rho, 30)), 1e-7, 0.05),
}


@pytest.mark.parametrize(("make", "short", "long"), LENGTHS.values(), ids=LENGTHS)
def test_a_perturbation_too_short_to_matter_is_said_once_with_one_that_would(make, short, long):
    for rho, expected in ((short, 1), (long, 0)):
        model = net()
        optimizer = make(sgd(model), rho=rho)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(30):
                optimizer.step(lambda model=model: loss_of(model))
        about = [str(w.message) for w in said if "of their length" in str(w.message)]
        assert len(about) == expected
        if about:
            times = float(about[0].partition("a rho ")[2].partition(" times")[0])
            assert times * rho * 100 > short  # a number that can be acted on
            assert times > 10


def test_a_length_that_still_rises_is_not_judged():
    model = net()
    optimizer = SAM(sgd(model), rho=schedules.Linear(0.0, 1.0, 10**9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            optimizer.step(lambda: loss_of(model))


# --- rho in the groups -----------------------------------------------------------------------------------------------


def test_rho_lies_in_the_groups_is_saved_and_travels():
    model = net()
    groups = [{"params": model[0].parameters(), "rho": 0.4}, {"params": model[3].parameters()}]
    optimizer = SAM(torch.optim.SGD(groups, lr=0.1), rho=0.1)
    assert [g["rho"] for g in optimizer.param_groups] == [0.4, 0.1]
    optimizer.param_groups[1]["rho"] = 0.7
    state = copy.deepcopy(optimizer.state_dict())
    assert [g["rho"] for g in state["param_groups"]] == [0.4, 0.7]
    other = SAM(torch.optim.SGD([{"params": g["params"]} for g in groups_of(model)], lr=0.1), rho=0.1)
    other.load_state_dict(state)
    assert other.rhos() == [0.4, 0.7]


def groups_of(model):
    return [{"params": list(model[0].parameters())}, {"params": list(model[3].parameters())}]


def test_a_schedule_writes_rho_and_a_group_of_its_own_is_refused():
    model = net()
    optimizer = SAM(sgd(model), rho=schedules.Late(0.5, 0.3, 4))
    seen = []
    for _ in range(4):
        optimizer.step(lambda: loss_of(model))
        seen.append(optimizer.param_groups[0]["rho"])
    assert seen == [0.0, 0.0, 0.3, 0.3]
    base = torch.optim.SGD([{"params": model.parameters(), "rho": 0.1}], lr=0.1)
    with pytest.raises(ValueError, match="schedule would overwrite"):
        SAM(base, rho=schedules.Late(0.5, 0.3, 4))


def test_sam_on_norm_layers_only_is_a_setting_of_a_group():
    model = net()
    norms, others = list(model[1].parameters()), [*model[0].parameters(), *model[3].parameters()]
    optimizer = SAM(torch.optim.SGD([{"params": norms}, {"params": others, "perturb": False}], lr=0.1), rho=0.5)
    home = flat(model)
    optimizer.ascend(lambda: loss_of(model))
    moved = flat(model) - home
    assert moved.norm() == pytest.approx(0.5, rel=1e-5)
    assert moved[: 5 * 8 + 8].eq(0).all()
    optimizer.restore()


def test_a_group_whose_rho_is_zero_is_not_moved_by_probes_either():
    model = net()
    groups = [{"params": model[0].parameters(), "rho": 0.0}, {"params": model[3].parameters()}]
    optimizer = ZOSAM(torch.optim.SGD(groups, lr=0.0), rho=0.5)
    still = model[0].weight.detach().clone()

    def closure():
        assert torch.equal(model[0].weight, still)
        return loss_of(model)

    optimizer.step(closure)


# --- what passes leave behind ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sam", "gsam", "looksam", "zosam", "rwp"])
def test_parameters_outside_all_groups_get_the_gradient_of_one_pass(name):
    model, frozen = net(), net()
    optimizer = OPTIMIZERS[name](torch.optim.SGD(model[3].parameters(), lr=0.0), rho=1e-6)
    outside = [*model[0].parameters(), *model[1].parameters()]
    for p in outside:
        p.grad = torch.ones_like(p)
    for _ in range(2):
        optimizer.step(lambda: loss_of(model))
    torch.autograd.backward(loss_of(frozen))
    for p, q in zip(outside, [*frozen[0].parameters(), *frozen[1].parameters()], strict=True):
        torch.testing.assert_close(p.grad, 1 + 2 * q.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", ["pure", "torch's own", "a function that was imported"])
@pytest.mark.parametrize("name", ["sam", "gsam", "looksam", "esam", "zosam"])
def test_so_do_layers_and_tensors_that_no_optimizer_knows_of(name, form):
    """A layer after the model, and a tensor in no module at all, such as a perturbation of the inputs."""
    model, after, shift = net(), nn.Linear(3, 3), torch.zeros(16, 5, requires_grad=True)
    optimizer = OPTIMIZERS[name](
        torch.optim.SGD(model.parameters(), lr=0.0), rho=1e-6, **fitting(OPTIMIZERS[name], gamma=1.0)
    )
    reduction, goes_back = "none" if optimizer.per_sample else "mean", torch.autograd.backward

    def closure():
        loss = F.cross_entropy(after(model(X + shift)), Y, reduction=reduction)
        if form == "torch's own":
            loss.mean().backward()
        elif form != "pure":
            goes_back(loss.mean())
        return loss

    optimizer.step(closure)
    found = after.weight.grad, shift.grad
    after.weight.grad = shift.grad = None
    F.cross_entropy(after(model(X + shift)), Y).backward()
    torch.testing.assert_close(found, (after.weight.grad, shift.grad), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["sam", "zosam", "looksam"])
def test_pythons_and_numpys_random_streams_move_as_in_one_pass(name):
    model = net()
    optimizer, drawn = OPTIMIZERS[name](sgd(model)), []

    def closure():
        drawn.append((random.random(), float(np.random.rand())))  # noqa: NPY002
        return loss_of(model)

    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    optimizer.step(closure)
    assert len(set(drawn)) == 1
    after = random.random(), float(np.random.rand())  # noqa: NPY002
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    assert drawn[0] == (random.random(), float(np.random.rand()))  # noqa: NPY002
    assert after == (random.random(), float(np.random.rand()))  # noqa: NPY002


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("name", ["sam", "zosam"])
def test_half_of_a_pair_of_numpys_normal_numbers_is_handed_out_once(name, draws, waiting):
    """The bits of the stream do not move when the second normal number of a pair is handed out."""
    model = net()
    optimizer, drawn = OPTIMIZERS[name](sgd(model)), []

    def closure():
        drawn.append(tuple(np.random.randn(draws)))  # noqa: NPY002
        return loss_of(model)

    def begin():
        np.random.seed(3)  # noqa: NPY002
        np.random.randn(1 if waiting else 2)  # noqa: NPY002

    begin()
    optimizer.step(closure)
    after = tuple(np.random.randn(3))  # noqa: NPY002
    begin()
    assert set(drawn) == {tuple(np.random.randn(draws))}  # noqa: NPY002
    assert after == tuple(np.random.randn(3))  # noqa: NPY002


def test_another_bit_generator_of_numpys_is_left_in_its_place():
    model, before = net(), np.random.get_bit_generator()
    optimizer, drawn = OPTIMIZERS["sam"](sgd(model)), []
    try:
        np.random.set_bit_generator(np.random.MT19937(3))
        optimizer.step(lambda: (drawn.append(float(np.random.rand())), loss_of(model))[1])  # noqa: NPY002
        after = float(np.random.rand())  # noqa: NPY002
        np.random.set_bit_generator(np.random.MT19937(3))
        assert [*drawn, after] == [first := float(np.random.rand()), first, float(np.random.rand())]  # noqa: NPY002
    finally:
        np.random.set_bit_generator(before)


def penalty(model, by):
    """A loss with a gradient inside: by the inputs, as physics-informed networks have it, or by the weights."""
    x = X.clone().requires_grad_()
    loss = F.cross_entropy(model(x), Y)
    inside = torch.autograd.grad(loss, x if by == "inputs" else list(model.parameters()), create_graph=True)
    return loss + sum(g.square().sum() for g in inside)


@pytest.mark.parametrize("by", ["inputs", "weights"])
@pytest.mark.parametrize("form", ["pure", "backward", "autograd.backward"])
def test_probes_of_closures_that_use_autograd_inside(by, form):
    def train(inside):
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        torch.manual_seed(0)
        for p in model.parameters():
            nn.init.normal_(p)
        optimizer = ZOSAM(sgd(model), rho=0.5)

        def closure():
            loss = penalty(model, by)
            if inside == "backward":
                optimizer.zero_grad()
                loss.backward()
            elif inside == "autograd.backward":
                optimizer.zero_grad()
                torch.autograd.backward([loss])
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return flat(model)

    torch.testing.assert_close(train(form), train("pure"))


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("inside", ["to the inputs", "with a graph"])
@pytest.mark.parametrize("name", ["sgd", "sam", "zosam", "pair"])
def test_a_backward_for_a_penalty_is_not_taken_for_that_of_the_loss(name, inside):
    """It finds the gradient of the inputs in every pass, as `torch.autograd.grad` does."""

    def train(asks):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
        make = {"sgd": Unperturbed, "pair": lambda base: ZOSAM(base, 0.3, decide=Pair())}
        optimizer = make.get(name, lambda base: OPTIMIZERS[name](base, 0.3))(sgd(model))

        def closure():
            x = X.clone().requires_grad_()
            outputs = model(x)
            if asks == "grad":
                (found,) = torch.autograd.grad(outputs.square().sum(), x, create_graph=True)
            else:
                optimizer.zero_grad()
                outputs.square().sum().backward(create_graph=True, inputs=[x] if asks == "to the inputs" else None)
                optimizer.zero_grad()
                found = x.grad
            return F.cross_entropy(outputs, Y) + found.square().mean()

        for _ in range(3):
            optimizer.step(closure)
        return flat(model)

    torch.testing.assert_close(train(inside), train("grad"))


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("name", ["sam", "gsam", "looksam", "esam", "zosam"])
def test_checkpoints_that_go_back_within_a_backward(name):
    """torch's reentrant kind: the gradient that it finds for the inputs of a part of the model goes on from there."""

    def train(part):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(5, 8), nn.Sequential(nn.Tanh(), nn.Linear(8, 8)), nn.Linear(8, 3)])
        optimizer = OPTIMIZERS[name](sgd(model), **fitting(OPTIMIZERS[name], rho=0.3, seed=1))
        reduction = "none" if optimizer.per_sample else "mean"

        def closure(keep=slice(None)):
            outputs = model[2](part(model[1], model[0](X[keep])))
            return F.cross_entropy(outputs, Y[keep], reduction=reduction)

        for _ in range(6):
            optimizer.step(closure)
        return flat(model)

    again = partial(torch.utils.checkpoint.checkpoint, use_reentrant=True)
    torch.testing.assert_close(train(again), train(nn.Module.__call__))


def test_esam_with_a_closure_that_differentiates_by_the_weights():
    """No gradient is computed for tensors left out, unless the closure asks for all of them: the same steps."""

    def train(asks):
        model = net()
        optimizer = ESAM(sgd(model), rho=0.5)

        def closure(keep=slice(None)):
            loss = loss_of(model, keep, "none")
            if asks:
                loss = loss + 0 * sum(
                    g.sum() for g in torch.autograd.grad(loss.sum(), model.parameters(), retain_graph=True)
                )
            return loss

        for _ in range(4):
            optimizer.step(closure)
        return [t.clone() for t in model.state_dict().values()]

    for found, expected in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_closure_whose_own_backward_reaches_no_weight_of_the_optimizer():
    """As with stochastic depth: it has called backward all the same, and is not gone back through again."""
    model, other = net(), nn.Linear(5, 3)

    def closure():
        loss = F.cross_entropy(other(X), Y)
        loss.backward(retain_graph=True)
        return loss

    for make in (SAM, ZOSAM):
        other.weight.grad = None
        make(sgd(model)).step(closure)
        found, other.weight.grad = other.weight.grad, None
        closure()
        torch.testing.assert_close(found, other.weight.grad)


def told(optimizer, model, scaler):
    optimizer.ascend(lambda: loss_of(model), scaler=scaler)


def plain(optimizer, model, scaler):
    optimizer.ascend(lambda: loss_of(model))


def scaled(optimizer, model, scaler):
    optimizer.ascend(lambda: scaler.scale(loss_of(model)))


def scaled_in_torchs_form(optimizer, model, scaler):
    def closure():
        loss = loss_of(model)
        scaler.scale(loss).backward()
        return loss

    optimizer.ascend(closure)


def told_and_scaled(optimizer, model, scaler):
    optimizer.ascend(lambda: scaler.scale(loss_of(model)), scaler=scaler)


class OwnScaler(torch.amp.GradScaler):
    """As that of torch for sharded models, it does not scale as its parent does."""

    def scale(self, outputs):
        return outputs * self.get_scale() if self._scale is not None else super().scale(outputs)


@pytest.mark.parametrize("clip", [None, 1.0, 1e-6])
@pytest.mark.parametrize("climb", [told, plain, scaled, scaled_in_torchs_form, told_and_scaled])
@pytest.mark.parametrize("make", [GSAM, LookSAM])
def test_mixed_gradients_are_in_one_unit_however_a_loop_scales_and_clips(make, climb, clip):
    """Whether the climb was told of the scaler, scales by itself or does not, it is the loop without a scaler."""
    model, reference = net(), net()
    optimizers = make(sgd(model), rho=0.3), make(sgd(reference), rho=0.3)
    scaler = (OwnScaler if clip == 1.0 else torch.amp.GradScaler)("cpu", init_scale=2.0**12)
    for _ in range(3):
        climb(optimizers[0], model, scaler)
        scaler.scale(loss_of(model)).backward()
        if clip:
            scaler.unscale_(optimizers[0])
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizers[0])
        scaler.update()
        plain(optimizers[1], reference, None)
        loss_of(reference).backward()
        if clip:
            nn.utils.clip_grad_norm_(reference.parameters(), clip)
        optimizers[1].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.testing.assert_close(flat(model), flat(reference), rtol=1e-4, atol=1e-5)
    assert vars(torch.amp.GradScaler)["scale"].__module__ == "torch.amp.grad_scaler"


def test_statistics_are_those_of_the_climb_though_a_pass_moves_them_twice():
    """As where two views go through one network, or a checkpoint runs a layer again."""

    def loss(model):
        return F.cross_entropy(model(X), Y) + F.mse_loss(model(X + 1), model(X))

    model, whole = net(), net()
    phases, steps = SAM(sgd(model), rho=0.5), SAM(sgd(whole), rho=0.5)
    for _ in range(3):
        phases.ascend(lambda: loss(model))
        loss(model).backward()
        phases.step()
        steps.step(lambda: loss(whole))
    for found, expected in zip(model.buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(found, expected)


def test_looksams_memory_is_saved_with_its_mask():
    from zosam.sparse import SET

    def made():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = LookSAM(sgd(model), rho=0.3, k=4)
        return model, optimizer, SET(model, optimizer, 0.5, every=1, steps=100, until=1.0)

    model, optimizer, _ = made()
    for _ in range(6):
        optimizer.step(lambda: loss_of(model))
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    for order in ("weights first", "optimizer first"):
        other, again, _ = made()
        loads = [lambda o=other: o.load_state_dict(weights), lambda a=again: a.load_state_dict(state)]
        for load in loads if order == "weights first" else loads[::-1]:
            load()
        kept = again.recall("orthogonal")
        torch.testing.assert_close(kept, optimizer.recall("orthogonal"))


# --- what is refused -------------------------------------------------------------------------------------------------


def test_what_is_remembered_fits_though_layers_are_frozen_or_thawed_after_it_was_loaded():
    model = net()
    optimizer = S2SAM(sgd(model))
    for _ in range(2):
        optimizer.step(lambda: loss_of(model))
    for copied in (False, True):
        other, twin = copy.deepcopy((model, optimizer))
        if not copied:
            other[0].weight.requires_grad_(False)
            twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        other[0].weight.requires_grad_(True)
        other[3].weight.requires_grad_(False)
        twin.step(lambda other=other: loss_of(other))
        assert twin.steps == 3


def test_complex_parameters_are_refused_with_the_way_out():
    w = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(TypeError, match="view_as_real"):
        SAM(torch.optim.SGD([w], lr=0.1)).step(lambda: w.abs().sum())
    real = nn.Parameter(torch.ones(2))
    groups = [{"params": [w], "perturb": False}, {"params": [real]}]
    SAM(torch.optim.SGD(groups, lr=0.1)).step(lambda: w.abs().sum() + real.square().sum())
    assert not torch.equal(real, torch.ones(2))


def test_sparse_gradients_are_climbed_along_and_not_changed():
    def made(make):
        torch.manual_seed(0)
        table = nn.Embedding(6, 4, sparse=True)
        return table, make(torch.optim.SGD(table.parameters(), lr=0.1), rho=0.3)

    rows = torch.tensor([1, 3, 3])
    table, optimizer = made(SAM)
    dense = nn.Embedding(6, 4)
    dense.load_state_dict(table.state_dict())
    other = SAM(torch.optim.SGD(dense.parameters(), lr=0.1), rho=0.3)
    for _ in range(3):
        optimizer.step(lambda: table(rows).square().sum())
        optimizer.zero_grad(set_to_none=False)  # leaves a sparse gradient without entries
        other.step(lambda: dense(rows).square().sum())
    torch.testing.assert_close(table.weight, dense.weight)
    table, optimizer = made(GSAM)
    with pytest.raises(TypeError, match="sparse=False"):
        optimizer.step(lambda: table(rows).square().sum())


def test_lbfgs_is_no_base():
    with pytest.raises(TypeError, match="one gradient"):
        SAM(torch.optim.LBFGS(net().parameters()))


def test_a_copy_made_after_a_scheduler_trains_its_own_model():
    model = net()
    optimizer = ZOSAM(sgd(model))
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    other, twin = copy.deepcopy((model, optimizer))
    before, theirs = flat(model), flat(other)
    twin.step(lambda: loss_of(other))
    assert torch.equal(flat(model), before)
    assert not torch.equal(flat(other), theirs)


def test_a_state_of_another_method_is_refused_and_other_settings_are_said():
    model = net()
    state = ZOSAM(sgd(model)).state_dict()
    with pytest.raises(ValueError, match="a state of ZOSAM, not of SAM"):
        SAM(sgd(model)).load_state_dict(state)
    with pytest.warns(UserWarning, match=r"every 1, not 2"):
        ZOSAM(sgd(model), every=2).load_state_dict(state)


# --- torch.compile ---------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A module of one's own: torch does not compile its own ones when they are compiled in place."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return self.inside(x)


def blocks():
    torch.manual_seed(0)
    return Block(nn.Sequential(Block(nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU())), nn.Linear(8, 3)))


MAKE = {
    "sam": SAM,
    "zosam": ZOSAM,
    "rwp": RWP,
    "pair": lambda base, rho: ZOSAM(base, rho, decide=Pair()),
    "esam": lambda base, rho: ESAM(base, rho, gamma=1.0),
    "half": lambda base, rho: ESAM(base, rho, gamma=0.5),
}
FORMS = ["torch.compile(model)", "model.compile()", "blocks", "loss"]
PAIRS = [(form, name) for name in MAKE for form in FORMS]
SOME = [(form, name) for form, name in PAIRS if name == "zosam" or form == FORMS[0]]  # each of both


@pytest.mark.parametrize(("form", "name"), PAIRS if os.environ.get("ZOSAM_LONG") else SOME)
def test_compiled_in_every_form_there_are_two_graphs_at_most(form, name):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, eager, make = blocks(), blocks(), MAKE[name]
    run, loss = model, loss_of
    if form == "torch.compile(model)":
        run = torch.compile(model, backend="aot_eager")
    elif form == "model.compile()":
        model.compile(backend="aot_eager")
    elif form == "blocks":
        model.inside[0].compile(backend="aot_eager")
    else:
        loss = torch.compile(loss_of, backend="aot_eager")
    a, b = make(sgd(model), rho=0.3), make(sgd(eager), rho=0.3)
    reduction, graphs = "none" if a.per_sample else "mean", []
    for _ in range(10):
        a.step(lambda keep=slice(None): loss(run, keep, reduction=reduction))
        b.step(lambda keep=slice(None): loss_of(eager, keep, reduction=reduction))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert 1 <= graphs[-1] <= 2, graphs
    torch.testing.assert_close(flat(model), flat(eager), rtol=1e-4, atol=1e-5)
    assert model.inside[0].inside[1].num_batches_tracked == 10


def test_steps_type_check():
    """`step(closure)` gives the loss, `step()` nothing: type checkers read it so, and so it is."""
    gives = [(f.__annotations__["closure"], f.__annotations__["return"]) for f in get_overloads(SharpnessAware.step)]
    assert gives == [("None", "None"), ("Closure", "Tensor")]
    model = net()
    optimizer: SharpnessAware = SAM(sgd(model))
    assert optimizer.step(lambda: loss_of(model)).item() > 0
    optimizer.ascend(lambda: loss_of(model))
    loss_of(model).backward()
    assert optimizer.step() is None


def test_every_probe_of_a_climb_is_scaled():
    """Two losses are compared: a scaler that has scaled the first must scale the second too."""
    torch.manual_seed(0)
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=8.0)):
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 3)
        optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5)
        for _ in range(4):
            optimizer.ascend(lambda model=model: F.cross_entropy(model(x), y), scaler=scaler)
            found.append(model.weight.detach().clone())
            optimizer.restore()
            optimizer.steps += 1
    assert all(torch.allclose(a, b) for a, b in zip(found[:4], found[4:], strict=True))
