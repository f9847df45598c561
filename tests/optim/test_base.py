"""SharpnessAware at home in every loop: two phases, scalers, schedulers, groups, layouts, and bad input."""

from __future__ import annotations

import copy
import functools
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from zosam.names import fitting
from zosam.optim import OPTIMIZERS, SAM, ZOSAM, LookSAM, SharpnessAware, Unperturbed, schedules
from zosam.optim.masked import mask_of, set_mask
from zosam.optim.passes import NoBackward
from zosam.optim.vector import ActiveWeights


def made(name, base, **settings):
    """An optimizer by name, with those of the settings that it has."""
    return OPTIMIZERS[name](base, **fitting(OPTIMIZERS[name], **settings))


X, Y = torch.randn(16, 5, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model, keep=slice(None)):
    return F.cross_entropy(model(X[keep]), Y[keep])


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# --- one optimizer with its base ------------------------------------------------------------------------------------


@pytest.mark.parametrize("attach", ["wrapper", "base"])
def test_schedulers_attach_to_the_wrapper_or_the_base(attach):
    model = net()
    optimizer = ZOSAM(sgd(model))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer if attach == "wrapper" else optimizer.base, 1, 0.1)
    optimizer.step(lambda: loss_of(model))
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == optimizer.base.param_groups[0]["lr"] == pytest.approx(0.01)


def test_state_and_groups_are_the_bases():
    model = net()
    optimizer = SAM(sgd(model))
    optimizer.step(lambda: loss_of(model))
    assert optimizer.state is optimizer.base.state
    assert optimizer.param_groups is optimizer.base.param_groups
    assert "momentum_buffer" in optimizer.state_dict()["state"][0]


def test_a_state_of_the_bare_base_is_refused_with_advice():
    model = net()
    with pytest.raises(ValueError, match="before that is wrapped"):
        SAM(sgd(model)).load_state_dict(sgd(model).state_dict())


# --- the two-phase form ---------------------------------------------------------------------------------------------


def test_ascend_displaces_and_restore_is_exact_and_idempotent():
    model = net()
    optimizer = SAM(sgd(model), rho=0.5)
    before = flat(model)
    optimizer.ascend(lambda: loss_of(model))
    assert (flat(model) - before).norm() == pytest.approx(0.5, rel=1e-5)
    optimizer.restore()
    assert torch.equal(flat(model), before)
    optimizer.restore()
    assert torch.equal(flat(model), before)


def test_ascend_on_a_displaced_model_starts_from_home():
    model = net()
    optimizer = SAM(sgd(model), rho=0.5)
    before = flat(model)
    optimizer.ascend(lambda: loss_of(model))
    once = flat(model)
    optimizer.ascend(lambda: loss_of(model))
    assert torch.equal(flat(model), once)
    optimizer.state_dict()  # never saves displaced weights
    assert torch.equal(flat(model), before)


def test_a_bare_step_is_the_base_step():
    model, plain = net(), net()
    optimizer, base = LookSAM(sgd(model)), sgd(plain)
    for m, o in ((model, optimizer), (plain, base)):
        loss_of(m).backward()
        o.step()
    assert torch.equal(flat(model), flat(plain))


def test_accumulation_and_clipping_between_the_phases():
    model, reference = net(), net()
    for m in (model, reference):
        m[1] = nn.Identity()  # BatchNorm would see other batches
    optimizer, whole = ZOSAM(sgd(model), rho=0.5), ZOSAM(sgd(reference), rho=0.5)
    optimizer.ascend(lambda: loss_of(model))
    for part in (slice(0, 8), slice(8, 16)):
        (loss_of(model, part) / 2).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e3)
    optimizer.step()
    whole.step(lambda: loss_of(reference))
    torch.testing.assert_close(flat(model), flat(reference))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_gradscaler_unscales_and_restores_on_skipped_steps(name):
    model, plain = net(), net()
    optimizer, reference = (made(name, sgd(m), rho=0.3) for m in (model, plain))
    reduction = "none" if optimizer.per_sample else "mean"
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def loss(m, keep=slice(None)):
        return F.cross_entropy(m(X[keep]), Y[keep], reduction=reduction)

    for bad in (False, True, False):
        before = flat(model)
        keep = optimizer.ascend(functools.partial(loss, model))
        value = loss(model, slice(None) if keep is None else keep).mean()
        scaler.scale(value * torch.inf if bad else value).backward()
        scaler.step(optimizer)
        scaler.update()
        if bad:
            assert torch.equal(flat(model), before)
        else:
            reference.step(functools.partial(loss, plain))
            torch.testing.assert_close(flat(model), flat(plain), rtol=1e-4, atol=1e-5)


