"""An accelerated model follows its weights and masks, or runs as before: its output is always the plain model's."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from zosam.kernels import accelerate, report, restore
from zosam.kernels.build import load
from zosam.lab.models import digits_net
from zosam.optim import ZOSAM, Central, Pair
from zosam.sparse import METHODS, RigL


def build() -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    torch.manual_seed(0)
    model = digits_net().eval()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(12, 1, 8, 8)


def agrees(model: nn.Module, x: Tensor) -> None:
    """With and without a graph, and once more when everything has been seen."""
    plain = restore(copy.deepcopy(model))
    for _ in range(2):
        torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-4)


def test_dense_weights_loaded_later(always: None) -> None:
    model, optimizer, x = build()
    dense = copy.deepcopy(model.state_dict())
    sparse = METHODS["random"](model, optimizer, 0.8)
    accelerate(model, sparse, x)
    agrees(model, x)
    model.load_state_dict(dense)
    with pytest.warns(RuntimeWarning, match="not zero"):
        model(x)
    agrees(model, x)
    with torch.no_grad():
        for name, mask in sparse.masks.items():
            model.get_parameter(name).mul_(mask)
    agrees(model, x)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_write_that_leaves_no_mark(always: None, layout: torch.memory_format) -> None:
    model, optimizer, x = build()
    model.to(memory_format=layout)
    sparse = METHODS["random"](model, optimizer, 0.8)
    accelerate(model, sparse, x)
    agrees(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, mask in sparse.masks.items():
            model.get_parameter(name).data.normal_().mul_(mask)
        agrees(model, x)
    for name in sparse.masks:
        model.get_parameter(name).data.normal_()
    with pytest.warns(RuntimeWarning, match="not zero"):
        model(x)
    agrees(model, x)


def test_one_stray_weight_is_enough(always: None) -> None:
    model, optimizer, x = build()
    sparse = METHODS["random"](model, optimizer, 0.8)
    accelerate(model, sparse, x)
    name, mask = list(sparse.masks.items())[1]
    with torch.no_grad():
        model.get_parameter(name).view(-1)[int((~mask).view(-1).nonzero()[-1])] = 100.0
    with pytest.warns(RuntimeWarning, match="not zero"):
        model(x)
    agrees(model, x)


def test_weights_in_another_layout_or_replaced(always: None) -> None:
    model, optimizer, x = build()
    dense = copy.deepcopy(model)
    sparse = METHODS["random"](model, optimizer, 0.8)
    accelerate(model, sparse, x)
    model(x)
    out = functional_call(model, dict(dense.named_parameters()), (x,))
    torch.testing.assert_close(out, dense(x), rtol=1e-4, atol=1e-4)
    agrees(model, x)
    model.to(memory_format=torch.channels_last)
    agrees(model, x)
    for p, other in zip(model.parameters(), dense.parameters(), strict=True):
        p.data = other.detach().clone()
    with pytest.warns(RuntimeWarning, match="not zero"):
        model(x)
    agrees(model, x)


def test_masks_that_are_let_go(always: None) -> None:
    model, optimizer, x = build()
    sparse = METHODS["random"](model, optimizer, 0.8)
    accelerate(model, sparse, x)
    agrees(model, x)
    sparse.release()
    agrees(model, x)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05)
    agrees(model, x)
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    assert all((p != 0).all() for name, p in model.named_parameters() if name in sparse.masks)
    agrees(model.eval(), x)


@pytest.mark.parametrize("way", ["after another", "beside another"])
def test_a_method_that_accelerate_was_not_given_sees_its_gradients(always: None, way: str) -> None:
    def trained(accelerated: bool) -> RigL:
        model, optimizer, x = build()
        model.train()
        layers = ("blocks.0", "blocks.2") if way == "beside another" else ((), ())
        first = METHODS["set"](model, optimizer, 0.8, every=2, steps=1000, include=layers[0])
        if accelerated:
            accelerate(model, first, x)
        if way == "after another":
            first.release()
        later = RigL(model, optimizer, 0.8, every=2, steps=1000, include=layers[1])
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return later

    plain, fast = trained(False), trained(True)
    assert all((plain.masks[n] == fast.masks[n]).float().mean() > 0.99 for n in plain.masks)


@pytest.mark.parametrize("decide", [Central(), Pair()], ids=["central", "pair"])
def test_what_is_known_to_be_zero_is_not_looked_at(always: None, decide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a training that nobody else writes to: neither pruned weights, nor gradients that the kernels have made."""
    model, base, x = build()
    optimizer = ZOSAM(base, rho=0.05, decide=decide)
    sparse = RigL(model, optimizer, 0.8, every=1000, steps=1000)
    accelerate(model, sparse, x)
    looked, masked = [], []

    def steps(many: int) -> None:
        for _ in range(many):
            optimizer.step(lambda: model(x).square().mean())

    steps(2)  # in the first RigL looks at the whole gradient
    look, multiply, c = load().c.zk_strays, sparse._multiply, load().c
    monkeypatch.setattr(c, "zk_strays", lambda *a: looked.append(a) or look(*a))
    monkeypatch.setattr(sparse, "_multiply", lambda pairs: masked.append(len(pairs)) or multiply(pairs))
    steps(4)
    assert looked == []
    assert [many for many in masked if many] == [len(sparse.weights)] * 4  # the weights, once a step


def test_a_training_is_not_warned(always: None) -> None:
    """Steps, updates of the masks and evaluation leave pruned weights at zero: nothing falls back."""
    model, optimizer, x = build()
    sparse = RigL(model.train(), optimizer, 0.8, every=2, steps=1000)
    accelerate(model, sparse, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    agrees(model.eval(), x)


def test_a_weight_that_is_made_of_others_later(always: None) -> None:
    model, optimizer, x = build()
    accelerate(model, METHODS["random"](model, optimizer, 0.8), x)
    model(x)
    layer = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    nn.utils.parametrizations.weight_norm(layer)
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(2)
    agrees(model, x)


@pytest.mark.parametrize("way", ["compile", "in place", "a part"])
def test_a_compiled_model_is_refused(masks: Any, way: str) -> None:
    model, _, x = build()
    sparse = masks(model, 0.8)
    if way == "compile":
        given: Any = torch.compile(model)
    elif way == "in place":
        given = model
        model.compile()
    else:
        given = nn.Sequential(torch.compile(model))
    with pytest.raises(TypeError, match=r"compile"):
        accelerate(given, sparse, x)
    assert report(model) == "not accelerated"


def test_torch_export_keeps_the_batch_size_open(always: None) -> None:
    """What is exported (ONNX goes this way) is the plain model, for batches of any size."""
    model, optimizer, x = build()
    accelerate(model, METHODS["random"](model, optimizer, 0.8), x)
    model(x)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    torch.testing.assert_close(exported(x[:5]), restore(copy.deepcopy(model))(x[:5]))
