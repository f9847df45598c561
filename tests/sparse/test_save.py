"""Files: state beside the weights, models without their zeros, export."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from zosam.lab.models import resnet32
from zosam.sparse import SET, Magnitude, RigL
from zosam.sparse.ever_active import Exploration
from zosam.sparse.save import compressed_masks, export, load_compressed, load_state, save, save_state

from .toy import sgd


def test_state_goes_through_one_file(trial, same, sparse_method, tmp_path):
    straight, resumed = trial("sam", sparse_method), trial("sam", sparse_method)
    straight.step(5)
    resumed.step(2)
    save_state(straight.sparse, tmp_path / "sparse.safetensors")
    resumed.model.load_state_dict(straight.model.state_dict())
    load_state(resumed.sparse, tmp_path / "sparse.safetensors")
    resumed.optimizer.load_state_dict(copy.deepcopy(straight.optimizer.state_dict()))
    resumed.stream = straight.stream
    straight.step(4)
    resumed.step(4)
    assert same(straight.snapshot(), resumed.snapshot())


def test_a_file_of_another_model_or_method_is_refused_and_nothing_changes(tmp_path):
    small, large, other, third = nn.Linear(10, 10), nn.Linear(10, 12), nn.Linear(10, 10), nn.Linear(10, 10)
    path = tmp_path / "sparse.safetensors"
    save_state(SET(small, sgd(small), 0.5, steps=1000), path)
    sparse = SET(large, sgd(large), 0.5, steps=1000)
    before = copy.deepcopy(sparse.state_dict())
    with pytest.raises(ValueError, match="another model or setting: weight"):
        load_state(sparse, path)
    with pytest.raises(ValueError, match="state of SET, not of Magnitude"):
        load_state(Magnitude(other, sgd(other), 0.5), path)
    with pytest.raises(ValueError, match="not the state of RigL"):
        RigL(third, sgd(third), 0.5, steps=1000).load_state_dict({"masks": {}, "steps": 0, "threshold": 1.0})
    save(small, path)
    with pytest.raises(ValueError, match="is no zosam sparse state"):
        load_state(sparse, path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match="damaged"):
        load_state(sparse, path)
    assert sparse.steps == before["steps"]
    assert torch.equal(sparse.masks["weight"], before["masks"]["weight"])


@pytest.mark.parametrize("with_masks", [True, False])
def test_a_compressed_model_is_small_and_plain_again(tmp_path, with_masks):
    torch.manual_seed(0)
    model = resnet32().to(memory_format=torch.channels_last)
    sparse = SET(model, sgd(model), 0.95, steps=1000)
    path = tmp_path / "model.sparse.safetensors"
    save(model, path, sparse.masks if with_masks else None)
    dense = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    assert path.stat().st_size < dense / 10
    other = resnet32()
    other.load_state_dict(load_compressed(path))  # nobody has to know the method
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    masks = compressed_masks(path)
    sparse_enough = [n for n, m in sparse.masks.items() if m.float().mean() < 0.9]
    assert all(torch.equal(masks[n], sparse.masks[n]) for n in sparse_enough)


def test_an_active_weight_that_is_zero_stays_active_in_the_file(tmp_path):
    model = nn.Linear(20, 20)
    sparse = SET(model, sgd(model), 0.9, steps=1000)
    with torch.no_grad():
        model.weight.zero_()
    save(model, tmp_path / "model", sparse.masks)
    assert torch.equal(compressed_masks(tmp_path / "model")["weight"], sparse.masks["weight"])


def test_tied_weights_are_written_once(tmp_path):
    model = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    model[1].weight = model[0].weight
    SET(model, sgd(model), 0.5, steps=1000)
    save(model, tmp_path / "model")
    assert (tmp_path / "model").stat().st_size < 50 * 50 * 4 * 0.8
    other = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    other.load_state_dict(load_compressed(tmp_path / "model"))
    assert torch.equal(other[1].weight, model[1].weight)


def test_export(tmp_path):
    model = nn.Sequential(nn.Linear(30, 30), nn.BatchNorm1d(30))
    sparse = SET(model, sgd(model), 0.9, steps=1000)
    dense = export(model, tmp_path, "dense")
    small = export(model, tmp_path, masks=sparse.masks)
    assert dense.stat().st_size > small.stat().st_size
    with pytest.raises(ValueError, match="did you mean 'dense'"):
        export(model, tmp_path, "denes")
    with pytest.raises(ValueError, match="example"):
        export(model, tmp_path, "onnx")


def test_an_onnx_file_that_fails_to_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    def broken(model, inputs, path, **_):
        Path(path).write_bytes(b"half")
        raise RuntimeError("stopped")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("torch.onnx.export", lambda model, inputs, path, **_: Path(path).write_bytes(b"whole"))
    path = export(nn.Linear(3, 3), tmp_path, "onnx", example=torch.zeros(1, 3))
    monkeypatch.setattr("torch.onnx.export", broken)
    with pytest.raises(RuntimeError, match="stopped"):
        export(nn.Linear(3, 3), tmp_path, "onnx", example=torch.zeros(1, 3))
    assert path.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [path]


def test_onnx(tmp_path):
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    model = nn.Sequential(nn.Linear(30, 30), nn.BatchNorm1d(30))
    path = export(model, tmp_path, "onnx", example=torch.randn(2, 30))
    onnx.checker.check_model(onnx.load(str(path)))
    assert model.training


def test_exploration(tmp_path):
    model = nn.Linear(40, 25, bias=False)
    sparse = SET(model, sgd(model, 0.1), 0.9, every=1, drop_fraction=0.5, steps=1000)
    explored, ever, first = Exploration(sparse), sparse.masks["weight"].clone(), sparse.masks["weight"].clone()
    assert explored.rate == 0.1
    for t in range(4):
        last = sparse.masks["weight"].clone()
        model.weight.grad = torch.ones_like(model.weight)
        sparse.optimizer.step()
        now = sparse.masks["weight"]
        ever |= now
        if t:
            at, before, start = explored.history[-1]
            assert (at, before, start) == (t, int((now & last).sum()) / 100, int((now & first).sum()) / 100)
    assert explored.rate == int(ever.sum()) / 1000 > 0.15
    torch.save(explored.state_dict(), tmp_path / "explored")
    other = Exploration(sparse)
    other.load_state_dict(torch.load(tmp_path / "explored", weights_only=True))
    assert (other.rate, other.history) == (explored.rate, explored.history)


@pytest.mark.parametrize("form", ["dense", "compressed"])
def test_a_compiled_model_is_written_by_plain_names(tmp_path, form):
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
    plain = list(model.state_dict())
    model[1] = torch.compile(model[1], backend="eager")
    compiled = torch.compile(model, backend="eager")
    sparse = SET(compiled, sgd(compiled), 0.9, steps=10)
    path = export(compiled, tmp_path, form, masks=sparse.masks)
    state = load_compressed(path) if form == "compressed" else safetensors.torch.load_file(path)
    assert list(state) == plain or set(state) == set(plain)
    nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30)).load_state_dict(state)


def test_equal_states_are_equal_files(tmp_path):
    """What a hash map holds comes in any order, and a header is made of one."""
    model = nn.Linear(8, 8)
    sparse = RigL(model, sgd(model), 0.5, steps=10)
    for i in range(8):
        save_state(sparse, tmp_path / f"state{i}")
        save(model, tmp_path / f"model{i}", sparse.masks)
    for kind in ("state", "model"):
        assert len({file.read_bytes() for file in tmp_path.glob(f"{kind}*")}) == 1
