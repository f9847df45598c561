"""Which device a training takes, and what is refused with a sentence; real ones are stood in for."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from zosam.distributed.ranks import joined
from zosam.kernels import accelerate
from zosam.lab import device, serve
from zosam.lab.cli import main
from zosam.lab.data.cifar_c import Corrupted
from zosam.lab.measure.robustness import corrupted
from zosam.lab.record import read_record
from zosam.lab.run import Run, run
from zosam.lab.where import Where

TINY = Run(model="digits_net:width=4", epochs=1, batch_size=1000, method="dense", optimizer="sgd")
RANKS = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@pytest.fixture
def four_gpus(monkeypatch):
    """A machine with four; what is not asked of it cannot be asked of it."""
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    gpus = types.SimpleNamespace(device_count=lambda: 4, current_device=lambda: 2)
    monkeypatch.setattr(device, "_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(device, "_module", lambda _: gpus)
    return monkeypatch


def test_by_name(four_gpus):
    for name, found in (("auto", "cuda:2"), ("cuda", "cuda:2"), ("cuda:1", "cuda:1"), ("cpu", "cpu"), ("cpu:0", "cpu")):
        assert device.choose(name) == torch.device(found)


@pytest.mark.parametrize("rank", range(4))
def test_each_process_of_torchrun_takes_its_own(four_gpus, rank):
    for name, value in zip(RANKS, (str(rank), "4", "none"), strict=True):
        four_gpus.setenv(name, value)
    assert device.choose("auto") == device.choose("cuda") == torch.device("cuda", rank)
    assert device.choose("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="4 processes cannot share cuda:1: say cuda"):
        device.choose("cuda:1")
    four_gpus.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(ValueError, match="8 processes for 4 x cuda: torchrun --nproc-per-node 4"):
        device.choose("auto")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cuda:4", "there is no cuda:4: torch sees a CPU and 4 x cuda, counted from 0"),
        ("mps", "device mps: torch .* sees a CPU and 4 x cuda"),
        ("meta", "device meta: torch"),
        ("gpu", "there is no device 'gpu'"),
    ],
)
def test_what_is_not_there_is_refused(four_gpus, name, says):
    with pytest.raises(ValueError, match=says):
        device.choose(name)


def test_kernels_are_for_cpus(four_gpus):
    says = "the sparse kernels are for CPUs, and this is cuda:2: leave accelerate out"
    with pytest.raises(ValueError, match=says), Where(accelerate=True).here():
        pass


@pytest.mark.parametrize("name", ["pretend", "cuda", "mps:0"])
def test_without_an_accelerator_the_command_line_says_so(name, monkeypatch, capsys, tmp_path):
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is one")
    monkeypatch.setattr("sys.argv", ["zosam", "train", "--device", name, "--epochs", "1", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "torch" in (told := capsys.readouterr().err)
    assert "a CPU alone" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"threads": 0}, "threads must be 1"), ({"workers": -1}, "workers must be 0"),
     ({"compile": True, "accelerate": True}, "choose accelerate or compile")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(settings, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        run(TINY, tmp_path, **settings)


def test_threads_are_put_back_and_written_down(tmp_path):
    before = torch.get_num_threads()
    record = run(TINY, tmp_path, threads=before + 1, device="cpu")
    assert torch.get_num_threads() == before
    told = read_record(record.path)["made_with"]
    assert told["threads"] == before + 1
    assert told["device"] == "cpu"
    assert told["device_name"] == told["cpu"]
    assert told["kernels"] == "none"


def test_the_address_knows_nothing_of_where(tmp_path):
    first = run(TINY, tmp_path, device="cpu", workers=0)
    assert run(TINY, tmp_path, threads=1).path == first.path
    assert "device" not in first.run.description


def test_a_compiled_run_is_the_plain_one_up_to_rounding(tmp_path, monkeypatch):
    """By dynamo's own interpreter: what inductor makes is torch's matter, and takes minutes."""
    compiled, own = [], torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self: (compiled.append(type(self).__name__), own(self, backend="eager"))
    )
    what = Run(model="digits_net:width=4", epochs=1, batch_size=500, method="rigl:every=2")
    plain, fast = run(what, tmp_path / "plain"), run(what, tmp_path / "fast", compile=True)
    assert compiled == ["DigitsNet"]
    assert fast.last["train_loss"] == pytest.approx(plain.last["train_loss"], rel=1e-3)
    assert fast.load().state_dict().keys() == plain.load().state_dict().keys()
    assert read_record(fast.path)["made_with"]["compiled"] is True
    assert "compiled" not in read_record(plain.path)["made_with"]


@pytest.mark.parametrize(
    ("name", "backend"), [("cpu", "gloo"), ("cuda:1", "cpu:gloo,cuda:nccl"), ("xpu:0", "cpu:gloo,xpu:xccl")]
)
def test_processes_talk_by_the_backend_of_their_device(name, backend, monkeypatch):
    """Numbers on the CPU by gloo, whatever trains; tensors on the device by its own."""
    found = []
    for variable, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys.modules["torch.distributed.rendezvous"], "rendezvous", lambda url: iter([(None, 1, 2)]))
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, **_: found.append(backend))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: found.append("left"))
    with joined(torch.device(name)):
        assert found == [backend]
    assert found == [backend, "left"]


def test_the_kernels_refuse_a_model_that_is_elsewhere():
    model = torch.nn.Linear(8, 8, device="meta")
    with pytest.raises(ValueError, match="for CPUs, and this model lies on meta: leave accelerate out"):
        accelerate(model, {"weight": torch.ones(8, 8, dtype=torch.bool)}, torch.zeros(1, 8))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"threads": 2.5}, "threads must be a whole number"),
        ({"workers": "2"}, "workers must be a whole number"),
        ({"compile": "yes"}, "compile must be true or false"),
        ({"device": None}, "device must be text"),
        ({"checkpoint_minutes": -1}, "checkpoint_minutes must be 0 or more"),
    ],
)
def test_where_to_train_is_checked(where, message):
    with pytest.raises(ValueError, match=message):
        Where(**where)


class Layouts(TorchDispatchMode):
    """Notes the convolutions that are given anything in channels_last."""

    def __init__(self):
        super().__init__()
        self.last = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "convolution" in function.name():
            given = [a for a in args if isinstance(a, torch.Tensor) and a.dim() == 4]
            self.last += [function for t in given if not t.is_contiguous()]
        return function(*args, **(kwargs or {}))


class ByHand(nn.Module):
    """A convolution that only its forward knows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 6, 1, 1))

    def forward(self, x):
        return nn.functional.conv2d(x, self.weight, stride=2)


