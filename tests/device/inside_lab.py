"""Whole runs and measurements where the device `pretend` exists, in a process of its own: see test_device.py."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

sys.path.insert(0, str(Path(__file__).parent))
from pretend import Pretend, counted, waits

from zosam.lab import checkpoints, data
from zosam.lab.assemble import load_data
from zosam.lab.cli.networks import eval_
from zosam.lab.data import cifar
from zosam.lab.data.batches import Data, Tensors
from zosam.lab.device import choose
from zosam.lab.measure import hessian, landscape, variance
from zosam.lab.paper import speed
from zosam.lab.paper.figure import Figure
from zosam.lab.paper.measured import measured
from zosam.lab.paper.results_store import Book
from zosam.lab.record import read_record
from zosam.lab.run import Run, run
from zosam.lab.terminal import Output
from zosam.lab.train import classification, evaluate
from zosam.lab.where import Where

DEVICE = torch.device("pretend:0")
# four steps an epoch
SMALL = Run(model="digits_net:width=4", epochs=2, method="rigl:every=3", batch_size=360, rho=0.1)
RICH = dataclasses.replace(
    SMALL, ema=0.9, clip=1.0, label_smoothing=0.1, nesterov=True, schedule="cosine:warmup=1", diagnostics=True
)


@pytest.fixture(autouse=True)
def _pretend():
    with Pretend():
        yield


def near(a, b):
    """The files of two runs up to rounding."""
    for name in ("model.safetensors", "ema.safetensors"):
        if (a.path / name).exists() or (b.path / name).exists():
            one, other = (safetensors.torch.load_file(r.path / name) for r in (a, b))
            assert one.keys() == other.keys()
            for key in one:
                torch.testing.assert_close(one[key], other[key], rtol=1e-4, atol=1e-5, msg=key)
    for one, other in zip(a.epochs, b.epochs, strict=True):
        for key in ("train_loss", "test_loss", "gradient_variance", "ema_test_loss"):
            assert one.get(key) == (None if key not in other else pytest.approx(other[key], rel=1e-3))


def small_cifar(folder, monkeypatch):
    """CIFAR-10 of 5 x 12 + 20 pictures, in the canonical files."""
    kind = dataclasses.replace(cifar.CIFAR10, rows=(12, 20))
    monkeypatch.setattr(cifar, "CIFAR10", kind)
    rng, where = np.random.default_rng(0), folder / kind.folder
    where.mkdir()
    for name in (*kind.train, kind.test):
        rows = 20 if name == kind.test else 12
        content = {b"data": rng.integers(0, 256, (rows, 3072), np.uint8), b"labels": rng.integers(0, 10, rows).tolist()}
        (where / name).write_bytes(pickle.dumps(content, protocol=2))
    return str(folder)


def test_auto_takes_the_accelerator():
    assert choose("auto") == choose("pretend") == choose("pretend:0") == DEVICE
    assert choose("cpu") == torch.device("cpu")
    for name, says in (("pretend:1", "there is no pretend:1"), ("cuda", "1 x pretend"), ("nonsense", "no device")):
        with pytest.raises(ValueError, match=says):
            choose(name)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The same training here and there."""
    with Pretend():
        return [run(RICH, tmp_path_factory.mktemp(name), device=name) for name in ("cpu", "pretend")]


def test_a_run_on_the_digits_is_that_of_the_cpu(digits):
    here, there = digits
    near(here, there)
    told = [read_record(record.path)["made_with"] for record in digits]
    assert [t["device"] for t in told] == ["cpu", "pretend:0"]
    assert [t["kernels"] for t in told] == ["none", "none"]
    assert told[1]["device_name"] == "pretend"
    assert there.load().state_dict().keys() == here.load().state_dict().keys()


def test_a_run_on_a_piece_of_cifar(tmp_path, monkeypatch):
    folder = small_cifar(tmp_path, monkeypatch)
    what = Run(
        model="resnet20:width=4", data="cifar10:validation=10,cutout=4,reflect=true", batch_size=25, epochs=1,
        method="snip", optimizer="sam",
    )  # fmt: skip
    source = load_data(what, folder, device=DEVICE)
    assert source.train.x.device == source.validation.x.device == DEVICE  # it fits, so it lies there
    near(*(run(what, tmp_path / name, device=name, data_dir=folder) for name in ("cpu", "pretend")))


