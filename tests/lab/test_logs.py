"""What a training says while it goes: every line once, however often it was broken off, wherever it is written."""

from __future__ import annotations

import csv
import io
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from zosam.lab import logs
from zosam.lab.run import Run, run
from zosam.lab.watching import Watching

# six steps in an epoch
SMALL = Run(model="digits_net:width=4", epochs=3, method="rigl:every=5", batch_size=256, optimizer="sgd")
TIMES = {"seconds", "cpu_seconds", "images_per_second"}


class Stop(Exception):
    pass


def broken_off(root, at, **where):
    """Train, and break off in the middle of a step."""

    def tick(done, of):
        if done == at:
            raise Stop

    with pytest.raises(Stop):
        run(SMALL, root, tick=tick, **where)


def lines(path):
    """What a CSV file says, but for times."""
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    told = {"steps": [], "epochs": [], "tests": []}
    record = run(
        SMALL,
        tmp_path_factory.mktemp("whole"),
        log_every=2,
        on_steps=told["steps"].append,
        on_epoch=told["epochs"].append,
        on_test=lambda done, of: told["tests"].append((done, of)),
    )
    return record, told


def test_the_files_say_what_the_record_says(whole):
    record, _ = whole
    with (record.path / "epochs.csv").open(newline="") as file:
        assert [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)] == record.epochs
    steps = lines(record.path / "steps.csv")
    assert [int(line["step"]) for line in steps] == [2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert [float(line["epoch"]) for line in steps][:4] == [0.3333, 0.6667, 1.0, 1.3333]
    last = [line for line in steps if int(line["step"]) % 6 == 0]  # the epoch so far is then the whole of it
    for line, epoch in zip(last, record.epochs, strict=True):
        assert float(line["train_loss"]) == epoch["train_loss"]
        assert float(line["lr"]) == epoch["lr"]
        assert float(line["sparsity"]) == epoch["sparsity"]


def test_callbacks_are_told_the_same(whole):
    record, told = whole
    assert told["epochs"] == record.epochs
    assert told["epochs"][0] is not record.epochs[0]  # what they do to it changes nothing
    assert [figures["step"] for figures in told["steps"]] == list(range(2, 20, 2))
    batches = max(of for _, of in told["tests"])
    assert told["tests"] == [(done, batches) for _ in range(3) for done in range(1, batches + 1)]


@pytest.mark.parametrize("minutes", [10.0, 0.0], ids=["by epochs", "after every step"])
def test_no_line_is_lost_and_none_is_there_twice(whole, tmp_path, minutes):
    for at in (8, 9, 13):
        broken_off(tmp_path, at, log_every=2, checkpoint_minutes=minutes)
        file = tmp_path / SMALL.folder / "steps.csv"
        file.write_text(file.read_text() + "1")  # of line 14, cut by the crash
    resumed = run(SMALL, tmp_path, log_every=2, checkpoint_minutes=minutes)
    for name in ("steps.csv", "epochs.csv"):
        assert lines(resumed.path / name) == lines(whole[0].path / name)


def test_a_line_for_every_second_epoch_and_one_for_the_end(whole, tmp_path):
    broken_off(tmp_path, 8, test_every=2)
    record = run(SMALL, tmp_path, test_every=2)
    assert [(e["epoch"], e["step"]) for e in record.epochs] == [(2, 12), (3, 18)]
    everywhere = {e["epoch"]: e for e in whole[0].epochs}
    for epoch in record.epochs:
        for name in ("test_accuracy", "test_loss", "lr", "forward"):
            assert epoch[name] == everywhere[epoch["epoch"]][name]
    first_two = [everywhere[e]["train_loss"] for e in (1, 2)]
    assert record.epochs[0]["train_loss"] == pytest.approx(sum(first_two) / 2)
    trained, again = (load_file(r.path / "model.safetensors") for r in (whole[0], record))
    assert all(torch.equal(tensor, again[name]) for name, tensor in trained.items())
    with pytest.raises(ValueError, match="test_every must be 1 or more"):
        run(SMALL, tmp_path, test_every=0)


def test_what_a_callback_raises_ends_it_and_nothing_is_lost(whole, tmp_path):
    def enough(epoch):
        if epoch["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        run(SMALL, tmp_path, on_epoch=enough, log_every=2)
    seen = []
    resumed = run(SMALL, tmp_path, on_epoch=seen.append, log_every=2)
    assert [epoch["epoch"] for epoch in seen] == [3]  # the second was told before
    assert lines(resumed.path / "steps.csv") == lines(whole[0].path / "steps.csv")


def test_tensorboard_reads_every_point_once(whole, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for at in (5, 9, 15):
        broken_off(tmp_path, at, log_every=2, log=("tensorboard",))
    resumed = run(SMALL, tmp_path, log_every=2, log=("tensorboard",))
    found = events.EventAccumulator(str(resumed.path / "tensorboard")).Reload()
    accuracy = [(point.step, point.value) for point in found.Scalars("epochs/test_accuracy")]
    assert accuracy == [(e["step"], pytest.approx(e["test_accuracy"])) for e in whole[0].epochs]
    steps = [(point.step, point.value) for point in found.Scalars("steps/train_loss")]
    assert steps == [(figures["step"], pytest.approx(figures["train_loss"])) for figures in whole[1]["steps"]]


def test_weights_and_biases_gets_three_calls(tmp_path, monkeypatch):
    calls = []

    def init(**settings):
        calls.append(("init", settings))
        return SimpleNamespace(
            log=lambda figures, step: calls.append(("log", step, figures)), finish=lambda: calls.append(("finish",))
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    broken_off(tmp_path, at=7, log="wandb", log_every=0)
    assert [call[0] for call in calls] == ["init", "log", "finish"]  # it ends well even if the training does not
    record = run(SMALL, tmp_path, log="wandb", log_every=0)
    (first, second), told = [c[1] for c in calls if c[0] == "init"], [c[1:] for c in calls if c[0] == "log"]
    assert (first["id"], first["name"]) == (SMALL.key, SMALL.folder)
    assert first["config"] == SMALL.description
    assert (first["resume"], second["resume"]) == (None, "allow")
    assert [step for step, _ in told] == [6, 12, 18]
    assert [figures["epochs/test_accuracy"] for _, figures in told] == [e["test_accuracy"] for e in record.epochs]
    assert calls[-1] == ("finish",)


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_what_is_not_installed_is_said_before_a_step(tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'zosam\[{name}\]'"):
        run(SMALL, tmp_path, log=(name,))
    assert not list(tmp_path.iterdir())


def test_nonsense_is_refused(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'tensorboard'"):
        run(SMALL, tmp_path, log=("tensorbord",))
    with pytest.raises(ValueError, match="log_every"):
        run(SMALL, tmp_path, log_every=-1)


def test_epochs_that_differ_in_what_they_know(tmp_path):
    logs.write_epochs(tmp_path, [{"epoch": 1, "a": 2.5}, {"epoch": 2, "b": "x,y"}])
    assert (tmp_path / "epochs.csv").read_text() == 'epoch,a,b\n1,2.5,\n2,,"x,y"\n'


EPOCH = {
    "epoch": 2, "step": 1200, "train_loss": 0.51239, "test_accuracy": 0.9125, "lr": 0.05, "images_per_second": 1234.5,
    "sparsity": 0.9,
}  # fmt: skip


def watched(terminal, width=100):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=width, color_system=None)
    with Watching(console) as shown:
        told = shown.callbacks("digits-[net]")
        shown.refresh()
        told.tick(3, 10)
        told.on_steps({k: v for k, v in EPOCH.items() if k != "test_accuracy"} | {"step": 1100})
        told.on_test(2, 5)
        shown.refresh()
        told.on_epoch(EPOCH)
    return out.getvalue()


def test_without_a_terminal_there_are_plain_lines():
    assert watched(terminal=False).splitlines() == [
        "digits-[net]",
        "goes on after step 3 of 10",
        "step 1,100  epoch 2  loss 0.5124  lr 0.05  1,234 images/s  90% sparse",
        "step 1,200  epoch 2  loss 0.5124  accuracy 91.25%  lr 0.05  1,234 images/s  90% sparse",
    ]


def test_only_a_training_that_goes_on_says_so():
    out = io.StringIO()
    with Watching(Console(file=out, force_terminal=False, width=100)) as shown:
        told = shown.callbacks("first")
        for done in range(3):
            told.tick(done, 9)
        told = shown.callbacks("second")
        for done in range(2, 4):
            told.tick(done, 9)
    assert out.getvalue().splitlines() == ["first", "second", "goes on after step 2 of 9"]


def test_a_terminal_has_a_bar_with_the_figures_below():
    out = watched(terminal=True)
    assert "preparing" in out
    assert "goes on after step 3 of 10" in out
    assert "3/10" in out
    assert "testing 2/5" in out
    assert "accuracy 91.25%  lr 0.05" in out
    assert "step 1,200" not in out


def test_of_several_processes_one_talks(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("RANK", "1")
    assert watched(terminal=False) == ""
    assert "3/10" not in watched(terminal=True)
