"""No option is accepted and ignored: what has no effect beside the others is refused, and so is what cannot be."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam import schedules
from zosam.names import settings_of
from zosam.optim import OPTIMIZERS, Scale

VALUES = {
    "scale": (None, "filter", "element", Scale("element", 0.3)),
    "batch_fraction": (1.0, 0.5),
    "eta": (0.0, 0.01, 0.05, 3.0),
    "beta": (None, 0.3, 0.7),
    "gamma": (0.5, 0.3),
    "k": (1, 2, 3),
    "alpha": (None, 0.2, 0.9),
    "delta": (0.1, 0.5),
    "directions": (1, 2),
    "sigma": (None, 0.1, 0.2),
}
NOT_HERE = {"base", "rho", "seed", "per_rank"}  # per_rank needs ranks
SWEPT = sorted(OPTIMIZERS.keys() - {"sgd", "zosam"})  # sgd has no options; those of zosam are in test_zosam.py
X, Y = torch.randn(8, 3, 5, 5, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4


def trained(name, options):
    """All weights after some steps."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4))
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    length = {} if options.get("sigma") is not None else {"rho": 0.1}
    optimizer = OPTIMIZERS[name](base, **length, **options)
    reduction = "none" if optimizer.per_sample else "mean"
    for _ in range(6):
        optimizer.step(lambda keep=slice(None): F.cross_entropy(model(X[keep]), Y[keep], reduction=reduction))
    return tuple(torch.cat([p.detach().flatten() for p in model.parameters()]).tolist())


@pytest.mark.parametrize("name", SWEPT)
def test_every_combination_of_options_is_refused_or_trains_something_else(name):
    known = [option for option in settings_of(OPTIMIZERS[name]) if option not in NOT_HERE]
    found = {}
    for values in itertools.product(*(VALUES[option] for option in known)):
        given = {option: value for option, value in zip(known, values, strict=True) if value is not None}
        try:
            weights = trained(name, given)
        except ValueError as error:
            if "has no effect" not in str(error):
                raise
            continue
        assert all(map(math.isfinite, weights))
        assert weights not in found, f"{given} and {found[weights]} train the same"
        found[weights] = given


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scale("filter", 0.3), 'eta=0.3 has no effect without the metric "element"'),
        (lambda: Scale(None, 0.3), "eta=0.3 has no effect"),
        (lambda: schedules.Late(0.9, -0.1, 10), "rho is a length, 0 or more, not -0.1"),
        (lambda: schedules.Linear(0.1, -0.1, 10), "end is a length"),
        (lambda: schedules.Cosine(math.nan, 0.1, 10), "start is a length"),
        (lambda: schedules.Linear(0.1, 0.2, 0), "steps must be the number of steps"),
        (lambda: schedules.Proportional(-0.1, 1.0), "rho_max is a length"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["gsam", "looksam"])
def test_alpha_mixes_in_a_share(name):
    base = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(ValueError, match="alpha must be 0 or more, not -1"):
        OPTIMIZERS[name](base, alpha=-1.0)


@pytest.mark.parametrize("setting", [{"rho": 0.1}, {"scale": "filter"}])
@pytest.mark.parametrize("rho", [0.05, schedules.Late(0.5, 0.1, 10)])
def test_a_group_that_stays_where_it_is_has_no_length(setting, rho):
    still = {"params": [nn.Parameter(torch.ones(2))], "perturb": False}
    base = torch.optim.SGD([{**still, **setting}, {"params": [nn.Parameter(torch.ones(2))]}], lr=0.1)
    with pytest.raises(ValueError, match="of a group with perturb=False has no effect"):
        OPTIMIZERS["sam"](base, rho)
    base = torch.optim.SGD([still], lr=0.1)
    optimizer = OPTIMIZERS["sam"](base, rho)
    with pytest.raises(ValueError, match="of a group with perturb=False has no effect"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "perturb": False, **setting})
    OPTIMIZERS["sam"](base, 0.2)  # what the one before has written there is nobody's wish


@pytest.mark.parametrize("name", ["rwp", "paperzosam"])
def test_a_metric_of_a_group_is_refused_by_methods_that_have_their_own(name):
    group = {"params": [nn.Parameter(torch.ones(2))], "scale": "filter"}
    with pytest.raises(ValueError, match="scale='filter' of a group has no effect on"):
        OPTIMIZERS[name](torch.optim.SGD([group], lr=0.1))
    optimizer = OPTIMIZERS[name](torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    with pytest.raises(ValueError, match="has no effect on"):
        optimizer.add_param_group(group)


def test_a_base_that_maximizes_is_refused_by_whoever_climbs():
    """It would go the same way twice, and be less careful than its base."""
    params = [nn.Parameter(torch.ones(2))]
    with pytest.raises(ValueError, match="return the negative of what is to be maximized"):
        OPTIMIZERS["sam"](torch.optim.SGD(params, lr=0.1, maximize=True))
    with pytest.raises(ValueError, match="the negative"):
        OPTIMIZERS["sam"](torch.optim.SGD(params, lr=0.1, maximize=True), rho=schedules.Linear(0.0, 0.1, 10))
    OPTIMIZERS["sam"](torch.optim.SGD(params, lr=0.1, maximize=True), rho=0.0)  # the base alone
    optimizer = OPTIMIZERS["sam"](torch.optim.SGD(params, lr=0.1))
    with pytest.raises(ValueError, match="the negative"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "maximize": True})
    assert len(optimizer.param_groups) == 1
