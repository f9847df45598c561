"""Settings that no network can have are refused before it is looked at, and so are those without effect."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zosam.optim import ZOSAM
from zosam.optim.schedules import Late
from zosam.sparse import GMP, MEST, SNFS, Magnitude, RigL, SynFlow


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
    ],
)
def test_what_no_network_can_have(cls, settings, message):
    length = {} if cls in (Magnitude, SynFlow) else {"steps": 100}
    with pytest.raises(ValueError, match=message):
        cls(Unseen.__new__(Unseen), sgd(), 0.9, **length, **settings)


@pytest.mark.parametrize("rho", [0.05, Late(0.5, 0.1, 10)])
def test_growth_by_a_gradient_that_is_never_taken(rho):
    model = nn.Linear(8, 8)
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="grows by the gradient at theta; ZOSAM takes none there"):
        RigL(model, ZOSAM(base, rho), 0.5, steps=10, growth_gradient="theta")
    RigL(model, ZOSAM(base, 0.0), 0.5, steps=10, growth_gradient="theta")
