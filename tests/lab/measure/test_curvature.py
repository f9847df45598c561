"""Average sharpness and Hessian eigenvalues, against exact ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from zosam.lab.measure.hessian import top_eigenvalue, top_eigenvalues
from zosam.lab.measure.sharpness import average


class Bowl(nn.Module):
    def __init__(self, *curvature, at=0.0):
        super().__init__()
        self.w = nn.Parameter(torch.full((len(curvature),), at, dtype=torch.float64))
        self.curvature = torch.tensor(curvature, dtype=torch.float64)

    def loss(self):
        return (self.curvature * self.w**2).sum() / 2


def dense_hessian(model, loss_of, kept=None):
    """The whole matrix over the active weights, by autograd."""
    model.eval()
    params = dict(model.named_parameters())
    flat = torch.cat([p.detach().flatten() for p in params.values()])
    ones = {n: torch.ones_like(p, dtype=torch.bool) for n, p in params.items()}
    keep = torch.cat([mask.flatten() for mask in (ones | (kept or {})).values()])

    def loss(vector):
        parts = vector.split([p.numel() for p in params.values()])
        named = {n: part.view(p.shape) for (n, p), part in zip(params.items(), parts, strict=True)}
        return loss_of(lambda x: functional_call(model, named, (x,)))

    return torch.autograd.functional.hessian(loss, flat)[keep][:, keep]


DATA = torch.Generator().manual_seed(2)
X, Y = torch.randn(20, 4, generator=DATA, dtype=torch.float64), torch.randint(0, 3, (20,), generator=DATA)


def small():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3)).double()


def entropy(run):
    return F.cross_entropy(run(X), Y)


@pytest.mark.parametrize("masked", [False, True])
def test_eigenvalues_are_those_of_the_dense_matrix(masked):
    model = small()
    kept = {"0.weight": torch.rand(6, 4, generator=torch.Generator().manual_seed(1)) < 0.5} if masked else None
    exact = torch.linalg.eigvalsh(dense_hessian(model, entropy, kept)).flip(0).tolist()
    model.train()
    assert top_eigenvalue(model, lambda: entropy(model), masks=kept) == pytest.approx(exact[0], rel=0.01)
    assert top_eigenvalues(model, lambda: entropy(model), 4, masks=kept) == pytest.approx(exact[:4], rel=0.01)
    many = top_eigenvalues(model, lambda: entropy(model), 12, 200, masks=kept, tolerance=0.0)
    assert many == pytest.approx(exact[:12], abs=1e-8)
    assert model.training


def test_the_largest_is_not_the_largest_in_size():
    bowl = Bowl(-9.0, 2.0, 1.0)
    assert top_eigenvalues(bowl, bowl.loss, 3) == pytest.approx([2.0, 1.0, -9.0])


def test_a_flat_and_a_linear_loss_have_no_curvature():
    bowl = Bowl(0.0, 0.0)
    assert top_eigenvalue(bowl, bowl.loss) == 0
    assert top_eigenvalue(bowl, lambda: bowl.w.sum()) == 0


def test_float32_convolutions_in_channels_last_and_torchs_closure_form():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    x, y = torch.randn(16, 2, 6, 6), torch.randint(0, 3, (16,))
    exact = torch.linalg.eigvalsh(dense_hessian(model, lambda run: F.cross_entropy(run(x), y)).double())[-1]
    model.to(memory_format=torch.channels_last)

    def closure():
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    assert top_eigenvalue(model, closure) == pytest.approx(exact.item(), rel=0.01)
    assert all(p.grad is None for p in model.parameters())


def test_attention_has_a_second_derivative():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(3, 5, 8)
    assert top_eigenvalue(layer, lambda: layer(x).pow(4).mean()) > 0


def test_average_rise_is_the_mean_curvature():
    bowl = Bowl(1.0, 5.0, 2.0, 8.0, at=3.0)  # far from the bottom: the slope must cancel
    expected = 0.5 * 0.1**2 * (1 + 5 + 2 + 8) / 4
    assert average(bowl, bowl.loss, rho=0.1, samples=1500) == pytest.approx(expected, rel=0.05)
    assert torch.equal(bowl.w.detach(), torch.full((4,), 3.0, dtype=torch.float64))


def test_average_stays_on_active_weights_and_uses_its_own_stream():
    bowl = Bowl(1.0, 100.0, 1.0)
    stream = torch.get_rng_state()
    found = [average(bowl, bowl.loss, 0.1, 3, seed, {"w": torch.tensor([True, False, True])}) for seed in (0, 0, 1)]
    assert found == pytest.approx([0.5 * 0.1**2] * 3)  # a round bowl on what is left
    assert average(bowl, bowl.loss, 0.1, 3, 0) != average(bowl, bowl.loss, 0.1, 3, 1)
    assert torch.equal(stream, torch.get_rng_state())


def test_nothing_left_to_measure():
    bowl = Bowl(1.0)
    with pytest.raises(ValueError, match="no active weight"):
        top_eigenvalue(bowl, bowl.loss, masks={"w": torch.tensor([False])})
    with pytest.raises(ValueError, match="count"):
        top_eigenvalues(bowl, bowl.loss, 5, steps=4)
    with pytest.raises(ValueError, match="samples"):
        average(bowl, bowl.loss, samples=0)