def test_displacements_nest():
    model = net()
    optimizer = SAM(sgd(model), rho=0.5)
    before, u = flat(model), torch.ones(len(optimizer.active))
    with optimizer.displaced(u):
        once = flat(model)
        with optimizer.displaced(u):
            assert not torch.equal(flat(model), once)
        assert torch.equal(flat(model), once)
    assert torch.equal(flat(model), before)
    assert not optimizer.is_displaced


def test_a_second_displacement_of_a_step_sees_what_was_written_since_the_first():
    model, found = net(), []

    class Twice(SAM):
        def climb(self, closure):
            u = torch.ones(len(self.active))
            for _ in range(2):
                with self.displaced(u, by=0.5):
                    found.append(flat(model))
                next(model.parameters()).add_(1)

    before, first = flat(model), next(model.parameters()).numel()
    Twice(torch.optim.SGD(model.parameters(), lr=0.0)).step(lambda: loss_of(model))
    assert torch.equal(found[0], before + 0.5)
    before[:first] += 1
    assert torch.equal(found[1], before + 0.5)


def test_going_on_starts_from_home_and_keeps_what_was_written_in_between():
    model = net()
    optimizer = SAM(sgd(model))
    home, first = flat(model), next(model.parameters())
    space, u = optimizer.active, torch.randn(len(home), generator=torch.Generator().manual_seed(1))
    away = optimizer._perturbation
    away.move_to(space, u * 0.3)
    assert torch.equal(flat(model), home + u * 0.3)
    away.move_to(space, u * -0.3)
    assert torch.equal(flat(model), home - u * 0.3)
    with torch.no_grad():
        first.fill_(7.0)
    away.move_to(space, u)
    assert torch.equal(flat(model)[first.numel() :], (home + u)[first.numel() :])
    away.restore()
    assert (first == 7.0).all()
    assert torch.equal(flat(model)[first.numel() :], home[first.numel() :])


def test_restore_leaves_what_somebody_else_has_written():
    model = net()
    good = {k: v + 1 for k, v in model.state_dict().items()}
    optimizer = SAM(sgd(model), rho=0.5)
    optimizer.ascend(lambda: loss_of(model))
    model.load_state_dict(good)
    optimizer.restore()
    assert all(torch.equal(v, good[k]) for k, v in model.state_dict().items())


def test_restore_finds_weights_that_have_moved():
    model = nn.Conv2d(3, 4, 3)
    optimizer = SAM(sgd(model), rho=0.5)
    before = model.weight.detach().clone()
    optimizer.ascend(lambda: model(torch.ones(1, 3, 5, 5)).sum())
    model.to(memory_format=torch.channels_last)
    optimizer.restore()
    assert torch.equal(model.weight, before)


def test_an_ascent_that_was_given_up_leaves_the_gradient_alone():
    for name in ("gsam", "looksam"):
        model, plain = net(), net()
        optimizer, base = OPTIMIZERS[name](sgd(model), rho=0.5), sgd(plain)
        optimizer.ascend(lambda model=model: loss_of(model))
        optimizer.restore()
        loss_of(model).backward()
        optimizer.step()
        loss_of(plain).backward()
        base.step()
        assert torch.equal(flat(model), flat(plain))


