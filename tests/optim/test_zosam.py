"""ZO-SAM: the estimator's statistics, and what each option changes."""

from __future__ import annotations

import gc
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.optim import (
    SAM,
    ZOSAM,
    Central,
    Coordinates,
    Gaussian,
    LastGradient,
    Momentum,
    Pair,
    Rademacher,
    Subspace,
    Worst,
)
from zosam.optim.masked import set_mask


class Linear:
    """A loss with a known gradient: L = g · w."""

    def __init__(self, size=50, **settings):
        self.g = torch.randn(size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.optimizer = ZOSAM(torch.optim.SGD([self.w], lr=0.0), rho=1e-2, **settings)

    def closure(self, keep=slice(None)):
        return self.g @ self.w

    def estimates(self, n):
        found = []
        for _ in range(n):
            found.append(self.optimizer.estimate(self.closure))
            self.optimizer.steps += 1
        return torch.stack(found)


@pytest.mark.parametrize("kind", [Gaussian, Rademacher])
@pytest.mark.parametrize("directions", [1, 4])
def test_the_estimate_is_unbiased(kind, directions):
    problem = Linear(probe=kind(directions))
    n = 300
    error = problem.estimates(n).mean(0) - problem.g
    # E‖ĝ − g‖² = (k + 1)/m ‖g‖² at most, so the mean of n is within a few of its standard deviations
    assert error.norm() < 1.3 * problem.g.norm() * math.sqrt(51 / directions / n)


@pytest.mark.parametrize("m", [1, 4, 16])
def test_the_cosine_with_the_gradient_follows_the_number_of_directions(m):
    problem = Linear(size=200, probe=Gaussian(m))
    cosines = F.cosine_similarity(problem.estimates(150), problem.g.expand(150, -1))
    assert cosines.square().mean().sqrt() == pytest.approx(math.sqrt(m / (200 + m + 1)), rel=0.2)
    assert (cosines > 0).all()  # the sign is always right for a linear loss


def test_coordinates_give_the_gradient_itself():
    problem = Linear(probe=Coordinates())
    torch.testing.assert_close(problem.estimates(1)[0], problem.g)


def test_groups_with_their_own_rho_get_the_same_estimate():
    g = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    a, b = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(2))
    base = torch.optim.SGD([{"params": [a], "rho": 1e-3}, {"params": [b], "rho": 1e-2}], lr=0.1)
    optimizer = ZOSAM(base, probe=Coordinates(), decide=Central(radius=1e-3))
    torch.testing.assert_close(optimizer.estimate(lambda: g[:2] @ a + g[2:] @ b), g)


def masked_pair(make=ZOSAM, **settings):
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(40, 10))
    mask = torch.rand(40, 10) < 0.25
    with torch.no_grad():
        w.mul_(mask)
    optimizer = make(torch.optim.SGD([w], lr=0.0), rho=0.3, **settings)
    set_mask(w, mask)
    return w, mask, optimizer


def farthest(optimizer, w):
    """How far from home each pass of a step is taken, and whether anything pruned moves."""
    home, seen = w.detach().clone(), []

    def closure(keep=slice(None)):
        seen.append((w.detach() - home).norm().item())
        return (w**2).sum() + w.sum()

    optimizer.step(closure)
    return seen


def test_the_perturbation_is_rho_long_over_active_weights_and_so_are_the_probes():
    w, mask, optimizer = masked_pair()
    assert farthest(optimizer, w) == pytest.approx([0.3, 0.3, 0.3], rel=1e-5)
    assert (w.detach()[~mask] == 0).all()


def test_the_printed_perturbation_shrinks_with_the_density():
    w, mask, optimizer = masked_pair(ZOSAM.paper)
    expected = 0.3 * math.sqrt(mask.float().mean().item())
    assert farthest(optimizer, w)[-1] == pytest.approx(expected, rel=0.2)
    assert farthest(optimizer, w)[-1] < 0.25


def test_radius_is_how_far_the_probes_go():
    w, _, optimizer = masked_pair(decide=Central(radius=0.01))
    assert farthest(optimizer, w) == pytest.approx([0.01, 0.01, 0.3], rel=1e-4)


