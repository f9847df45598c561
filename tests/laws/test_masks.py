"""Laws of the masks: pruned weights are zero, budgets are exact, grown weights start clean."""

from __future__ import annotations

import pytest
import torch

from zosam.sparse.updates import Periodic


def pruned_are_zero(t):
    return all(bool((w.detach()[~t.sparse.masks[n]] == 0).all()) for n, w in t.sparse.weights.items())


@pytest.mark.parametrize(("base", "sparse_first"), [("sgd", False), ("adamw", True)])
def test_pruned_weights_are_zero_before_during_and_after(trial, optimizer_name, sparse_method, base, sparse_first):
    """Whichever of optimizer and method was made first."""
    t = trial(optimizer_name, sparse_method, base=base, sparse_first=sparse_first)
    assert pruned_are_zero(t)

    def closure(keep=slice(None)):
        assert pruned_are_zero(t)
        return t.loss(keep)

    for _ in range(4):
        t.optimizer.step(closure)
        assert pruned_are_zero(t)


def test_the_order_of_making_them_does_not_matter(trial, same, optimizer_name, sparse_method):
    one, other = (trial(optimizer_name, sparse_method, sparse_first=first) for first in (False, True))
    one.step(4)
    other.step(4)
    assert same(one.snapshot(), other.snapshot())


def active(t):
    return sum(int(m.sum()) for m in t.sparse.masks.values())


def target(t):
    """What the masked layers may keep in the end, worked out from the sizes alone."""
    masked, dense = (sum(w.numel() for w in ws.values()) for ws in (t.sparse.weights, t.sparse.kept_dense))
    keeps = 1 - t.sparsity
    return round(keeps * masked) if t.sparse.over == "masked" else round(keeps * (masked + dense)) - dense


SCHEDULED = {
    "gmp": {"steps": 5, "until": 1.0},
    "lth": {"steps": 3, "rewind": 1, "levels": 2},
    "mest": {"soft": True, "steps": 5, "until": 1.0, "extra": 0.5},
}


def test_the_budget_is_exact_all_the_time(trial, optimizer_name, sparse_method):
    ways = [({}, 4)] + ([(SCHEDULED[sparse_method], 8)] if sparse_method in SCHEDULED else [])
    for settings, steps in ways:
        t = trial(optimizer_name, sparse_method, method_settings=settings)
        assert t.sparse.n_active == target(t)
        for _ in range(steps):
            assert active(t) == t.sparse.expected_active()
            t.step()
        dense = sum(w.numel() for w in t.sparse.kept_dense.values())
        total = dense + sum(w.numel() for w in t.sparse.weights.values())
        assert t.sparse.sparsity == pytest.approx(1 - (active(t) + dense) / total)
    assert active(t) == target(t)  # whatever the way there


@pytest.mark.parametrize("base", ["sgd", "adamw", "adam_amsgrad"])
def test_grown_weights_start_at_zero_with_clean_state(trial, sparse_method, base):
    t = trial("zosam", sparse_method, base=base)
    before = {n: m.clone() for n, m in t.sparse.masks.items()}
    checked = []

    def look(*_):  # after the sparse method's hook, before the base moves anything
        for n, w in t.sparse.weights.items():
            grown = t.sparse.masks[n] & ~before[n]
            checked.append(int(grown.sum()))
            before[n] = t.sparse.masks[n].clone()
            if t.sparse.revives:
                continue
            assert (w.detach()[grown] == 0).all()
            for state in t.sparse.optimizer.state[w].values():
                if isinstance(state, torch.Tensor) and state.shape == w.shape and not t.sparse.dense_gradients:
                    assert (state[grown] == 0).all()

    t.sparse.optimizer.register_step_pre_hook(look)
    t.step(5)
    assert len(checked) == 5 * len(t.sparse.weights)
    moves = isinstance(t.sparse, Periodic) and sparse_method != "gmp"
    assert any(checked) == moves


def test_nobody_depends_on_a_gradient_that_sparse_kernels_do_not_compute(trial, same, optimizer_name, sparse_method):
    """Garbage in the gradient of pruned weights changes nothing, unless the method has asked for it."""
    clean, spoiled = trial(optimizer_name, sparse_method), trial(optimizer_name, sparse_method)
    for name, weight in spoiled.sparse.weights.items():

        def spoil(gradient, name=name):
            pruned = ~spoiled.sparse.masks[name]
            return gradient if spoiled.sparse.needs_dense_gradient() else gradient + 7.0 * pruned

        weight.register_hook(spoil)
    clean.step(4)
    spoiled.step(4)
    assert same(clean.snapshot(), spoiled.snapshot())


def test_an_active_weight_that_is_zero_stays_active(trial, sparse_method):
    t = trial("sgd", sparse_method, method_settings={"every": 1000})
    with torch.no_grad():
        for w in t.sparse.weights.values():
            w.zero_()
    masks = {n: m.clone() for n, m in t.sparse.masks.items()}
    t.sparse.steps = 1
    t.step()
    assert all(torch.equal(masks[n], m) for n, m in t.sparse.masks.items())


def test_a_plain_torch_loop_with_a_closure_sees_this_steps_gradient(trial, same, sparse_method):
    by_hand, by_closure = trial(method=sparse_method, bare=True), trial(method=sparse_method, bare=True)
    by_hand.step(5)
    torch.manual_seed(7)
    by_closure.torch_form = True
    for _ in range(5):
        by_closure.optimizer.step(by_closure.closure)
    assert same(by_hand.snapshot(), by_closure.snapshot())
    assert pruned_are_zero(by_closure)
