"""From a file to a network that serves."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zosam
from zosam.kernels import accelerate, accelerate_at_first_batch, choose, report, restore
from zosam.lab import serve
from zosam.lab.models import digits_net
from zosam.lab.run import Run, run
from zosam.lab.serve import bench, serve_bench
from zosam.sparse.save import export


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)


def pruned() -> nn.Module:
    torch.manual_seed(0)
    model = digits_net().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(torch.rand_like(p) > 0.9)
    return model


@pytest.mark.parametrize("form", ["compressed", "dense"])
@pytest.mark.parametrize("example", [False, True])
def test_a_file_and_its_network(tmp_path: Path, form: str, example: bool) -> None:
    model = pruned()
    path, x = export(model, tmp_path, form), torch.randn(8, 1, 8, 8)
    served = zosam.load(path, digits_net(), example=x if example else None)
    assert ("not measured yet: the first batch will be" in report(served)) is not example
    for _ in range(2):
        torch.testing.assert_close(served(x), model(x), rtol=1e-4, atol=1e-5)
    assert "layers on the kernels" in report(served)
    assert not served.training
    assert not any(p.requires_grad for p in served.parameters())


def test_a_network_that_waits_for_its_first_batch_can_be_restored_or_measured() -> None:
    model, x = accelerate_at_first_batch(pruned()), torch.randn(8, 1, 8, 8)
    restore(model)
    model(x)
    assert report(model) == "not accelerated"
    accelerate_at_first_batch(accelerate_at_first_batch(model))
    serve_bench(model, x, (8,), seconds=0.01)
    assert "layers on the kernels" in report(model)
    assert not model._forward_pre_hooks


def test_a_report_names_modules_as_the_model_does_and_sizes_in_order() -> None:
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3)).eval().requires_grad_(False)
    for p in model.parameters():
        p.mul_(torch.rand_like(p) > 0.9)
    x = torch.randn(64, 1, 8, 8)
    accelerate(model, example=[x, x[:1], x[:8]])
    fast = [f"2.0 times as fast forward of {size}" for size in (1, 8, 64)]
    assert report(model) == f"model: 0 to 2: 2 of 2 layers on the kernels ({', '.join(fast)})"


def test_a_report_says_that_torch_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "remember", lambda key, measure: 0.5)
    assert report(accelerate(pruned(), example=torch.randn(8, 1, 8, 8))).startswith("torch runs all of it")


def test_a_file_alone_does_not_say_what_it_is(tmp_path: Path) -> None:
    path = export(pruned(), tmp_path, "compressed")
    with pytest.raises(ValueError, match=r"zosam.load\(path, model\)"):
        zosam.load(path)
    with pytest.raises(ValueError, match="another network"):
        zosam.load(path, nn.Linear(2, 2))


def test_a_run_and_a_file_in_its_folder(tmp_path: Path) -> None:
    record = run(Run(data="digits", model="digits_net", method="random", sparsity=0.9, epochs=1), tmp_path)
    x = torch.randn(8, 1, 8, 8)
    expected = record.load().eval()(x)
    file = export(record.load(), record.path, "compressed")
    for path in (record.path, file):
        torch.testing.assert_close(zosam.load(path, example=x)(x), expected, rtol=1e-4, atol=1e-4)
    found, ways = bench(record.path, (1, 8), 1, None)
    assert [line["batch"] for line in found] == [1, 8]
    assert "layers on the kernels" in ways


def test_onnx_of_an_accelerated_network(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, x = pruned(), torch.randn(5, 1, 8, 8)
    expected = copy.deepcopy(model)(x)
    accelerate(model, example=x)
    path = export(model, tmp_path, "onnx", example=x[:1])
    session: Any = runtime.InferenceSession(str(path))
    (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), expected, rtol=1e-4, atol=1e-5)
    assert "layers on the kernels" in report(model)


def test_an_accelerated_network_is_exported_as_it_is_written() -> None:
    model, x = pruned(), torch.randn(5, 1, 8, 8)
    accelerate(model, example=x)
    for copied in (torch.export.export(model, (x,)).module(), torch.jit.trace(model, x)):
        torch.testing.assert_close(copied(x), model(x), rtol=1e-4, atol=1e-5)


def test_the_bench_measures_every_batch_size() -> None:
    found = serve_bench(pruned(), torch.randn(4, 1, 8, 8), (1, 6), seconds=0.05)
    assert [line["batch"] for line in found] == [1, 6]
    for line in found:
        dense = min(line[name] for name in ("torch_ms", "onnxruntime_ms") if name in line)
        assert line["gain"] == pytest.approx(dense / line["kernels_ms"], rel=1e-3)
        assert line["per_second"] == pytest.approx(1e3 * line["batch"] / line["kernels_ms"], rel=1e-3)
        assert all(len(str(value).replace(".", "").lstrip("0")) <= 6 for value in line.values()), "digits of noise"


def test_dense_torch_is_timed_in_both_layouts_and_the_faster_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_session", lambda *_: None)
    for took in ({"torch": 0.002, "channels_last": 0.003}, {"torch": 0.003, "channels_last": 0.002}):
        monkeypatch.setattr(serve, "_in_turns", lambda runs, _, took=took: {n: took.get(n, 0.001) for n in runs})
        (line,) = serve_bench(pruned(), torch.randn(4, 1, 8, 8), (4,))
        assert (line["torch_ms"], line["gain"]) == (2.0, 2.0)
        assert "channels_last_ms" not in line


@pytest.mark.parametrize("batches", [(), (0,), (8, -3)])
def test_batches_of_nothing_are_refused(batches: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        serve_bench(pruned(), torch.randn(4, 1, 8, 8), batches)


def test_threads_are_those_of_a_run(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="threads must be 1 or more"):
        bench(tmp_path, (1,), 0)
    with pytest.raises(ValueError, match="folder of a run"):
        bench(tmp_path, (1,), before + 1)
    assert torch.get_num_threads() == before


def test_a_network_that_is_still_trained_is_not_timed() -> None:
    model = digits_net()
    sparse = zosam.Random(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9)
    with pytest.raises(ValueError, match=r"zosam.save it and zosam.load it, or sparse.release\(\) first"):
        serve_bench(model, torch.randn(4, 1, 8, 8), (1,), seconds=0.0)
    sparse.release()
    assert serve_bench(model, torch.randn(4, 1, 8, 8), (1,), seconds=0.0)


class ByName(nn.Module):
    """Takes its inputs by name and gives a dict, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, values: torch.Tensor, weight: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        out = self.net(values)
        return {"out": out if weight is None else out * weight}