def test_delta_is_a_factor_on_the_direction_itself():
    w, mask, optimizer = masked_pair(decide=Central(delta=0.01))
    length = 0.01 * float(optimizer.draw("0").norm())
    assert 0.5 < length / (0.01 * math.sqrt(int(mask.sum()))) < 2  # so √k times as far as the same radius
    assert farthest(optimizer, w) == pytest.approx([length, length, 0.3], rel=1e-4)


def test_equal_losses_still_displace():
    w = nn.Parameter(torch.zeros(4))
    optimizer = ZOSAM(torch.optim.SGD([w], lr=0.0), rho=0.3)
    away = []
    optimizer.step(lambda: away.append(w.detach().norm().item()) or (w * 0).sum())
    assert away[-1] == pytest.approx(0.3)


class Net(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))


def train(steps=6, model=None, rho=0.3, **settings):
    model = model or Net()
    optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rho=rho, **settings)
    x, y = torch.randn(24, 6, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3
    torch.manual_seed(2)
    calls = []

    def closure(keep=slice(None)):
        calls.append((len(x[keep]), torch.is_grad_enabled()))
        return F.cross_entropy(model(x[keep]), y[keep])

    for _ in range(steps):
        optimizer.step(closure)
    return model, optimizer, calls


def close(a, b, **tolerance):
    for (name, s), t in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(s, t, msg=lambda m, name=name: f"{name}: {m}", **tolerance)


def test_pair_takes_the_same_steps_with_one_forward_less():
    plain, _, _ = train()
    pair, optimizer, calls = train(decide=Pair())
    close(plain, pair, rtol=1e-4, atol=1e-5)
    assert optimizer.passes == {"forward": 12.0, "backward": 6.0}
    assert len(calls) == 12


def test_pair_moves_statistics_and_noise_once_a_step():
    plain, _, _ = train()
    stream = torch.get_rng_state()
    pair, _, _ = train(decide=Pair())
    assert pair[1].num_batches_tracked == plain[1].num_batches_tracked == 6
    assert torch.equal(torch.get_rng_state(), stream)


def test_pair_restores_model_and_buffers_when_the_closure_fails():
    model, optimizer, _ = train(decide=Pair())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    params = list(model.parameters())

    def closure():
        model(torch.randn(8, 6))
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        optimizer.step(closure)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p is q for p, q in zip(params, model.parameters(), strict=True))


def test_pair_works_on_bare_parameters_and_in_two_phases():
    def closure(w):
        return (w * torch.tensor([1.0, -2.0, 3.0])).sum() + w.square().sum()

    found = []
    for decide in (Pair(), Worst()):
        for phases in (False, True):
            w = nn.Parameter(torch.ones(3))
            optimizer = ZOSAM(torch.optim.SGD([w], lr=0.1), rho=0.3, decide=decide)
            for _ in range(3):
                if phases:
                    optimizer.ascend(lambda w=w: closure(w))
                    closure(w).backward()
                    optimizer.step()
                else:
                    optimizer.step(lambda w=w: closure(w))
            found.append(w.detach().clone())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_pair_says_that_it_needs_the_graph_of_the_loss():
    w = nn.Parameter(torch.ones(3))
    optimizer = ZOSAM(torch.optim.SGD([w], lr=0.1), decide=Pair())
    with pytest.raises(TypeError, match="not detached"):
        optimizer.step(lambda: w.sum().detach())
    assert torch.equal(w, torch.ones(3))


@pytest.mark.parametrize("decide", [Worst(), Pair()])
def test_the_worst_of_several_candidates_is_climbed_to(decide):
    a = torch.diag(torch.linspace(0.1, 5, 12, dtype=torch.float64))
    w = nn.Parameter(torch.full((12,), 0.3, dtype=torch.float64))
    seen, found = [], []

    def closure():
        seen.append(w.detach().clone())
        found.append(float((w @ a @ w).detach()))
        return w @ a @ w

    optimizer = ZOSAM(torch.optim.SGD([w], lr=0.0), rho=0.5, probe=Gaussian(3), decide=decide)
    optimizer.step(closure)
    worst = max(range(6), key=lambda i: found[i])
    torch.testing.assert_close(w.grad, 2 * a @ seen[worst])
    assert len(seen) == (6 if decide == Pair() else 7)


