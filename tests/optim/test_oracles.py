"""Every optimizer against an independent float64 oracle in numpy: several steps with momentum and weight decay."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zosam.optim import ASAM, ESAM, GSAM, MSAM, S2SAM, SAM, ZOSAM, Central, Coordinates, LookSAM, Unperturbed

LR, MOMENTUM, DECAY, RHO, STEPS = 0.05, 0.9, 0.01, 0.3, 7


class Quadratic:
    """L(θ) = ½ θᵀAθ − bᵀθ: the gradient is written down, not computed."""

    def __init__(self):
        rng = np.random.default_rng(0)
        root = rng.normal(size=(6, 6))
        self.a, self.b, self.start = root @ root.T / 6, rng.normal(size=6), rng.normal(size=6)

    def loss(self, w):
        return 0.5 * w @ self.a @ w - self.b @ w

    def gradient(self, w):
        return self.a @ w - self.b

    def torch_loss(self, w):
        a, b = torch.tensor(self.a), torch.tensor(self.b)
        return 0.5 * w @ a @ w - b @ w


class Network:
    """A tanh network with one hidden layer under the mean squared error; backpropagation by hand."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.x, self.y = rng.normal(size=(9, 3)), rng.normal(size=9)
        self.start = rng.normal(size=3 * 4 + 4)

    def parts(self, w):
        return w[:12].reshape(3, 4), w[12:]

    def loss(self, w):
        first, second = self.parts(w)
        return np.mean((np.tanh(self.x @ first) @ second - self.y) ** 2)

    def gradient(self, w):
        first, second = self.parts(w)
        hidden = np.tanh(self.x @ first)
        error = 2 * (hidden @ second - self.y) / len(self.y)
        inner = self.x.T @ (np.outer(error, second) * (1 - hidden**2))
        return np.concatenate([inner.ravel(), hidden.T @ error])

    def torch_loss(self, w):
        first, second = w[:12].view(3, 4), w[12:]
        return ((torch.tanh(torch.tensor(self.x) @ first) @ second - torch.tensor(self.y)) ** 2).mean()


def unit(v):
    return v / np.linalg.norm(v)


def train(problem, gradient_to_use):
    """SGD with momentum and decay at θ; the oracle says which gradient it gets."""
    w, speed = problem.start.copy(), None
    for t in range(STEPS):
        g = gradient_to_use(t, w, speed) + DECAY * w
        speed = g if speed is None else MOMENTUM * speed + g
        w = w - LR * speed
    return w


def run(problem, make):
    w = torch.nn.Parameter(torch.tensor(problem.start))
    optimizer = make(torch.optim.SGD([w], lr=LR, momentum=MOMENTUM, weight_decay=DECAY))
    for _ in range(STEPS):
        optimizer.step(lambda: problem.torch_loss(w))
    return w.detach().numpy()


PROBLEMS = pytest.mark.parametrize("problem", [Quadratic(), Network()], ids=["quadratic", "network"])


@PROBLEMS
def test_sgd(problem):
    np.testing.assert_allclose(
        run(problem, Unperturbed), train(problem, lambda t, w, v: problem.gradient(w)), rtol=1e-10
    )


@PROBLEMS
def test_sam(problem):
    def oracle(t, w, v):
        return problem.gradient(w + RHO * unit(problem.gradient(w)))

    np.testing.assert_allclose(run(problem, lambda b: SAM(b, RHO)), train(problem, oracle), rtol=1e-9)


@PROBLEMS
def test_asam(problem):
    def oracle(t, w, v):
        scale, g = np.abs(w) + 0.01, problem.gradient(w)
        return problem.gradient(w + RHO * scale**2 * g / np.linalg.norm(scale * g))

    np.testing.assert_allclose(run(problem, lambda b: ASAM(b, RHO)), train(problem, oracle), rtol=1e-9)


@PROBLEMS
def test_looksam(problem):
    kept = {}

    def oracle(t, w, v):
        g = problem.gradient(w)
        if t % 3 == 0:
            s = problem.gradient(w + RHO * unit(g))
            kept["v"] = s - (s @ unit(g)) * unit(g)
            return s
        return g + 0.7 * np.linalg.norm(g) / np.linalg.norm(kept["v"]) * kept["v"]

    np.testing.assert_allclose(run(problem, lambda b: LookSAM(b, RHO, k=3)), train(problem, oracle), rtol=1e-8)


