"""Settings that no network can have are refused before it is looked at, and so are those without effect."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.names import default_of, settings_of
from zosam.optim import ZOSAM
from zosam.optim.schedules import Late
from zosam.sparse import GMP, MEST, METHODS, SNFS, Magnitude, RigL, SynFlow


class Unseen(nn.Module):
    """A network that nobody may look at."""

    def __getattribute__(self, name):
        raise AssertionError(f"somebody has asked for {name}")


def sgd():
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (RigL, {"budget": "erkk"}, "no budget is called 'erkk': did you mean 'erk'"),
        (RigL, {"budget": "global"}, "RigL needs a count for each layer"),
        (RigL, {"over": "mask"}, "did you mean 'masked'"),
        (RigL, {"pattern": "blok"}, "pattern must be N:M"),
        (SNFS, {"every": 5, "pattern": "block:4"}, "SNFS cannot keep the pattern block:4"),
        (RigL, {"pattern": "2:4"}, "pattern 2:4 fixes every masked layer: pass sparsity=0.5"),
        (RigL, {"min_per_layer": 3}, "min_per_layer=3 has no effect where layers do not compete"),
        (GMP, {"min_per_layer": 3}, "min_per_layer=3 has no effect"),
        (Magnitude, {"min_per_layer": -1}, "min_per_layer must be 0 or more"),
        (SynFlow, {"loss": sum, "min_per_layer": 1, "budget": "erk"}, "min_per_layer=1 has no effect"),
        (MEST, {"soft": True, "drop_fraction": 0.5}, "drop_fraction=0.5 has no effect with soft=True"),
        (
            RigL,
            {"drop_fraction": 0.0},
            "drop_fraction must be above 0 and at most 1, not 0.0: masks that stay are Random",
        ),
        (MEST, {"drop_fraction": 0.0}, "drop_fraction must be above 0"),
        (RigL, {"over": "masked"}, "over='masked' has no effect where no layer is kept dense"),
        (MEST, {"over": "all", "dense": ()}, "over='all' has no effect where no layer is kept dense"),
        (RigL, {"pattern": "block:1"}, "pattern must be"),
        (RigL, {"pattern": "block:04"}, "pattern must be"),
        (RigL, {"pattern": "2:04"}, "pattern must be"),
        (Magnitude, {"seed": 1}, "seed=1 has no effect on Magnitude, which draws nothing"),
        (GMP, {"seed": 0}, "seed=0 has no effect on GMP"),
    ],
)
def test_what_no_network_can_have(cls, settings, message):
    length = {} if cls in (Magnitude, SynFlow) else {"steps": 100}
    with pytest.raises(ValueError, match=message):
        cls(Unseen.__new__(Unseen), sgd(), 0.9, **length, **settings)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore")
def test_another_seed_trains_other_masks_or_is_refused(name):
    cls, found = METHODS[name], []
    x, y = torch.randn(16, 8), torch.arange(16) % 4
    for seed in (0, 1) if cls.draws else ():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        asked = {"steps": 20, "every": 3}
        sparse = cls(model, base, 0.5, seed=seed, **{k: v for k, v in asked.items() if k in settings_of(cls)})
        for _ in range(6):
            base.zero_grad()
            F.cross_entropy(model(x), y).backward()
            base.step()
        found.append(torch.cat([m.flatten() for m in sparse.masks.values()]))
    if found:
        assert not torch.equal(*found)
        return
    model = nn.Linear(4, 4)
    asked = {"steps": 20, "every": 3, "loss": lambda: model(torch.ones(1, 4)).sum()}
    with pytest.raises(ValueError, match="seed=1 has no effect"):
        cls(model, sgd(), 0.5, seed=1, **{k: v for k, v in asked.items() if k in settings_of(cls)})


@pytest.mark.parametrize("rho", [0.05, Late(0.5, 0.1, 10)])
def test_growth_by_a_gradient_that_is_never_taken(rho):
    model = nn.Linear(8, 8)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="grows by the gradient at theta; ZOSAM takes none there"):
        RigL(model, ZOSAM(base, rho), 0.5, steps=10, growth_gradient="theta")
    RigL(model, ZOSAM(base, 0.0), 0.5, steps=10, growth_gradient="theta")


# --- a sweep over what shapes the masks ------------------------------------------------------------------------------

SHAPING = {
    "budget": (None, "uniform", "er", "erk", "global"),
    "over": (None, "all", "masked"),
    "dense": (None, (), ("first",), ("first", "last")),
    "exclude": ((), ("shortcut",)),
    "min_per_layer": (None, 0, 5),
    "pattern": (None, "2:4", "block:2", "block:4"),
}


class Net(nn.Module):
    """Layers of many shapes, of which no rule fills one; those of one are small, and a global rule empties it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.small = nn.Conv2d(8, 32, 3, padding=1), nn.Conv2d(32, 16, 1)
        self.middle, self.shortcut = nn.Conv2d(16, 24, 3, padding=1), nn.Conv2d(32, 24, 1)
        self.last = nn.Linear(24, 16)
        with torch.no_grad():
            self.small.weight.mul_(1e-4)

    def forward(self, x):
        x = self.first(x)
        return self.last((self.middle(self.small(x)) + self.shortcut(x)).relu().mean((2, 3)))


NAMES = [f"{layer}.weight" for layer in ("first", "small", "middle", "shortcut", "last")]


@pytest.mark.parametrize("name", ["magnitude", "set", "gmp", "lth"])
@pytest.mark.filterwarnings("ignore")
def test_no_setting_that_shapes_masks_is_accepted_and_ignored(name):
    cls, found = METHODS[name], {}
    length = {"steps": 4} if "steps" in settings_of(cls) else {}
    for values in itertools.product(*SHAPING.values()):
        given = {k: v for k, v in zip(SHAPING, values, strict=True) if v is not None}
        model = Net()
        try:
            sparse = cls(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.5, **length, **given)
        except ValueError:
            continue
        masks = (
            sparse.smallest_pruned(sparse.n_active_by_layer or sparse.n_active)
            if name in {"gmp", "lth"}
            else sparse.masks
        )
        made = tuple(tuple(masks[n].flatten().tolist()) if n in masks else n in sparse.kept_dense for n in NAMES)
        told = {option: given.get(option, default_of(cls, option)) for option in SHAPING}
        assert found.setdefault(made, told) == told, f"{told} and {found[made]} make the same masks"
    assert len(found) > 20