def test_batch_fraction_probes_on_part_of_the_batch():
    _, optimizer, calls = train(steps=2, decide=Central(batch_fraction=1 / 4))
    assert calls == [(6, False), (6, False), (24, True)] * 2
    assert optimizer.passes == {"forward": 3.0, "backward": 2.0}


def test_a_closure_that_cannot_take_part_of_a_batch_is_told_so():
    w = nn.Parameter(torch.ones(3))
    for make in (lambda b: ZOSAM(b, decide=Central(batch_fraction=1 / 2)), lambda b: SAM(b, batch_fraction=1 / 2)):
        optimizer = make(torch.optim.SGD([w], lr=0.1))
        with pytest.raises(TypeError, match="def closure\\(keep"):
            optimizer.step(lambda: w.sum())


def test_every_keeps_the_perturbation():
    _, _, calls = train(steps=6, every=3)
    assert [grad for _, grad in calls] == [False, False, True, True, True] * 2


def test_a_kept_perturbation_is_rho_long_after_the_masks_have_moved():
    w = nn.Parameter(torch.ones(8, dtype=torch.float64))
    optimizer = ZOSAM(torch.optim.SGD([w], lr=0.0), rho=0.5, every=10)
    mask = torch.ones(8, dtype=torch.bool)
    set_mask(w, mask)
    seen = []

    def closure():
        seen.append(w.detach().clone())
        return (w * torch.arange(1.0, 9.0, dtype=torch.float64)).sum()

    optimizer.step(closure)
    mask[:4] = False
    with torch.no_grad():
        w.mul_(mask)
    optimizer.step(closure)
    offset = seen[-1] - w.detach()
    assert offset[:4].eq(0).all()
    assert float(offset.norm()) == pytest.approx(0.5)
    first = seen[2][4:] - 1  # where the same four coordinates went in the first step
    torch.testing.assert_close(offset[4:] / offset.norm(), first / first.norm())


def cosine_with_gradient(probe, steps=30):
    """The mean |cosine| between the direction taken and the gradient, on a quadratic with noise in the gradient."""
    torch.manual_seed(0)
    size = 400
    w = nn.Parameter(torch.randn(size))
    curvature = torch.logspace(-2, 0, size)
    optimizer = ZOSAM(torch.optim.SGD([w], lr=0.05, momentum=0.9), rho=1e-3, probe=probe)
    optimizer.diagnostics = {}
    found = []
    for _ in range(steps):
        shift = 0.3 * torch.randn(size)
        optimizer.step(lambda shift=shift: (curvature * w**2).sum() / 2 + shift @ w)
        found.append(abs(optimizer.diagnostics["cosine"]))
    return sum(found[5:]) / len(found[5:])


def test_a_guided_direction_is_closer_to_the_gradient_than_a_random_one():
    random, subspace = cosine_with_gradient(Gaussian()), cosine_with_gradient(Subspace())
    assert subspace > 3 * random
    assert cosine_with_gradient(Momentum()) > random
    assert cosine_with_gradient(LastGradient()) > random


def test_the_probes_choose_the_sign_of_a_given_direction():
    g = torch.tensor([3.0, 4.0])
    for given in ([g], [-g]):
        w = nn.Parameter(torch.zeros(2))
        optimizer = ZOSAM(torch.optim.SGD([w], lr=0.0), rho=1.0, probe=lambda o, given=given: given)
        at = []
        optimizer.step(lambda w=w, at=at: at.append(w.detach().clone()) or (g * w).sum())
        torch.testing.assert_close(at[-1], g / 5)


def test_fast_is_a_preset():
    optimizer = ZOSAM.fast(torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1), rho=0.2)
    assert optimizer.passes_per_step()["forward"] == 1 + 2 / 8 / 2
    assert optimizer.rhos() == [0.2]


