"""The metric of a perturbation: every method in every scale against formulas written out in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.optim import ASAM, MSAM, RWP, S2SAM, SAM, ZOSAM, Central, Coordinates, NoisySAM, RandomSAM, Scale
from zosam.optim.masked import set_mask

ETA, RHO = 0.01, 0.3
SCALES = [None, "filter", "element"]


def made(masked=True):
    """A small network in float64 with a mask on its convolution and its linear layer, and a loss."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()
    net.to(memory_format=torch.channels_last)
    if masked:
        for p in (net[0].weight, net[3].weight):
            mask = torch.rand(p.shape) < 0.4
            p.data.mul_(mask)
            set_mask(p, mask)
    x, y = torch.randn(8, 2, 4, 4).double(), torch.randint(3, (8,))
    return net, lambda: F.cross_entropy(net(x), y)


def lengths(kind, params):
    """T for each parameter, as numpy arrays."""
    found = []
    for p in params:
        w = p.detach().numpy()
        if kind is None:
            found.append(np.ones_like(w))
        elif kind == "element":
            found.append(np.abs(w) + ETA)
        else:
            rows = w.reshape(len(w), -1) if w.ndim > 1 else w.reshape(1, -1)
            norm = np.sqrt((rows**2).sum(1))
            found.append(np.broadcast_to(norm.reshape([-1] + [1] * (w.ndim - 1)) if w.ndim > 1 else norm, w.shape))
    return found


def kept(p):
    from zosam.optim.masked import mask_of

    mask = mask_of(p)
    return np.ones(p.shape) if mask is None else mask.numpy().astype(float)


def moved(optimizer, net, closure):
    """The way from home to the point where the gradient is taken, for each parameter."""
    home = [p.detach().clone() for p in net.parameters()]
    optimizer.ascend(closure)
    away = [(p.detach() - h).numpy() for p, h in zip(net.parameters(), home, strict=True)]
    optimizer.restore()
    return away


def gradients(net, closure):
    params = list(net.parameters())
    return [g.numpy() * kept(p) for p, g in zip(params, torch.autograd.grad(closure(), params), strict=True)]


def norm(arrays):
    return np.sqrt(sum((a**2).sum() for a in arrays))


def up_the_gradient(kind, net, grads):
    t = lengths(kind, net.parameters())
    scaled = [a * g for a, g in zip(t, grads, strict=True)]
    return [RHO * a * s / norm(scaled) for a, s in zip(t, scaled, strict=True)]


def close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-12)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", SCALES)
def test_sam_climbs_the_gradient_in_every_metric(kind, masked):
    net, closure = made(masked)
    close(moved(SAM(sgd(net), RHO, scale=kind), net, closure), up_the_gradient(kind, net, gradients(net, closure)))


@pytest.mark.parametrize("kind", SCALES)
def test_the_last_gradient_and_the_momentum_too(kind):
    for method, sign in ((S2SAM, 1), (MSAM, -1)):
        net, closure = made()
        optimizer = method(sgd(net), RHO, scale=kind)
        optimizer.step(closure)
        last = [p.grad.numpy() * kept(p) for p in net.parameters()]  # after one step the momentum is the gradient
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(torch.tensor(kept(p)))
        close(moved(optimizer, net, closure), [sign * e for e in up_the_gradient(kind, net, last)])


@pytest.mark.parametrize("kind", SCALES)
def test_a_random_direction_is_measured_in_the_metric(kind):
    net, closure = made()
    optimizer = RandomSAM(sgd(net), RHO, scale=kind)
    space = optimizer.active
    u = [d.numpy() for d in space.dense(optimizer.draw())]
    t = lengths(kind, net.parameters())
    close(moved(optimizer, net, closure), [RHO * a * b / norm(u) for a, b in zip(t, u, strict=True)])


@pytest.mark.parametrize("kind", SCALES)
def test_probes_see_the_metric_and_by_coordinates_they_find_sam(kind):
    net, closure = made()
    optimizer = ZOSAM(sgd(net), RHO, probe=Coordinates(), decide=Central(radius=1e-5), scale=kind)
    found, expected = moved(optimizer, net, closure), up_the_gradient(kind, net, gradients(net, closure))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", SCALES)
def test_the_two_points_of_a_probe_are_the_two_candidates(kind):
    net, closure = made()
    optimizer = ZOSAM(sgd(net), RHO, scale=kind)
    home, seen = torch.cat([p.detach().flatten() for p in net.parameters()]), []

    def watched():
        seen.append(torch.cat([p.detach().flatten() for p in net.parameters()]) - home)
        return closure()

    optimizer.step(watched)
    torch.testing.assert_close(seen[0], -seen[1])
    assert (seen[2] - seen[0]).abs().max() < 1e-12 or (seen[2] - seen[1]).abs().max() < 1e-12


def test_asam_is_sam_in_the_metric_of_elements():
    one, other = made(), made()
    a, b = ASAM(sgd(one[0]), 0.5, eta=0.05), SAM(sgd(other[0]), 0.5, scale=Scale("element", 0.05))
    for _ in range(3):
        a.step(one[1])
        b.step(other[1])
    assert all(torch.equal(p, q) for p, q in zip(one[0].parameters(), other[0].parameters(), strict=True))