@pytest.mark.parametrize("example", [False, True])
def test_a_network_that_takes_its_inputs_by_name(tmp_path: Path, example: bool) -> None:
    torch.manual_seed(0)
    model, batch = ByName().eval(), {"values": torch.randn(6, 32), "weight": torch.tensor(2.0)}
    with torch.no_grad():
        model.net[0].weight.mul_(torch.rand(64, 32) > 0.9)
    path = export(model, tmp_path, "compressed")
    served = zosam.load(path, ByName(), example=batch if example else None)
    for _ in range(2):
        torch.testing.assert_close(served(**batch)["out"], model(**batch)["out"], rtol=1e-4, atol=1e-5)
    assert "layers on the kernels" in report(served)
    found = serve_bench(served, batch, (1, 9), seconds=0.01)
    assert [line["batch"] for line in found] == [1, 9]
    assert all(line["kernels_ms"] > 0 and line["torch_ms"] > 0 for line in found)


class OfTwo(nn.Module):
    """Needs two inputs, or things that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 64), nn.Linear(16, 64)

    def forward(self, x: torch.Tensor, y: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
        return torch.relu(self.a(x)) + self.b(y[0] if isinstance(y, list) else y)


@pytest.mark.parametrize("way", ["by place", "by name", "both", "in a list"])
def test_the_first_batch_may_be_given_in_any_way(way: str, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model, x, y = OfTwo().eval().requires_grad_(False), torch.randn(6, 32), torch.randn(6, 16)
    for layer in (model.a, model.b):
        layer.weight.mul_(torch.rand_like(layer.weight) > 0.9)
    expected = model(x, y)
    accelerate_at_first_batch(model)
    for _ in range(2):
        if way == "by place":
            out = model(x, y)
        elif way == "in a list":
            out = model(x, [y])
        else:
            out = model(x, y=y) if way == "both" else model(x=x, y=y)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert ("layers on the kernels" in report(model)) == (way != "in a list")
    assert ("more than tensors" in caplog.text) == (way == "in a list")
