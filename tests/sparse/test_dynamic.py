"""SET, RigL, SViTE and MEST on layers small enough to check by eye."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zosam.names import fitting
from zosam.optim import OPTIMIZERS
from zosam.sparse import MEST, SET, RigL, SViTE

from .toy import largest, layers, masks, put, sgd, step

WEIGHT = [[0.5, -0.1, 0.3, -0.9], [0.2, 0.05, -0.4, 0.7]]
MASK = [[1, 1, 1, 0], [1, 1, 0, 0]]  # active: .5 -.1 .3 .2 .05
GRADIENT = [[0.1, 0.2, 0.3, -0.8], [0.0, 0.9, 0.6, -0.7]]


def made(cls, lr=0.0, momentum=0.0, **settings):
    model = layers(WEIGHT)
    sparse = cls(
        model, sgd(model, lr, momentum=momentum), 0.375, **{"every": 10, "dense": (), "steps": 10**12} | settings
    )
    put(sparse, [MASK], [WEIGHT], steps=10)
    return sparse


@pytest.mark.parametrize(
    ("step_", "until", "share"), [(0, 1.0, 0.3), (50, 1.0, 0.15), (75, 1.0, 0.0439), (50, 0.5, 0.0)]
)
def test_the_share_follows_half_a_cosine(step_, until, share):
    sparse = made(SET, steps=100, until=until)
    sparse.steps = step_
    assert sparse.fraction() == pytest.approx(share, abs=1e-4)


def test_updates_come_every_so_many_steps_and_end():
    found = {}
    for cls in (SET, RigL, SViTE, MEST):
        sparse = made(cls, every=3, steps=10, until=1.0)
        found[cls.__name__] = [s for s in range(15) if setattr(sparse, "steps", s) or sparse.due()]
    assert found == {"SET": [3, 6, 9], "RigL": [0, 3, 6, 9], "SViTE": [3, 6, 9], "MEST": [0, 3, 6, 9]}


def test_rigl_drops_the_smallest_and_grows_the_largest_gradient():
    sparse = made(RigL, drop_fraction=0.4)  # int(0.4 * 5) = 2: drop .05 and -.1
    step(sparse, [GRADIENT])
    # gradients of what is not kept: .2 (dropped), -.8, .9 (dropped), .6, -.7; so .05 stays after all, -.8 comes in
    assert masks(sparse)[0].tolist() == [[True, False, True, True], [True, True, False, False]]
    expected = torch.tensor([[0.5, 0.0, 0.3, 0.0], [0.2, 0.05, 0.0, 0.0]])  # .05 keeps its value, the grown one is 0
    assert torch.equal(sparse.weights["0.weight"].detach(), expected)


def test_rigl_with_all_candidates_is_rigl():
    ends = []
    for share in (None, 1.0):
        sparse = made(RigL, drop_fraction=0.4, candidates=share)
        step(sparse, [GRADIENT])
        ends.append(masks(sparse)[0])
    assert np.array_equal(*ends)


def test_rigl_grows_among_candidates_and_what_was_dropped():
    """By the dense rule applied to a gradient that is known there alone."""
    torch.manual_seed(0)
    weight, gradient = torch.randn(20, 30), torch.randn(20, 30)
    chosen = set()
    for seed in range(4):
        sparse = RigL(model := layers(weight.tolist()), sgd(model), 0.8, steps=100, candidates=0.25, seed=seed)
        before, wanted = masks(sparse)[0].copy(), sparse.gradient_wanted("0.weight").numpy().copy()
        assert (wanted & before == before).all()
        assert wanted.sum() == before.sum() + math.ceil(0.25 * (~before).sum())
        active = before.sum()
        keep = active - int(0.3 * active)
        kept = largest(np.where(before, weight.abs().numpy(), -1), keep)
        score = np.where(kept, np.inf, np.where(wanted, gradient.abs().numpy(), -1))
        step(sparse, [gradient])
        assert np.array_equal(masks(sparse)[0], largest(score, active))
        chosen.add(wanted.tobytes())
    assert len(chosen) == 4  # by lot


@pytest.mark.parametrize("wrong", [{"candidates": 0.0}, {"candidates": 1.5}, {"candidates": 0.5, "pattern": "block:2"}])
def test_candidates_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError, match="candidates"):
        made(RigL, **wrong)


def test_rigl_takes_no_step_at_an_update_and_svite_does():
    for cls, moved in ((RigL, False), (SViTE, True)):
        sparse = made(cls, lr=0.1, drop_fraction=0.4)
        step(sparse, [GRADIENT])
        weight = sparse.weights["0.weight"].detach()
        assert weight[0, 0].item() == pytest.approx(0.5 - 0.1 * 0.1 * moved)
        assert weight[0, 3].item() == 0  # grown, and not moved yet
        step(sparse, [GRADIENT])
        assert sparse.weights["0.weight"][0, 0].item() < 0.5  # both step otherwise
        assert weight[0, 3].item() == pytest.approx(-0.1 * np.array(GRADIENT)[0, 3])


def test_svite_is_a_preset_of_rigl():
    model = layers(WEIGHT)
    sparse = SViTE(model, sgd(model), 0.375, steps=1_500_000)
    assert (sparse.every, sparse.drop_fraction, sparse.end) == (15_000, 0.5, 1_200_000)
    assert sparse.fraction() == 0.5


def test_set_keeps_the_largest_and_grows_by_lot():
    hits = np.zeros((2, 4))
    kept = largest(np.abs(WEIGHT) * np.array(MASK), 3)  # int(0.5 * 5) = 2 dropped
    for seed in range(150):
        sparse = made(SET, drop_fraction=0.5, seed=seed)
        step(sparse, [GRADIENT])
        mask = masks(sparse)[0]
        assert mask.sum() == 5
        assert mask[kept].all()
        hits += mask
    assert hits[~kept] / 150 == pytest.approx(0.4, abs=0.16)  # 2 of 5 places, each as likely, the dropped ones too


def test_momentum_survives_where_weights_do_and_is_clean_where_they_grow():
    sparse = made(RigL, lr=0.1, momentum=0.9, drop_fraction=0.4)
    sparse.steps = 1
    step(sparse, [GRADIENT])
    sparse.steps = 10
    step(sparse, [GRADIENT])
    buffer = sparse.optimizer.state[sparse.weights["0.weight"]]["momentum_buffer"]
    lasting = np.array(MASK, dtype=bool) & masks(sparse)[0]
    np.testing.assert_allclose(buffer.numpy(), np.array(GRADIENT) * lasting, rtol=1e-6)


def test_mest_starts_from_the_largest_weights():
    model = layers(WEIGHT)
    sparse = MEST(model, sgd(model), 0.5, dense=(), steps=1000)
    np.testing.assert_array_equal(masks(sparse)[0], largest(np.abs(WEIGHT), 4))


@pytest.mark.parametrize("lam", [0.0, 0.1, 10.0])
def test_mest_scores_by_weight_and_gradient_of_what_is_active(lam):
    score = np.abs(WEIGHT) + lam * np.abs(GRADIENT)
    score[~np.array(MASK, dtype=bool)] = -1
    kept = largest(score, 3)
    always = np.ones((2, 4), dtype=bool)
    for seed in range(40):
        sparse = made(MEST, drop_fraction=0.4, lam=lam, seed=seed)
        step(sparse, [GRADIENT])
        always &= masks(sparse)[0]
        assert masks(sparse)[0].sum() == 5
    np.testing.assert_array_equal(always, kept)  # what is there under every seed is what was kept, not grown


def test_lam_really_changes_the_choice():
    scores = [np.abs(WEIGHT) + lam * np.abs(GRADIENT) for lam in (0.0, 10.0)]
    active = np.array(MASK, dtype=bool)
    assert (largest(np.where(active, scores[0], -1), 3) != largest(np.where(active, scores[1], -1), 3)).any()


def test_mest_calms_down_in_two_stages():
    sparse = made(MEST, steps=160)
    shares = {}
    for sparse.steps in (0, 89, 90, 119, 120, 160):
        shares[sparse.steps] = sparse.fraction()
    assert shares == {0: 0.2, 89: 0.2, 90: 0.1, 119: 0.1, 120: 0.0, 160: 0.0}


def test_mest_soft_trains_denser_and_ends_at_the_target():
    """At 90 %, 0.5 more: 85 %, then 87.5 %, then 90 %, as in the published scripts."""
    model = torch.nn.Sequential(torch.nn.Linear(40, 50, bias=False))
    sparse = MEST(model, sgd(model, 0.01), 0.9, dense=(), soft=True, extra=0.5, every=4, steps=16, until=1.0)
    counts = {}
    for i in range(20):
        step(sparse, [np.ones((50, 40))])
        counts[i] = int(masks(sparse)[0].sum())
        assert counts[i] == sparse.expected_active()
    assert [counts[i] for i in (0, 4, 11, 12, 15, 16, 19)] == [300, 300, 300, 250, 250, 200, 200]


@pytest.mark.parametrize(("sparsity", "extra"), [(0.9, 0.5), (0.95, 1.0), (0.98, 2.5)])
def test_mest_soft_trains_five_points_denser_unless_told(sparsity, extra):
    """As the published profiles do: 85 % for 90 %, 90 % for 95 %, 93 % for 98 %."""
    model = torch.nn.Sequential(torch.nn.Linear(40, 50, bias=False))
    sparse = MEST(model, sgd(model, 0.01), sparsity, dense=(), soft=True, every=4, steps=100)
    step(sparse, [np.ones((50, 40))])
    assert int(masks(sparse)[0].sum()) == round((1 - sparsity) * (1 + extra) * 2000)


@pytest.mark.parametrize("name", ["sam", "zosam", "sgd"])
def test_the_growth_gradient_at_theta(name):
    """Under SAM it is that of the first pass; plain SGD has no other; ZO-SAM has none."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 5, bias=False)
    x, y = torch.randn(8, 6), torch.randn(8, 5)
    base = sgd(model, 0.1)  # RigL cannot know what will be wrapped around it
    sparse = RigL(model, base, 0.6, growth_gradient="theta", drop_fraction=0.5, steps=1000)
    optimizer = OPTIMIZERS[name](base, **fitting(OPTIMIZERS[name], rho=5.0))
    before = {n: m.clone() for n, m in sparse.masks.items()}

    def loss():
        return ((model(x) - y) ** 4).mean()

    gradient = torch.autograd.grad(loss(), model.weight)[0]
    weight = model.weight.detach().clone()
    if name == "zosam":
        with pytest.raises(ValueError, match="at theta"):
            optimizer.step(loss)
        assert torch.equal(model.weight, weight)
        return
    optimizer.step(loss)
    kept = largest(np.where(before["weight"], weight.abs().numpy(), -1), 6)
    expected = largest(np.where(kept, np.inf, gradient.abs().numpy()), 12)
    np.testing.assert_array_equal(masks(sparse)[0], expected)


@pytest.mark.parametrize("cls", [RigL, SViTE, MEST])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_refused_and_nothing_changes(cls, bad):
    sparse = made(cls, lr=0.1, drop_fraction=0.4, **({"lam": 1.0} if cls is MEST else {}))
    weight, state = sparse.weights["0.weight"].detach().clone(), sparse.state_dict()
    spoiled = np.array(GRADIENT)
    spoiled[0, 0] = bad
    with pytest.raises(FloatingPointError, match=r"0\.weight are not finite"):
        step(sparse, [spoiled])
    assert torch.equal(sparse.weights["0.weight"], weight)
    assert sparse.steps == state["steps"]
    assert all(torch.equal(m, state["masks"][n]) for n, m in sparse.masks.items())
    step(sparse, [GRADIENT])  # and training goes on
