"""Records: read without trusting them; the network that they name is built only if it is ours and fits its file."""

from __future__ import annotations

import math
import shutil
import sys
import time

import pytest
import torch

from zosam import files
from zosam.lab import terminal
from zosam.lab.cli.runs import show
from zosam.lab.data import DATA_SETS
from zosam.lab.models import MODELS, NETWORKS, build
from zosam.lab.record import check_files, check_size, read_record
from zosam.lab.run import Run, finished, run
from zosam.sparse.save import read_tensors

SMALL = Run(model="digits_net:width=4", epochs=1, method="set", batch_size=512, optimizer="sgd")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run(SMALL, tmp_path_factory.mktemp("runs")).path


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / made.name)


def change_record(folder, **entries):
    files.write_json(folder / "record.json", read_record(folder) | entries)


def test_loading_leaves_the_callers_random_stream_alone(folder):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    record = finished(folder)
    record.load()
    record.masks()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("status", "done"),
        ("status", None),
        ("run", []),
        ("made_with", "me"),
        ("made_with", {"kernels": -1}),
        ("made_with", {"cpu": ["AMD"]}),
        ("classes", 0),
        ("classes", 1 << 40),
        ("classes", True),
        ("classes", "10"),
        ("epochs", []),
        ("epochs", [{}]),
        ("epochs", [[1]]),
        ("epochs", {"0": 1}),
        ("checksums", ["a"]),
    ],
)
def test_what_cannot_be_right_is_named(folder, entry, value):
    change_record(folder, **{entry: value})
    with pytest.raises(ValueError, match=rf"record.json is damaged or no record of a run: {entry} cannot be right"):
        read_record(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds", 10**400),
        ("seconds", -1.0),
        ("seconds", math.inf),
        ("epoch", 1.5),
        ("step", -1),
        ("test_accuracy", math.nan),
        ("test_accuracy", 90.0),
        ("lr", "fast"),
        ("cpu_seconds", None),
        ("ema_test_accuracy", [0.5]),
        ("train_loss", True),
    ],
    ids=lambda v: str(v)[:20],
)
def test_figures_of_an_epoch_that_cannot_be_right(folder, name, value):
    epoch = read_record(folder)["epochs"][0]
    change_record(folder, epochs=[epoch | {"train_loss": math.nan, "my_figure": 3}])  # a loss may well be
    change_record(folder, epochs=[epoch | {name: value}])
    with pytest.raises(ValueError, match="epochs cannot be right"):
        read_record(folder)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"modl": "x"}, "describes no run"),
        ({"epochs": "3"}, "epochs must be a whole number"),
        ({"lr": []}, "lr must be a number"),
        ({"lr": 10**400}, "lr must be a number"),
        ({"model": 3}, "model must be text"),
        ({"diagnostics": 1}, "diagnostics must be true or false"),
        ({"base": "adam"}, "did you mean 'adamw'"),
        ({"schedule": None}, "schedule must be text"),
        ({"data": "digits:a=b"}, "no setting 'a'"),
        ({"optimizer": f"sam:batch_fraction={'9' * 500}/1"}, "must be a number"),
    ],
    ids=str,
)
def test_a_record_of_no_run(folder, what, message):
    change_record(folder, run=SMALL.description | what)
    with pytest.raises(ValueError, match=message):
        finished(folder)