def test_a_probe_that_overflows_is_refused_in_both_forms():
    model = net()
    optimizer = ZOSAM(sgd(model), rho=0.5)
    before, calls = flat(model), []

    def closure():
        calls.append(1)
        return loss_of(model) * (torch.inf if len(calls) % 2 else 1)

    for use in (optimizer.ascend, optimizer.step):
        with pytest.raises(FloatingPointError, match="not taken"):
            use(closure)
        assert torch.equal(flat(model), before)


def test_a_second_wrapper_has_its_own_rho_and_none_wraps_another():
    base = sgd(net())
    Unperturbed(base)
    assert ZOSAM(base, rho=0.5).rhos() == [0.5]
    with pytest.raises(TypeError, match="wraps an optimizer"):
        SAM(SAM(base))
    with pytest.raises(ValueError, match="rho must be"):
        SAM(base).add_param_group({"params": [nn.Parameter(torch.ones(1))], "rho": -1})
    assert len(base.param_groups) == 1


def test_memory_does_not_depend_on_the_layout():
    def conv(memory_format):
        torch.manual_seed(0)
        return nn.Conv2d(3, 4, 3).to(memory_format=memory_format)

    one, other = conv(torch.channels_last), conv(torch.contiguous_format)
    a, b = (OPTIMIZERS["s2sam"](sgd(m)) for m in (one, other))
    a.step(lambda: (one(torch.arange(75.0).view(1, 3, 5, 5)) ** 2).mean())
    b.load_state_dict(a.state_dict())
    grads = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in other.parameters()]
    b.active.scatter(b.recall("gradient"), grads)
    for g, p in zip(grads, one.parameters(), strict=True):
        torch.testing.assert_close(g, p.grad)


def test_a_layer_that_joins_later_is_watched():
    model, late = net(), nn.BatchNorm1d(3)
    optimizer, use = SAM(sgd(model)), []

    def closure():
        return F.cross_entropy(late(model(X)) if use else model(X), Y)

    optimizer.step(closure)
    use.append(1)
    optimizer.step(closure)
    assert late.num_batches_tracked == 1


# --- groups, dtypes, layouts ----------------------------------------------------------------------------------------


def displacement(optimizer, model, closure):
    """Each parameter's way from home to the point where the gradient is taken."""
    home = [p.detach().clone() for p in model.parameters()]
    optimizer.ascend(closure)
    away = [(p.detach() - h) for p, h in zip(model.parameters(), home, strict=True)]
    optimizer.restore()
    return away


@pytest.mark.parametrize("name", ["sam", "zosam", "randomsam"])
def test_groups_have_their_own_rho_and_can_be_left_out(name):
    model = net()
    groups = [
        {"params": [model[0].weight], "rho": 0.4},
        {"params": [model[3].weight], "rho": 0.1},
        {"params": [model[0].bias, model[3].bias, *model[1].parameters()], "perturb": False},
    ]
    optimizer = OPTIMIZERS[name](torch.optim.SGD(groups, lr=0.1), rho=9.0)
    away = dict(
        zip(
            (n for n, _ in model.named_parameters()),
            displacement(optimizer, model, lambda: loss_of(model)),
            strict=True,
        )
    )
    unscaled = torch.cat([away["0.weight"].flatten() / 0.4, away["3.weight"].flatten() / 0.1])
    assert unscaled.norm() == pytest.approx(1.0, rel=1e-4)  # the norm is over what is perturbed
    assert all(not away[n].any() for n in away if n not in {"0.weight", "3.weight"})


def test_a_group_added_later_is_adopted():
    model = net()
    optimizer = SAM(torch.optim.SGD([model[0].weight], lr=0.1), rho=0.3)
    optimizer.add_param_group({"params": [model[3].weight], "lr": 0.2})
    assert optimizer.rhos() == [0.3, 0.3]
    optimizer.step(lambda: loss_of(model))
    optimizer.base.add_param_group({"params": [model[3].bias], "perturb": True, "rho": 0.1})
    before = model[3].bias.detach().clone()
    optimizer.step(lambda: loss_of(model))
    assert not torch.equal(model[3].bias, before)


