"""Sizes, costs and shapes of the networks against the published numbers."""

import pytest
import torch
from torch import nn

from zosam.lab.models import MODELS, deit_small, deit_tiny, resnet32, resnet50_cifar, wrn, wrn28_10
from zosam.lab.models.blocks import ZeroPad
from zosam.lab.models.deit import DropPath

COUNTS = [
    ("resnet32", 10, 1_860_522),
    ("resnet32", 100, 1_872_132),
    ("resnet50_cifar", 10, 23_520_842),
    ("resnet50_cifar", 100, 23_705_252),
    ("wrn28_10", 10, 36_479_194),
    ("wrn28_10", 100, 36_536_884),
    ("deit_tiny", 1000, 5_717_416),
    ("deit_small", 1000, 22_050_664),
    ("resnet20", 10, 269_722),
    ("resnet32_he", 10, 464_154),
    ("resnet56", 10, 853_018),
    ("resnet50", 1000, 25_557_032),
]


def on_paper(make, **settings):
    """The network without memory behind it: enough to count."""
    with torch.device("meta"):
        return make(**settings)


@pytest.mark.parametrize(("name", "classes", "count"), COUNTS)
def test_number_of_weights(name, classes, count):
    model = on_paper(MODELS[name], num_classes=classes)
    assert sum(p.numel() for p in model.parameters()) == count


def macs(model, shape):
    """Multiply-adds of all convolutions and linear layers for one picture."""
    total = 0

    def count(module, args, out):
        nonlocal total
        total += out[0].numel() * module.weight[0].numel() if isinstance(module, nn.Conv2d) else module.weight.numel()

    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(count)
    model(torch.zeros(1, *shape, device="meta"))
    return total / 1e9


@pytest.mark.parametrize(
    ("name", "shape", "cost"),
    [
        ("resnet32", (3, 32, 32), 0.276),
        ("resnet32_he", (3, 32, 32), 0.069),
        ("resnet50_cifar", (3, 32, 32), 1.30),
        ("wrn28_10", (3, 32, 32), 5.24),
        ("resnet50", (3, 224, 224), 4.09),
    ],
)
def test_cost_of_one_picture(name, shape, cost):
    assert macs(on_paper(MODELS[name]).eval(), shape) == pytest.approx(cost, rel=0.01)


def test_resnet32_has_34_weights_to_prune():
    weights = [p for p in on_paper(resnet32).parameters() if p.dim() > 1]
    assert len(weights) == 34
    assert sum(w.numel() for w in weights) == 1_855_584


def test_resnet32_starts_as_grasp_does():
    torch.manual_seed(0)
    model = resnet32()
    assert model.fc.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert model.fc.bias.abs().max() == 0
    conv = model.layer2[1].conv1.weight  # 64 channels out, 3 x 3: std = sqrt(2 / 576)
    assert conv.std().item() == pytest.approx((2 / 576) ** 0.5, rel=0.05)


def test_zero_pad_takes_every_second_pixel():
    x = torch.arange(2 * 4 * 4.0).view(1, 2, 4, 4)
    out = ZeroPad(2, 4, 2)(x)
    assert out.shape == (1, 4, 2, 2)
    assert out[0, 0].abs().max() == 0
    assert out[0, 3].abs().max() == 0
    assert out[0, 1].tolist() == [[0, 2], [8, 10]]


@pytest.mark.parametrize(
    ("name", "size"), [("resnet20", 32), ("resnet32", 32), ("resnet50_cifar", 32), ("resnet50", 64)]
)
def test_forward_and_backward(name, size):
    torch.manual_seed(0)
    model = MODELS[name](num_classes=7)
    out = model(torch.randn(2, 3, size, size))
    assert out.shape == (2, 7)
    out.logsumexp(1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_digits_net():
    assert MODELS["digits_net"]()(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_any_wide_resnet():
    model = wrn(num_classes=5, depth=10, width=2)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 5)
    # WRN-16-4 has 2.7 million weights in its paper
    assert sum(p.numel() for p in on_paper(wrn, depth=16, width=4).parameters()) == pytest.approx(2.75e6, rel=0.01)
    assert on_paper(wrn).state_dict().keys() == on_paper(wrn28_10).state_dict().keys()
    with pytest.raises(ValueError, match="6n"):
        wrn(depth=20)


def test_deit_takes_any_picture_size():
    torch.manual_seed(0)
    model = deit_tiny(num_classes=3, image_size=32, patch_size=8).eval()
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert model(torch.randn(2, 3, 48, 64)).shape == (2, 3)
    with pytest.raises(ValueError, match="multiple"):
        deit_tiny(image_size=30)


def test_positions_of_another_size_keep_what_is_constant():
    model = deit_tiny(num_classes=3, image_size=32, patch_size=8)
    with torch.no_grad():
        model.pos_embed[:, 1:] = torch.arange(192.0)
    resized = model.positions(6, 5)
    assert resized.shape == (1, 31, 192)
    torch.testing.assert_close(resized[:, 1:], torch.arange(192.0).expand(1, 30, 192))
    torch.testing.assert_close(resized[:, 0], model.pos_embed[:, 0])


def test_drop_path_drops_whole_pictures_and_keeps_the_mean():
    torch.manual_seed(0)
    drop, x = DropPath(0.25), torch.ones(4000, 3, 2)
    out = drop(x)
    kept = out[:, 0, 0] != 0
    assert ((out == 0) | (out == 1 / 0.75)).all()
    assert (out.flatten(1).std(1) == 0).all()
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.03)
    assert drop.eval()(x) is x


def test_drop_path_grows_with_depth():
    rates = [layer.drop_path.rate for layer in on_paper(deit_small, drop_path=0.2).blocks]
    assert rates[0] == 0
    assert rates[-1] == pytest.approx(0.2)
    assert rates == sorted(rates)


def test_cifar_stem_keeps_the_size():
    model = on_paper(resnet50_cifar)
    assert model.maxpool(model.conv1(torch.zeros(1, 3, 32, 32, device="meta"))).shape[2:] == (32, 32)