def test_pictures_from_files_with_all_that_deit_does(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for split in ("train", "val"):
        for name, colour in (("apple", (200, 30, 30)), ("sky", (30, 30, 200))):
            place = tmp_path / "flats" / split / name
            place.mkdir(parents=True)
            for number in range(5):
                image.new("RGB", (20 + number, 20), colour).save(place / f"{number}.png")
    what = Run(model="resnet20:width=4", data="folder:path=flats,image_size=16,augment=deit", batch_size=5, epochs=1)
    with_data = {"data_dir": str(tmp_path), "workers": 0}
    near(*(run(what, tmp_path / name, device=name, **with_data) for name in ("cpu", "pretend")))


def own_data(batch_size: int, seed: int) -> Data:
    """Data of the user's own that knows nothing of devices."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(40, 1, 8, 8, generator=draw), torch.randint(0, 10, (40,), generator=draw)
    return Data(Tensors(x, y, batch_size, shuffle=True), Tensors(x, y, 40), 10, (1, 8, 8))


def test_data_that_knows_no_device_is_moved(tmp_path):
    what = Run(data="inside_lab:own_data", epochs=1, batch_size=20, optimizer="sgd", method="dense")
    near(*(run(what, tmp_path / name, device=name) for name in ("cpu", "pretend")))


def stopped_at(step):
    def tick(done, of):
        if done == step:
            raise KeyboardInterrupt

    return tick


@pytest.mark.parametrize(("begins", "ends"), [("pretend", "cpu"), ("cpu", "pretend")])
def test_a_checkpoint_goes_on_on_another_device(digits, tmp_path, begins, ends):
    with pytest.raises(KeyboardInterrupt):
        run(RICH, tmp_path, tick=stopped_at(6), checkpoint_minutes=0, device=begins)
    with pytest.warns(UserWarning, match=f"begun on {begins}: on {ends} not to the bit"):
        near(run(RICH, tmp_path, device=ends), digits[0])


def test_measurements(digits):
    here, there = digits
    x, y = data.digits(batch_size=100, device=DEVICE).train.x[:100], data.digits(device=DEVICE).train.y[:100]
    found = []
    for record, pictures, labels in ((here, x.cpu(), y.cpu()), (there, x, y)):
        model, masks = record.load().to(pictures.device), record.masks()
        loss = classification(model, pictures, labels)
        halves = [classification(model, pictures[i::2], labels[i::2]) for i in range(2)]
        found.append(
            [
                *np.ravel(landscape.surface(model, loss, points=3, masks=masks)),
                *hessian.top_eigenvalues(model, loss, 2, steps=8, masks=masks),
                *variance.variance_at(model, halves, masks).values(),
            ]
        )
    assert found[0] == pytest.approx(found[1], rel=1e-2)


def test_a_figure_is_measured_there(digits, monkeypatch):
    devices, load = [], load_data
    monkeypatch.setattr(
        "zosam.lab.paper.measured.load_data", lambda *a, **k: (devices.append(k["device"]), load(*a, **k))[1]
    )
    settings = {"layers": [2, 3], "classes": {"zero": 0, "two": 2}}
    figure = Figure("example", "An example", "tiny", "features", settings, {"ZO-SAM": RICH})
    book = Book.open(digits[1].path.parent)
    there, here = (measured(figure, book, where=Where(device=name))[1] for name in ("pretend", "cpu"))
    assert devices == [DEVICE, torch.device("cpu")]
    assert there["series"][0]["values"] == pytest.approx(here["series"][0]["values"])


def test_speeds_and_evaluations_are_taken_there(digits, monkeypatch, capsys):
    there, book = digits[1], Book.open(digits[1].path.parent)
    monkeypatch.setattr(speed, "ROUNDS", 1)
    monkeypatch.setattr(speed, "TURNS", 1)
    speed.measure_speed(RICH, RICH, book, Where(device="pretend"))
    assert book.note(RICH, speed.SPEED)["made_with"]["device"] == str(DEVICE)
    assert speed.is_measured(RICH, RICH, book, Where(device="pretend"))
    assert not speed.is_measured(RICH, RICH, book, Where(device="cpu"))
    eval_(there.path, device="pretend", averaged=True, output=Output(json=True))
    assert json.loads(capsys.readouterr().out)[0]["accuracy"] == there.last["ema_test_accuracy"]


def test_a_forgotten_device_is_found(tmp_path, monkeypatch):
    """Data that stays on the CPU, and a network that goes there by itself."""
    load = data.load
    monkeypatch.setattr(data, "load", lambda *a: load(*a[:3], "cpu", *a[4:]))
    with pytest.raises(RuntimeError, match="one device"):
        run(SMALL, tmp_path, device="pretend")
    monkeypatch.setattr(data, "load", load)
    forward = torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: forward(self, x.cpu()))
    with pytest.raises(RuntimeError, match="one device"):
        run(SMALL, tmp_path, device="pretend")


def test_random_streams_masks_and_kernels(tmp_path):
    before = torch.get_rng_state()
    record = run(dataclasses.replace(SMALL, epochs=1, method="set:every=2"), tmp_path, device="pretend")
    assert torch.equal(before, torch.get_rng_state())
    state = checkpoints.load_latest(record.path)
    assert state["device"] == "pretend"
    assert len(state["rng"]) == 2 * len(before)
    with pytest.raises(ValueError, match="kernels are for CPUs, and this is pretend:0"):
        run(SMALL, tmp_path, device="pretend", accelerate=True)


def test_an_evaluation_waits_once():
    source = load_data(SMALL, device=DEVICE)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).to(DEVICE)
    pieces = Tensors(source.test.x, source.test.y, 40)
    assert len(counted(lambda: evaluate(model, pieces))) == 1


def test_an_epoch_of_sgd_waits_once(tmp_path):
    """And for its evaluation; the rest is what checkpoints read."""
    what = Run(model="digits_net:width=4", optimizer="sgd", method="dense", batch_size=180, epochs=1)
    found = []
    counted(lambda: run(what, tmp_path, device="pretend", tick=lambda done, of: found.append(len(waits))))
    assert found[1] == found[7]  # eight steps
    assert found[8] == found[7] + 1