def test_frozen_and_unused_parameters_are_left_where_they_are():
    model = net()
    model[0].weight.requires_grad_(False)
    unused = nn.Parameter(torch.ones(3))
    for name in OPTIMIZERS:
        optimizer = made(name, torch.optim.SGD([*model.parameters(), unused], lr=0.1, momentum=0.9), rho=0.3)
        frozen = model[0].weight.detach().clone()
        reduction = "none" if optimizer.per_sample else "mean"
        optimizer.zero_grad()
        for _ in range(3):
            optimizer.step(lambda keep=slice(None), r=reduction: F.cross_entropy(model(X[keep]), Y[keep], reduction=r))
        assert torch.equal(model[0].weight, frozen)
        assert torch.equal(unused, torch.ones(3))
        assert unused.grad is None


def test_tied_weights_are_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    model = Tied()
    for make in (SAM, ZOSAM):
        away = displacement(make(sgd(model), rho=0.3), model, lambda: model(torch.ones(2, 4)).square().mean())
        assert torch.cat([a.flatten() for a in away]).norm() == pytest.approx(0.3, rel=1e-4)


def test_channels_last_weights_take_the_same_sam_steps():
    def train(memory_format):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)).to(memory_format=memory_format)
        optimizer = SAM(sgd(model), rho=0.3)
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(memory_format=memory_format)
        for _ in range(4):
            optimizer.step(lambda: model(x).square().mean())
        return flat(model)

    torch.testing.assert_close(train(torch.channels_last), train(torch.contiguous_format))


@given(
    shapes=st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=4),
    dtypes=st.lists(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), min_size=4, max_size=4),
    density=st.floats(0, 1),
    name=st.sampled_from(sorted(n for n in OPTIMIZERS if n != "esam")),
    last=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_shapes_dtypes_and_masks(shapes, dtypes, density, name, last):
    params = []
    for shape, dtype in zip(shapes, dtypes, strict=False):
        p = torch.randn(shape).to(dtype)
        if last and p.dim() == 4:
            p = p.to(memory_format=torch.channels_last)
        params.append(nn.Parameter(p))
    optimizer = made(name, torch.optim.SGD(params, lr=0.1, momentum=0.9), rho=0.1)
    for p in params:
        mask = torch.rand(p.shape) < density
        with torch.no_grad():
            p.mul_(mask)
        set_mask(p, mask)

    def closure():
        for p in params:
            assert (p.detach()[~mask_of(p)] == 0).all()
        return sum((p.float() - 0.3).square().sum() for p in params)

    home = [p.detach().clone() for p in params]
    optimizer.ascend(closure)
    optimizer.restore()
    assert all(torch.equal(p, h) for p, h in zip(params, home, strict=True))
    for _ in range(2):
        optimizer.step(closure)
        with torch.no_grad():
            for p in params:
                p.mul_(mask_of(p))


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20), st.sampled_from([1.0, 1e-30, 1e-8, 1e7]))
@settings(max_examples=100, deadline=None)
def test_unit_vectors_are_one_long(values, scale):
    v = torch.tensor(values, dtype=torch.float32) * scale
    length = ActiveWeights([nn.Parameter(v)]).unit(v).double().norm().item()
    assert length == pytest.approx(1.0, rel=1e-4) or not v.any()


# --- the closure ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (lambda loss: None, TypeError, "returned NoneType"),
        (lambda loss: loss.item(), TypeError, "returned float"),
        (lambda loss: torch.stack([loss, loss]), ValueError, "one number"),
    ],
)
@pytest.mark.parametrize("name", ["sgd", "sam", "zosam"])
def test_a_closure_must_return_the_loss(name, result, error, message):
    model = net()
    optimizer = OPTIMIZERS[name](sgd(model))
    before = flat(model)
    with pytest.raises(error, match=message):
        optimizer.step(lambda: result(loss_of(model)))
    assert torch.equal(flat(model), before)


