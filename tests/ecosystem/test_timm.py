"""Learning rates, decay groups and averaged weights are timm's, step by step; where timm is installed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from zosam.lab import models
from zosam.lab.decay_groups import decay_groups
from zosam.lab.ema import Ema
from zosam.lab.lr_schedules import Cosine

pytest.importorskip("timm", exc_type=ImportError)


@pytest.mark.parametrize("cooldown", [0, 10])
def test_deits_learning_rate(cooldown):
    from timm.scheduler.cosine_lr import CosineLRScheduler

    base = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=5e-4)
    theirs = CosineLRScheduler(base, t_initial=300, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6)
    ours = Cosine(
        lr=5e-4, epochs=300 + cooldown, warmup=5, warmup_lr=1e-6, minimum=1e-5, cooldown=cooldown, per_epoch=True
    )
    for epoch in range(300 + cooldown):
        theirs.step(epoch)
        assert ours(epoch) == pytest.approx(base.param_groups[0]["lr"], rel=1e-12)


@pytest.mark.parametrize("name", ["deit_tiny:image_size=32", "resnet32", "resnet50_cifar", "wrn28_10"])
def test_what_is_decayed(name):
    from timm.optim import param_groups_weight_decay

    model = models.build(name, 10)
    theirs = param_groups_weight_decay(model, 0.05, no_weight_decay_list={"pos_embed", "cls_token"})

    def decayed(groups):
        return {p for group in groups if group["weight_decay"] == 0.05 for p in group["params"]}

    assert decayed(decay_groups(model, 0.05)) == decayed(theirs)


def test_the_average_of_weights_and_buffers():
    from timm.utils import ModelEmaV3

    torch.manual_seed(0)
    model = models.build("resnet20:width=4", 10)
    ours, theirs = Ema(model, 0.9), ModelEmaV3(model, decay=0.9)
    ours.update(model)  # timm's begins with the weights of now, ours with those of its first update
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 3, 16, 16)), torch.arange(8)).backward()
        optimizer.step()
        ours.update(model)
        theirs.update(model)
        for (key, a), b in zip(ours.network.state_dict().items(), theirs.module.state_dict().values(), strict=True):
            if a.is_floating_point():
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=key)
