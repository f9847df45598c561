"""Loss surfaces: the centre, the scale of the directions, what they share, and that nothing moves."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.lab.measure.hessian import top_eigenvalues
from zosam.lab.measure.landscape import direction, figure_line, figure_surface, line, offsets, surface
from zosam.lab.measure.sharpness import sharpness


def net(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 3)
        )
        for _ in range(3):
            model(torch.randn(8, 1, 4, 4))
    return model


DATA = torch.Generator().manual_seed(5)
X, Y = torch.randn(8, 1, 4, 4, generator=DATA), torch.randint(0, 3, (8,), generator=DATA)


def loss_of(model):
    return lambda: F.cross_entropy(model(X), Y)


def test_the_centre_is_the_loss_of_the_model_to_the_bit():
    model = net()
    with torch.no_grad():
        own = float(loss_of(model.eval())())
    assert line(model, loss_of(model), points=5)[2] == own
    grid = surface(model, loss_of(model), points=5)
    assert grid[2][2] == own
    assert sum(value == own for row in grid for value in row) == 1


def test_a_point_of_the_grid_worked_by_hand():
    model, other = net().eval(), net().eval()
    u, v = (direction(model, seed=3, axis=axis) for axis in (0, 1))
    with torch.no_grad():
        for name, p in other.named_parameters():
            p += 0.5 * u[name] - 1.0 * v[name]  # x = 0.5 is column 3, y = -1 is row 0
        expected = float(loss_of(other)())
    assert surface(model, loss_of(model), points=5, span=1.0, seed=3)[0][3] == pytest.approx(expected, rel=1e-5)


def test_filters_are_as_long_as_the_models_and_biases_stay():
    model = net()
    for name, d in direction(model).items():
        p = model.get_parameter(name).detach()
        if p.dim() > 1:
            assert d.flatten(1).norm(dim=1).tolist() == pytest.approx(p.flatten(1).norm(dim=1).tolist(), rel=1e-5)
        else:
            assert not d.any()


def test_two_models_share_the_random_directions():
    a, b = (direction(net(seed)) for seed in (1, 2))
    for name in ("0.weight", "5.weight"):
        cosines = F.cosine_similarity(a[name].flatten(1), b[name].flatten(1))
        assert cosines.tolist() == pytest.approx([1.0] * len(cosines), abs=1e-5)
    other = direction(net(1), seed=1)["5.weight"].flatten(1)
    assert F.cosine_similarity(a["5.weight"].flatten(1), other).abs().max() < 0.9


def test_masks_keep_pruned_weights_at_zero_and_the_scale():
    model = net()
    masks = {"0.weight": torch.rand(4, 1, 3, 3) < 0.6}
    masks["0.weight"][3] = False  # a filter with nothing left
    with torch.no_grad():
        model[0].weight.mul_(masks["0.weight"])
    found = direction(model, masks=masks)["0.weight"]
    assert not found[~masks["0.weight"]].any()
    own = model[0].weight.detach().flatten(1).norm(dim=1)
    assert found.flatten(1).norm(dim=1).tolist() == pytest.approx(own.tolist(), rel=1e-5)
    seen = []
    surface(model, lambda: seen.append(model[0].weight.detach().clone()) or loss_of(model)(), points=3, masks=masks)
    assert all(not w[~masks["0.weight"]].any() for w in seen)
    by_weight = {model[0].weight: masks["0.weight"]}
    assert line(model, loss_of(model), 5, masks=masks) == line(model, loss_of(model), 5, masks=by_weight)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_moves(fails):
    model = net().train()
    model[1].eval()  # a mode of its own
    model[0].weight.grad = torch.ones(4, 1, 3, 3)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    stream, calls = torch.get_rng_state(), []

    def loss():
        calls.append(1)
        torch.rand(1)
        if fails and len(calls) == 4:
            raise KeyboardInterrupt
        assert not model.training
        return loss_of(model)()

    if fails:
        with pytest.raises(KeyboardInterrupt):
            surface(model, loss, points=3)
    else:
        surface(model, loss, points=3)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert torch.equal(stream, torch.get_rng_state())
    assert model.training
    assert not model[1].training
    assert model[0].weight.grad.sum() == 36


def test_figures_are_json():
    models = {str(seed): (m := net(seed), loss_of(m), None) for seed in (1, 2)}
    models["wild"] = (m := net(3), lambda: torch.tensor(math.inf), None)
    made = figure_surface(models, points=3, span=0.5)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["x"] == made["y"] == [-0.5, 0.0, 0.5]
    assert [len(panel["loss"]) for panel in made["models"]] == [3, 3, 3]
    assert made["models"][2]["loss"][0] == [None] * 3
    assert made["models"][0]["loss"] == surface(*models["1"][:2], points=3, span=0.5)
    beside = figure_surface(models, points=3, eigenvalues=2)["models"]
    assert [panel["sharpness"] for panel in beside[:2]] == [sharpness(*models[name][:2]) for name in "12"]
    assert [panel["eigenvalues"] for panel in beside[:2]] == [top_eigenvalues(*models[name][:2], 2) for name in "12"]
    assert "sharpness" not in beside[2]  # a loss that is not finite has no curvature
    lines = figure_line(models, points=3)
    assert lines["kind"] == "lines"
    assert lines["series"][1]["y"] == line(*models["2"][:2], points=3)


def test_bad_input():
    with pytest.raises(ValueError, match="odd"):
        offsets(4)
    with pytest.raises(ValueError, match=r"no parameter 'x'.*0\.weight"):
        line(m := net(), loss_of(m), masks={"x": torch.ones(1)})
    with pytest.raises(ValueError, match="does not fit"):
        line(m := net(), loss_of(m), masks={"0.weight": torch.ones(1)})