def test_esam_says_that_it_needs_a_loss_per_sample():
    model = net()
    with pytest.raises(ValueError, match="one loss per sample"):
        OPTIMIZERS["esam"](sgd(model)).step(lambda keep=slice(None): loss_of(model, keep))


def test_a_partial_and_a_callable_object_are_closures_too():
    class Loss:
        def __call__(self):
            return loss_of(model)

    model, twin = net(), net()
    one, other = ZOSAM(sgd(model)), ZOSAM(sgd(twin))
    for _ in range(3):
        one.step(Loss())
        other.step(functools.partial(loss_of, twin))
    assert torch.equal(flat(model), flat(twin))


def test_a_model_first_run_in_eval_mode_is_watched_all_the_same():
    model = net().eval()
    optimizer = ZOSAM(sgd(model))

    def closure():
        return loss_of(model)

    optimizer.step(closure)
    model.train()
    optimizer.step(closure)
    assert model[1].num_batches_tracked == 1


def test_evaluate_changes_nothing_in_the_model():
    model = nn.Sequential(net(), nn.Dropout(0.5))
    optimizer = SAM(sgd(model))
    loss_of(model).backward()
    grads = [p.grad.clone() for p in model.parameters()]
    state, stream = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    assert optimizer.evaluate(closure) == optimizer.evaluate(closure)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert torch.equal(torch.get_rng_state(), stream)


def test_backward_is_silenced_in_one_thread_only_and_comes_back():
    usual = torch.Tensor.backward
    w = torch.ones(3, requires_grad=True)

    def elsewhere():
        v = torch.ones(3, requires_grad=True)
        with NoBackward():
            v.sum().backward()
        quiet = v.grad
        v.sum().backward()
        return quiet, v.grad

    with suppress(KeyError), NoBackward():
        with NoBackward():
            w.sum().backward()
        w.sum().backward()
        with ThreadPoolExecutor(1) as pool:
            quiet, loud = pool.submit(elsewhere).result()
        raise KeyError
    assert quiet is None
    assert torch.equal(loud, torch.ones(3))
    assert w.grad is None
    assert torch.Tensor.backward is usual
    w.sum().backward()
    assert torch.equal(w.grad, torch.ones(3))


def test_bf16_autocast_in_the_closure():
    model = net()
    optimizer = ZOSAM(sgd(model), rho=0.5)

    def closure():
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(X)
        return F.cross_entropy(logits.float(), Y)

    first = [optimizer.step(closure).item() for _ in range(30)]
    assert first[-1] < first[0]
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_autocast_around_the_step_is_the_same_as_inside_the_closure(name):
    """Autocast keeps the weights it has rounded until it ends; a pass must not see those of the pass before."""

    def trained(around):
        model = net()
        optimizer, per_sample = made(name, sgd(model), rho=0.5), OPTIMIZERS[name].per_sample

        def closure(keep=slice(None)):
            with nullcontext() if around else torch.autocast("cpu", torch.bfloat16):
                logits = model(X[keep])
            return F.cross_entropy(logits.float(), Y[keep], reduction="none" if per_sample else "mean")

        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16) if around else nullcontext():
                optimizer.step(closure)
        return model

    for a, b in zip(trained(True).parameters(), trained(False).parameters(), strict=True):
        assert torch.equal(a, b)


def test_autocast_around_a_loop_in_two_phases():
    def trained(around):
        model = net()
        optimizer = SAM(sgd(model), rho=0.5)

        def loss():
            with nullcontext() if around else torch.autocast("cpu", torch.bfloat16):
                logits = model(X)
            return F.cross_entropy(logits.float(), Y)

        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16) if around else nullcontext():
                optimizer.ascend(loss)
                loss().backward()
                optimizer.step()
        return model

    for a, b in zip(trained(True).parameters(), trained(False).parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["sam", "zosam"])
def test_compiled_models_train_as_eager_ones(name):
    model, eager = net(), net()
    compiled = torch.compile(model, backend="aot_eager")
    a, b = OPTIMIZERS[name](sgd(model), rho=0.3), OPTIMIZERS[name](sgd(eager), rho=0.3)
    for _ in range(4):
        a.step(lambda: loss_of(compiled))
        b.step(lambda: loss_of(eager))
    torch.testing.assert_close(flat(model), flat(eager), rtol=1e-4, atol=1e-5)
    assert model[1].num_batches_tracked == 4