@PROBLEMS
def test_gsam(problem):
    def oracle(t, w, v):
        g = problem.gradient(w)
        p = problem.gradient(w + RHO * unit(g))
        return p - 0.4 * (g - (g @ unit(p)) * unit(p))

    np.testing.assert_allclose(run(problem, lambda b: GSAM(b, RHO)), train(problem, oracle), rtol=1e-9)


@PROBLEMS
def test_s2sam(problem):
    kept = {}

    def oracle(t, w, v):
        kept["g"] = problem.gradient(w + RHO * unit(kept["g"]) if t else w)
        return kept["g"]

    np.testing.assert_allclose(run(problem, lambda b: S2SAM(b, RHO)), train(problem, oracle), rtol=1e-9)


@PROBLEMS
def test_msam(problem):
    def oracle(t, w, v):
        return problem.gradient(w if v is None else w - RHO * unit(v))

    np.testing.assert_allclose(run(problem, lambda b: MSAM(b, RHO)), train(problem, oracle), rtol=1e-9)


@PROBLEMS
@pytest.mark.parametrize("m", [1, 3])
def test_zosam_along_given_directions(problem, m):
    rng = np.random.default_rng(5)
    directions = rng.normal(size=(STEPS, m, len(problem.start)))
    delta = 1e-3

    def oracle(t, w, v):
        estimate = 0
        for u in directions[t]:
            d = delta / np.linalg.norm(u)
            estimate = estimate + (problem.loss(w + d * u) - problem.loss(w - d * u)) / (2 * d) * u / m
        return problem.gradient(w + RHO * unit(estimate))

    def make(base):
        probe, decide = lambda o: list(torch.tensor(directions[o.steps])), Central(radius=delta)
        return ZOSAM(base, RHO, probe=probe, decide=decide)

    np.testing.assert_allclose(run(problem, make), train(problem, oracle), rtol=1e-6)


@PROBLEMS
def test_zosam_by_coordinates_is_sam(problem):
    def oracle(t, w, v):
        return problem.gradient(w + RHO * unit(problem.gradient(w)))

    ours = run(problem, lambda b: ZOSAM(b, RHO, probe=Coordinates(), decide=Central(radius=1e-5)))
    np.testing.assert_allclose(ours, train(problem, oracle), rtol=1e-6)


@PROBLEMS
def test_a_schedule_of_rho_is_followed(problem):
    def oracle(t, w, v):
        return problem.gradient(w + 0.1 * (t + 1) * unit(problem.gradient(w)))

    ours = run(problem, lambda b: SAM(b, rho=lambda step, lr: 0.1 * (step + 1)))
    np.testing.assert_allclose(ours, train(problem, oracle), rtol=1e-9)


def test_esam_perturbs_some_tensors_and_descends_on_the_samples_that_are_hurt_most():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(8, 4)), rng.normal(size=8)
    tensors = [torch.nn.Parameter(torch.tensor(v)) for v in (rng.normal(size=4), rng.normal(size=()))]
    optimizer = ESAM(torch.optim.SGD(tensors, lr=LR), RHO, beta=0.5, gamma=0.5)
    a, b = (t.detach().numpy().copy() for t in tensors)

    def losses(a, b):
        return (x @ a + b - y) ** 2

    def gradient(a, b, rows):
        error = 2 * (x[rows] @ a + b - y[rows]) / len(rows)
        return x[rows].T @ error, error.sum()

    for _ in range(STEPS):
        chosen = optimizer.numbers("tensors").uniform(2).numpy() < 0.5
        if not chosen.any():
            chosen[0] = True
        ga, gb = gradient(a, b, np.arange(8))
        ga, gb = ga * chosen[0], gb * chosen[1]
        length = np.sqrt(ga @ ga + gb * gb) * 0.5
        pa, pb = a + RHO * ga / length, b + RHO * gb / length
        rows = np.argsort(losses(a, b) - losses(pa, pb))[:4]
        da, db = gradient(pa, pb, rows)
        optimizer.step(
            lambda keep=slice(None): (torch.tensor(x)[keep] @ tensors[0] + tensors[1] - torch.tensor(y)[keep]) ** 2
        )
        a, b = a - LR * da, b - LR * db
        np.testing.assert_allclose(tensors[0].detach().numpy(), a, rtol=1e-8)
        np.testing.assert_allclose(tensors[1].detach().numpy(), b, rtol=1e-8)