def test_asam_leaves_biases_out_as_the_published_code_does():
    net, closure = made(masked=False)
    weights, biases = [net[0].weight, net[3].weight], [net[0].bias, net[3].bias]
    groups = [{"params": weights}, {"params": biases, "scale": None}]
    optimizer = ASAM(torch.optim.SGD(groups, lr=0.1), 0.5)
    found = dict(zip((n for n, _ in net.named_parameters()), moved(optimizer, net, closure), strict=True))
    grads = dict(zip((n for n, _ in net.named_parameters()), gradients(net, closure), strict=True))
    scaled = {  # as in the authors' code: t_w = |w| + eta times the gradient for weights, biases as they are
        n: g * (np.abs(net.get_parameter(n).detach().numpy()) + ETA if n.endswith("weight") else 1)
        for n, g in grads.items()
    }
    length = norm(list(scaled.values()))
    for n, g in scaled.items():
        t = np.abs(net.get_parameter(n).detach().numpy()) + ETA if n.endswith("weight") else 1
        np.testing.assert_allclose(found[n], 0.5 * t * g / length, rtol=1e-8)


def test_a_scale_that_is_none_is_refused_where_it_is_given():
    net, _ = made()
    with pytest.raises(ValueError, match='None, "filter" or "element"'):
        SAM(sgd(net), scale="row")
    with pytest.raises(ValueError, match="eta must be"):
        ASAM(sgd(net), eta=-1.0)
    with pytest.raises(ValueError, match='None, "filter" or "element"'):
        SAM(torch.optim.SGD([{"params": net.parameters(), "scale": "layer"}], lr=0.1))


# --- RWP: the noise has the stated standard deviation in every weight ------------------------------------------------


def spread(optimizer, n=1500):
    """The standard deviation of the offset of every weight over many steps."""
    squares = 0.0
    for step in range(n):
        optimizer.steps = step
        offset = optimizer.offset(optimizer.climb(None))
        squares = squares + torch.cat([d.flatten() for d in optimizer.active.dense(offset)]).square()
    return (squares / n).sqrt().numpy()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", ["rho", "sigma"])
def test_rwp_has_the_stated_deviation_in_every_weight(form, masked):
    net, _ = made(masked)
    optimizer = RWP(sgd(net), **{form: 0.2})
    n = 1500
    found = spread(optimizer, n)
    expected = []
    for p, norms in zip(net.parameters(), lengths("filter", net.parameters()), strict=True):
        alive = kept(p)
        rows = alive.reshape(len(alive), -1) if alive.ndim > 1 else alive.reshape(1, -1)
        count = np.broadcast_to(
            rows.sum(1).reshape([-1] + [1] * (alive.ndim - 1)) if alive.ndim > 1 else rows.sum(), alive.shape
        )
        size = 0.2 * norms / (np.sqrt(np.maximum(count, 1)) if form == "rho" else 1)
        expected.append((size * alive).ravel())
    expected = np.concatenate(expected)
    assert (found[expected == 0] == 0).all()
    ratio = found[expected > 0] / expected[expected > 0]
    error = 1 / np.sqrt(2 * n)  # of a standard deviation from n draws
    assert abs(ratio.mean() - 1) < 4 * error / np.sqrt(len(ratio))
    assert abs(ratio - 1).max() < 5 * error


def test_rwp_moves_every_filter_by_rho_times_its_norm_at_any_sparsity():
    for masked in (False, True):
        net, _closure = made(masked)
        optimizer = RWP(sgd(net), rho=0.2)
        shares = []
        for step in range(300):
            optimizer.steps = step
            away = optimizer.active.dense(optimizer.offset(optimizer.climb(None)))[0]
            shares.append((away.flatten(1).norm(dim=1) / net[0].weight.detach().flatten(1).norm(dim=1)).square())
        assert torch.stack(shares).mean(0).sqrt().tolist() == pytest.approx([0.2] * 4, rel=0.1)


def test_rwp_costs_one_pass_and_comes_back_to_the_bit():
    net, closure = made()
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = RWP(torch.optim.SGD(net.parameters(), lr=0.0))
    for _ in range(5):
        optimizer.step(closure)
    assert optimizer.passes == {"forward": 5.0, "backward": 5.0}
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_adaptive_noise_is_divided_by_the_gradients_of_the_filter():
    net, closure = made()
    plain, adaptive = RWP(sgd(net), rho=0.2), RWP(sgd(net), rho=0.2, eta=0.1, beta=0.5)
    sums = 0.0
    for _ in range(2):
        optimizer = adaptive
        optimizer.step(closure)
        sums = 0.5 * sums + optimizer.grads().square()
    plain.steps = adaptive.steps
    share = adaptive.climb(None) / plain.climb(None)
    by_filter = [d.flatten(1).sum(1) if d.dim() > 1 else d.sum().view(1) for d in adaptive.active.dense(sums)]
    each = [
        f.view(-1, *[1] * (p.dim() - 1)).expand(p.shape) if p.dim() > 1 else f.expand(p.shape)
        for f, p in zip(by_filter, net.parameters(), strict=True)
    ]
    torch.testing.assert_close(share, (1 + 0.1 * adaptive.active.gather(each)).rsqrt())


def test_noisy_sam_is_where_sam_and_rwp_would_be_together():
    net, closure = made()
    both, noise, up = (moved(method(sgd(net), rho=0.2), net, closure) for method in (NoisySAM, RWP, SAM))
    for b, n, u in zip(both, noise, up, strict=True):
        np.testing.assert_allclose(b, n + u, rtol=1e-9, atol=1e-14)
    optimizer = NoisySAM(sgd(net))
    optimizer.step(closure)
    assert optimizer.passes == optimizer.passes_per_step() == {"forward": 2.0, "backward": 2.0}
    assert optimizer.rhos() == [0.2]


def test_rwp_takes_rho_or_sigma():
    net, _ = made()
    with pytest.raises(ValueError, match="not both"):
        RWP(sgd(net), rho=0.1, sigma=0.1)
    assert RWP(sgd(net)).rhos() == [0.2]
    assert RWP(sgd(net), sigma=0.002).rhos() == [0.002]