# --- bad input ------------------------------------------------------------------------------------------------------


def test_rho_below_zero_and_a_base_that_is_no_optimizer_are_refused():
    model = net()
    with pytest.raises(ValueError, match="rho must be a number, 0 or more"):
        SAM(sgd(model), rho=-0.1)
    with pytest.raises(ValueError, match="rho must be a number, 0 or more"):
        SAM(sgd(model), rho=float("nan"))
    with pytest.raises(TypeError, match="wraps an optimizer"):
        SAM(model.parameters())


def test_settings_out_of_range_are_refused():
    base = sgd(net())
    for make, wrong in ((LookSAM, {"k": 0}), (OPTIMIZERS["esam"], {"beta": 0}), (OPTIMIZERS["asam"], {"eta": -1})):
        with pytest.raises(ValueError, match="must be"):
            make(base, **wrong)


def test_a_method_that_says_nothing_is_told_so():
    with pytest.raises(NotImplementedError, match="where to climb"):
        SharpnessAware(sgd(net())).step(lambda: torch.zeros(()))


# --- diagnostics and schedules --------------------------------------------------------------------------------------


def test_diagnostics_of_a_step():
    model = net()
    sam, zo = SAM(sgd(model), rho=0.1), ZOSAM(sgd(net()), rho=0.1)
    sam.diagnostics, zo.diagnostics = {}, {}
    size = flat(model).norm().item()
    sam.step(lambda: loss_of(model))
    assert sam.diagnostics["relative_length"] == pytest.approx(0.1 / size, rel=1e-3)
    assert sam.diagnostics["loss_rise"] > 0
    assert 0.5 < sam.diagnostics["cosine"] <= 1
    twin = net()
    zo = ZOSAM(sgd(twin), rho=0.1)
    zo.diagnostics = {}
    zo.step(lambda: loss_of(twin))
    assert {"loss_up", "loss_down", "cosine", "relative_length"} <= zo.diagnostics.keys()


def test_diagnostics_are_those_of_the_last_step():
    model = net()
    sam = SAM(sgd(model), rho=0.1)
    sam.diagnostics = {}
    sam.step(lambda: loss_of(model))
    assert "cosine" in sam.diagnostics
    for group in sam.param_groups:
        group["rho"] = 0.0  # a step that does not climb has no cosine: that of the step before must not stay
    sam.step(lambda: loss_of(model))
    assert "cosine" not in sam.diagnostics
    assert sam.diagnostics["backward_passes"] == 1


def test_schedules_at_given_steps():
    linear, cosine = schedules.Linear(0.1, 0.5, 10), schedules.Cosine(0.1, 0.5, 10)
    assert [linear(t, 0.0) for t in (0, 5, 10, 99)] == pytest.approx([0.1, 0.3, 0.5, 0.5])
    assert [cosine(t, 0.0) for t in (0, 5, 10, 99)] == pytest.approx([0.1, 0.3, 0.5, 0.5])
    follow = schedules.Proportional(rho_max=0.6, lr_max=1.0, rho_min=0.1, lr_min=0.0)
    assert [follow(0, lr) for lr in (1.0, 0.5, 0.0)] == pytest.approx([0.6, 0.35, 0.1])


def test_rho_follows_the_learning_rate():
    model = net()
    optimizer = SAM(sgd(model), rho=schedules.Proportional(rho_max=0.4, lr_max=0.1))
    optimizer.step(lambda: loss_of(model))
    assert optimizer.rhos() == pytest.approx([0.4])
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.step(lambda: loss_of(model))
    assert optimizer.rhos() == pytest.approx([0.2])


def test_sgd_costs_one_pass():
    assert Unperturbed(sgd(net())).passes_per_step() == {"forward": 1.0, "backward": 1.0}