def network(*convolutions):
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), *convolutions, nn.Flatten(), nn.LazyLinear(10))


@pytest.mark.parametrize(
    ("convolution", "bears"),
    [
        (nn.Conv2d(6, 10, 1, stride=2), False),
        (nn.Conv2d(6, 10, 3, dilation=2), False),
        (nn.Conv2d(6, 10, 3, stride=2), True),
        (nn.Conv2d(6, 10, 1), True),
        (nn.Sequential(nn.Conv2d(6, 8, 3), nn.Conv2d(8, 16, 1, stride=2)), False),
        (nn.Sequential(nn.Conv2d(6, 16, 3), nn.Conv2d(16, 10, 1, stride=2)), True),
        (ByHand(), False),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 10, 3)), True),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 10, 1, stride=2)), False),
    ],
)
def test_convolutions_that_crash_in_channels_last_are_not_given_it(convolution, bears, monkeypatch):
    """Of torch 2.13 on the CPU: the backward of these writes past its memory."""
    model, x = network(convolution), torch.randn(4, 3, 8, 8)
    model(x)
    part = Corrupted("fog", 1, np.zeros((4, 8, 8, 3), np.uint8), torch.zeros(4, dtype=torch.long), 2)
    monkeypatch.setattr(serve, "accelerate", lambda model, **_: model)
    monkeypatch.setattr(serve, "_session", lambda *_: None)
    with Layouts() as seen:
        placed = device.placed(model, torch.device("cpu"))
        nn.functional.cross_entropy(placed(x), torch.zeros(4, dtype=torch.long)).backward()
        corrupted(placed, [part])
        serve.serve_bench(model, x, [4], seconds=0.0)
    assert bool(seen.last) == bears
