"""A trained network runs on the kernels from its own zeros, or from a dict of masks, in batches of any size."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zosam.kernels import accelerate, choices, choose, report, restore
from zosam.lab.models import digits_net
from zosam.sparse import METHODS


def trained(masks: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = digits_net().eval()
    return model, masks(model, 0.8)


def agrees(model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(model(x), restore(copy.deepcopy(model))(x), rtol=1e-4, atol=1e-5)


def test_the_weights_own_zeros_are_a_pattern(always: None, masks: Any) -> None:
    model, _ = trained(masks)
    accelerate(model, example=torch.randn(8, 1, 8, 8))
    assert "layers on the kernels" in report(model)
    for batch in (1, 3, 8, 20):
        agrees(model, torch.randn(batch, 1, 8, 8))
    with torch.inference_mode():
        model(torch.randn(2, 1, 8, 8))


def test_other_weights_have_other_zeros(always: None, masks: Any) -> None:
    model, _ = trained(masks)
    accelerate(model, example=torch.randn(8, 1, 8, 8))
    x = torch.randn(8, 1, 8, 8)
    agrees(model, x)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.roll(1, 0))
        agrees(model, x)
        for p in model.parameters():
            p.add_(0.01)
    agrees(model, x)


def test_without_masks_nothing_is_trained_on_the_kernels(always: None, masks: Any) -> None:
    """A pruned weight would get no gradient, though nobody said that it is pruned for good."""
    model, _ = trained(masks)
    plain = copy.deepcopy(model)
    x = torch.randn(8, 1, 8, 8)
    accelerate(model, example=x)
    for net in (model, plain):
        net(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_dict_of_masks(always: None, masks: Any) -> None:
    model, sparse = trained(masks)
    x = torch.randn(8, 1, 8, 8)
    accelerate(model, dict(sparse.masks), x)
    agrees(model, x)
    model(x).sum().backward()
    name, mask = next(iter(sparse.masks.items()))
    assert not model.get_parameter(name).grad[~mask].any()


@pytest.mark.parametrize("wrong", ["name", "shape", "kind"])
def test_masks_of_something_else_are_refused(masks: Any, wrong: str) -> None:
    model, sparse = trained(masks)
    name, mask = next(iter(sparse.masks.items()))
    given = {"name": {"other": mask}, "shape": {name: mask[:1]}, "kind": {name: mask.float()}}[wrong]
    with pytest.raises(ValueError, match=r"mask"):
        accelerate(model, given, torch.randn(8, 1, 8, 8))


def test_a_method_at_work_must_be_given() -> None:
    """Else it would look at gradients that were not computed."""
    model = digits_net()
    sparse = METHODS["rigl"](model, torch.optim.SGD(model.parameters(), lr=0.1), 0.8, steps=100)
    for given in (None, dict(sparse.masks)):
        with pytest.raises(ValueError, match="give accelerate that object"):
            accelerate(model, given, torch.randn(8, 1, 8, 8))


def test_a_dense_model_is_told_so() -> None:
    with pytest.warns(RuntimeWarning, match="no masks"):
        accelerate(digits_net(), example=torch.randn(8, 1, 8, 8))


def test_choices_by_batch_size(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch wins for one picture here, the kernels for many; a size near one goes its way, others are measured."""
    model, _ = trained(masks)
    monkeypatch.setattr(choose, "remember", lambda key, measure: 0.5 if key.endswith("images 1") else 2.0)
    sizes = [torch.randn(n, 1, 8, 8) for n in (1, 64)]
    accelerate(model, example=sizes)
    assert {key.rpartition(" ")[2]: value for key, value in choices(model)[""].items()} == {"1": None, "64": []}
    forward: Any = model.forward
    assert [forward.version(n) is None for n in (1, 2, 3, 40, 64, 500)] == [True, True, False, False, False, False]
    for n in (1, 5, 20, 64):
        agrees(model, torch.randn(n, 1, 8, 8))


def test_each_size_has_one_piece_of_memory_and_four_sizes_are_kept(always: None, masks: Any) -> None:
    model, _ = trained(masks)
    accelerate(model, example=[torch.randn(n, 1, 8, 8) for n in (1, 64)])
    with torch.no_grad():
        for size in (1, 2, 3, 1, 40, 64, 80, 64, 1):
            agrees(model, torch.randn(size, 1, 8, 8))
    forward: Any = model.forward
    for version in forward.versions.values():
        for switch in version.switches:
            found = [len(program.free) for program in switch.kernels.programs.values()]
            assert found
            assert len(found) <= 4
            assert set(found) == {1}