def test_code_is_not_imported_because_a_record_says_so(folder, tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('sprung')")
    monkeypatch.syspath_prepend(tmp_path)
    change_record(folder, run=SMALL.description | {"model": "trap:build"})
    record = finished(folder)
    with pytest.raises(ValueError, match="the network trap:build, which is code: if you trust it, build and pass it"):
        record.load()
    assert "trap" not in sys.modules
    passed = record.load(build(SMALL.model, 10))
    assert torch.equal(passed.head.weight, read_tensors(folder / "model.safetensors")[0]["head.weight"])
    with pytest.raises(SystemExit, match="sprung"):  # the trap works
        build("trap:build")


@pytest.mark.parametrize(
    ("run", "classes"),
    [
        ({"model": "digits_net"}, 1_000_000),
        ({"model": "wrn:width=9999"}, 10),
        ({"model": "wrn:depth=6000000004"}, 10),
        ({"model": "deit_tiny:image_size=16000000"}, 10),
        ({"model": "resnet20"}, 10),
    ],
    ids=str,
)
def test_absurd_sizes_are_refused_before_memory_is_taken(folder, run, classes):
    run = {"model": NETWORKS.read(run["model"]).whole}
    change_record(folder, run=SMALL.description | run, classes=classes)
    with pytest.raises(ValueError, match=r"absurdly large|but its file differs in"):
        finished(folder).load()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "wrn:depth=9994,width=1"},
        {"model": "wrn:depth=604,width=9999"},
        {"batch_size": 1 << 40},
        {"epochs": 1 << 40},
        {"data": "folder:image_size=1000000"},
        {"seed": 1 << 200},
    ],
    ids=str,
)
def test_absurd_sizes_are_refused_at_once(folder, change):
    for name, kind in (("model", NETWORKS), ("data", DATA_SETS)):
        if name in change:
            change = {name: kind.read(change[name]).whole}
    change_record(folder, run=SMALL.description | change)
    began = time.perf_counter()
    with pytest.raises(
        ValueError, match=r"absurdly large|must be at most|must be a whole number|image_size must be 1 to"
    ):
        finished(folder)
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_network_of_ours_can_be_measured_without_memory(name):
    if name == "wrn28_10":
        pytest.skip("wrn is the same")
    small = "wrn:depth=10,width=1" if name == "wrn" else name
    check_size(NETWORKS.read(small), 10, build(small, 10).state_dict())


def test_every_changed_figure_is_noticed(folder):
    path = folder / "record.json"
    text = path.read_text()
    loss = str(read_record(folder)["epochs"][0]["test_loss"])
    path.write_text(text.replace(loss, f"{loss[:4]}{(int(loss[4]) + 1) % 10}{loss[5:]}"))
    with pytest.raises(ValueError, match=r"record\.json is damaged: its checksum is another"):
        finished(folder)
    with pytest.warns(UserWarning, match="made again from the last checkpoint"):
        run(SMALL, folder.parent)
    assert str(read_record(folder)["epochs"][0]["test_loss"]) == loss


def test_damaged_weights(folder):
    model = folder / "model.safetensors"
    content = model.read_bytes()
    model.write_bytes(content[:-4] + bytes(4))
    with pytest.raises(ValueError, match="is missing, or is not what the run has written"):
        finished(folder).load()
    change_record(folder, checksums={})  # as in records of old
    model.write_bytes(content[:100])
    with pytest.raises(ValueError, match="is damaged or no safetensors file"):
        finished(folder).load()
    change_record(folder, checksums={"model.safetensors": "0"})
    with pytest.warns(UserWarning, match="made again from the last checkpoint"):
        run(SMALL, folder.parent)
    assert model.read_bytes() == content


def test_checksums_cannot_point_out_of_the_folder(folder):
    outside = folder.parent / "secret"
    outside.write_text("x")
    change_record(folder, checksums={"../secret": "0"})
    with pytest.raises(ValueError, match=rf"{folder.name}/secret is missing"):
        check_files(folder, read_record(folder)["checksums"])


def test_markup_and_control_characters_in_a_record_are_text(folder, capsys, monkeypatch):
    monkeypatch.setattr(terminal.console, "width", 200)
    change_record(folder, made_with={"[/bold][red]": "\x1b]0;title\x07 [link=http://x]y"})
    show(folder)
    out = capsys.readouterr().out
    assert "[/bold][red]" in out
    assert "[link=http://x]y" in out
    assert "\x1b]0" not in out