def test_fast_probes_on_an_eighth_of_the_batch_in_every_other_step():
    w, x, seen = nn.Parameter(torch.ones(3)), torch.randn(16, 3), []
    optimizer = ZOSAM.fast(torch.optim.SGD([w], lr=0.1), rho=0.2)

    def closure(keep=slice(None)):
        seen.append(len(x[keep]))
        return (x[keep] @ w).square().mean()

    for _ in range(4):
        optimizer.step(closure)
    assert seen == [2, 2, 16, 16] * 2
    assert optimizer.passes == {"forward": 4.5, "backward": 4.0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(0), "m must be 1 or more"),
        (lambda: Rademacher(-1), "m must be 1 or more"),
        (lambda: Subspace(0), "k must be 1 or more"),
        (lambda: Central(radius=0.0), "radius must be above 0"),
        (lambda: Central(delta=-1.0), "delta must be above 0"),
        (lambda: Central(radius=1.0, delta=1.0), "not both"),
        (lambda: Central(batch_fraction=0.3), "batch_fraction must be"),
        (lambda: Worst(batch_fraction=2), "batch_fraction must be"),
    ],
)
def test_parts_that_make_no_sense_are_refused_as_they_are_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_no_part_is_refused():
    base = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    for wrong in ({"probe": "gaussian"}, {"decide": "central"}, {"decide": Central}):
        with pytest.raises(TypeError, match="a part such as"):
            ZOSAM(base, **wrong)
    with pytest.raises(ValueError, match="every must be"):
        ZOSAM(base, every=0)


@pytest.mark.parametrize("probe", [Momentum(), Subspace()])
def test_a_probe_along_the_momentum_needs_one(probe):
    with pytest.raises(ValueError, match="follows the momentum"):
        ZOSAM(torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1), probe=probe)


def function(optimizer):
    return [torch.linspace(-1, 2, len(optimizer.active)), torch.linspace(1, -1, len(optimizer.active))]


PROBES = [Gaussian(1), Gaussian(2), Rademacher(2), Momentum(), LastGradient(), Subspace(2), Coordinates(), function]
DECISIONS = [Central(), Central(radius=0.1), Central(delta=0.1), Central(batch_fraction=1 / 2), Worst(), Pair()]
SCALES = [None, "filter", "element"]


def ends(steps, **settings):
    """The weights after some steps."""
    torch.manual_seed(0)
    w, v = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2))
    x, y = torch.randn(8, 3), torch.randn(8)
    optimizer = ZOSAM(torch.optim.SGD([w, v], lr=0.1, momentum=0.9), rho=0.8, **settings)
    seen = []

    def closure(keep=slice(None)):
        seen.append(len(y[keep]) / 8)
        return (torch.tanh(x[keep] @ w) @ v - y[keep]).square().mean()

    for _ in range(steps):
        optimizer.step(closure)
    assert optimizer.passes["forward"] == pytest.approx(sum(seen))
    return tuple(torch.cat([w.flatten(), v]).tolist())


@pytest.fixture
def few_alive():
    """Pair searches all that is alive for modules: let that be little, also in a long process."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("few_alive")
@pytest.mark.parametrize("decide", DECISIONS, ids=str)
def test_every_combination_of_parts_is_taken(decide):
    for probe in PROBES:
        for every in (1, 2):
            for scale in SCALES:
                found = ends(3, probe=probe, decide=decide, every=every, scale=scale)
                assert all(math.isfinite(number) for number in found)


def test_no_part_is_accepted_and_ignored():
    """Trainings that differ in one part end at different weights."""
    for values in (
        [{"probe": probe} for probe in PROBES],
        [{"probe": Gaussian(2), "decide": decide} for decide in DECISIONS[:-1]],  # Pair chooses as Worst does
        [{"probe": Gaussian(2), "every": every} for every in (1, 2, 3)],
        [{"probe": Gaussian(2), "scale": scale} for scale in SCALES],
        [{"probe": Gaussian(m)} for m in (1, 2, 3)],
        [{"probe": Subspace(k)} for k in (1, 2, 3)],
        [{"seed": seed} for seed in (0, 1)],
    ):
        assert len({ends(5, **settings) for settings in values}) == len(values), values
