"""The faster way is measured once and remembered."""

from __future__ import annotations

import copy
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zosam.kernels import accelerate, choices, choose, report, restore


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(choose, "_known", {})


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))


def test_measurements_are_made_once(masks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    sparse = masks(net, 0.9)
    accelerate(net, sparse, torch.randn(32, 4, 8, 8))
    known = dict(choose._known)
    assert len(known) == 8  # two layers, the region and the model, with backward and without
    monkeypatch.setattr(choose, "ratio", lambda *_: pytest.fail("measured again"))
    accelerate(net, sparse, torch.randn(32, 4, 8, 8))
    choose._known.clear()  # another process
    accelerate(net, sparse, torch.randn(32, 4, 8, 8))
    assert choose._known == known
    choose.forget()
    assert not list(tmp_path.iterdir())


def test_a_region_that_loses_runs_as_before(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "remember", lambda key, measure: 0.9)
    net = model()
    x = torch.randn(32, 4, 8, 8)
    expected = net.eval()(x)
    accelerate(net, masks(net, 0.0), x)
    assert torch.equal(net(x), expected)
    assert "layers on the kernels" not in report(net)


def test_a_broken_cache_is_ignored(masks: Any, tmp_path: Path) -> None:
    (tmp_path / "choices.json").write_text("{broken")
    net = model()
    accelerate(net, masks(net, 0.9), torch.randn(32, 4, 8, 8))
    assert len(choose._known) == 8


def timings(fast: str) -> Any:
    """Measurements by which one kind of layer stays dense inside a region, and regions win."""
    return lambda key, measure: 0.5 if fast in key else 2.0


def sums(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    out = net(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]


def ways(net: nn.Module) -> list[str]:
    """What runs where, without what was measured."""
    return [line.partition(" (")[0] for line in report(net).splitlines()]


def test_choices_are_done_again_without_measuring(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, x = model().eval(), torch.randn(32, 4, 8, 8)
    sparse = masks(net, 0.9)
    before = copy.deepcopy(net.state_dict())
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)
    accelerate(net, sparse, x)
    first, chosen, bits = ways(net), json.loads(json.dumps(choices(net))), sums(net, x)
    monkeypatch.setattr(choose, "remember", timings(" layer "))
    accelerate(net, sparse, x)
    assert ways(net) != first
    assert any(not torch.equal(a, b) for a, b in zip(bits, sums(net, x), strict=True))
    monkeypatch.setattr(choose, "remember", lambda key, measure: pytest.fail("measured again"))
    accelerate(net, sparse, x, chosen)
    assert ways(net) == first
    assert choices(net) == chosen
    assert all(torch.equal(a, b) for a, b in zip(bits, sums(net, x), strict=True))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert choices(restore(net)) == {}


def test_a_choice_against_the_kernels_is_kept_too(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = model(), torch.randn(32, 4, 8, 8)
    sparse = masks(net, 0.9)
    monkeypatch.setattr(choose, "remember", lambda key, measure: 0.5)
    chosen = choices(accelerate(net, sparse, x))
    assert list(chosen[""].values()) == [None, None]
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)
    assert "layers on the kernels" not in report(accelerate(net, sparse, x, chosen))


def test_regions_that_choices_do_not_know_are_measured(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = model(), torch.randn(32, 4, 8, 8)
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)
    accelerate(net, masks(net, 0.9), x, {"": {"another to one": None}, "gone": {}})
    assert "2 of 2 layers on the kernels" in report(net)


@pytest.mark.parametrize("wrong", [[], {"": []}, {"": {"a to b": 3}}])
def test_what_are_no_choices_is_refused(masks: Any, wrong: Any) -> None:
    net, x = model(), torch.randn(32, 4, 8, 8)
    with pytest.raises(ValueError, match="choices"):
        accelerate(net, masks(net, 0.9), x, wrong)


def test_a_batch_size_far_from_all_others_is_measured_when_it_comes(
    masks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here torch wins with up to eight pictures, in training and in evaluation."""
    asked: list[int] = []

    def remembered(key: str, measure: Any) -> float:
        asked.append(int(key.rpartition(" ")[2]))
        return 0.5 if asked[-1] <= 8 else 2.0

    monkeypatch.setattr(choose, "remember", remembered)
    net, x = model(), torch.randn(32, 4, 8, 8)
    sparse = masks(net, 0.9)
    accelerate(net, sparse, x)
    forward: Any = net.forward
    for mode in (True, False):
        net.train(mode)
        asked.clear()
        net(x[:16])
        assert not asked  # near enough to 32
        expected = restore(copy.deepcopy(net))(x[:4])
        assert torch.equal(net(x[:4]), expected)
        assert set(asked) == {4}
        assert forward.version(4) is None
        assert forward.version(32) is not None
    assert (True, 4) in forward.lost
    monkeypatch.setattr(type(forward), "is_plain", lambda *_: pytest.fail("looked for hooks"))
    net(x[:4])  # torch's way has nothing around it
    monkeypatch.undo()
    chosen = choices(net)
    monkeypatch.setattr(choose, "remember", lambda key, measure: pytest.fail("measured again"))
    accelerate(net, sparse, x, chosen)
    net(x[:1])  # given choices are all there is


def test_a_model_that_does_not_gain_as_a_whole_runs_as_before(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "remember", lambda key, measure: 0.9 if " whole " in key else 2.0)
    net = model()
    sparse = masks(net, 0.9)
    accelerate(net, sparse, torch.randn(32, 4, 8, 8))
    assert "forward" not in net.__dict__
    assert set(choices(net)[""].values()) == {None}


def test_one_line_says_what_runs_where(masks: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)
    net = nn.Sequential(model(), nn.ConvTranspose2d(8, 4, 2, 2))
    sparse = masks(net, 0.9)
    sparse.masks["1.weight"] = torch.rand(8, 4, 2, 2) < 0.1
    with caplog.at_level("INFO", "zosam"):
        accelerate(net, sparse, torch.randn(32, 4, 8, 8))
        assert caplog.messages[-1] == (
            "accelerate: 2 of 3 sparse layers on the kernels; 2.0 times as fast in training at batch 32, 2.0 times"
            " as fast in evaluation at batch 32; not 1: ConvTranspose2d runs in torch"
        )
        monkeypatch.setattr(choose, "remember", lambda key, measure: 546.9)  # torch's threads waited for others
        accelerate(net, sparse, torch.randn(32, 4, 8, 8))
        assert "; over 20 times as fast in training at batch 32, over 20 times" in caplog.messages[-1]
        assert "over 20 times as fast training of 32" in report(net)
        monkeypatch.setattr(choose, "remember", lambda key, measure: 0.5)
        accelerate(net, sparse, torch.randn(32, 4, 8, 8))
        assert caplog.messages[-1].startswith(
            "accelerate: nothing gains, the model runs as before; not 0.0, 0.3: torch is"
        )
        assert caplog.records[-1].levelname == "WARNING"


class Twice(nn.Module):
    """A layer that is used twice, and attention that is asked for its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.attend = nn.Linear(6, 6), nn.MultiheadAttention(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.attend(x, x, x)[0]
        return self.linear(torch.relu(self.linear(out)))


def test_what_was_not_measured_is_not_called_slow(masks: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)
    net = Twice()
    with caplog.at_level("INFO", "zosam"):
        accelerate(net, masks(net, 0.5), torch.randn(3, 4, 6))
    assert caplog.messages[-1] == (
        "accelerate: nothing gains, the model runs as before; not linear: a layer is used twice; attend.out_proj: runs"
        " in torch as it is called here"
    )


def test_the_report_names_layers_that_no_kernel_knows(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)
    net = nn.Sequential(model(), nn.ConvTranspose2d(8, 4, 2, 2))
    sparse = masks(net, 0.9)
    accelerate(net, sparse, torch.randn(32, 4, 8, 8))
    assert "ConvTranspose2d" not in report(net)  # it is dense
    sparse.masks["1.weight"] = torch.rand(8, 4, 2, 2) < 0.1
    accelerate(net, sparse, torch.randn(32, 4, 8, 8))
    assert report(net).splitlines()[-1] == "1: ConvTranspose2d runs in torch"


def test_progress_is_not_written_into_what_somebody_else_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", own := Terminal())
    choose._show("measuring")
    assert own.getvalue() == ""  # as under a progress bar, which has put itself in the place of stderr
    monkeypatch.setattr(sys, "__stderr__", own)
    choose._show("measuring")
    assert own.getvalue() == "\r\033[Kmeasuring"
