"""`zosam runs`: every run that lies in a folder, how far it came, and whether somebody is at it."""

from __future__ import annotations

import csv
import io
import json
import os

import pytest

from zosam.lab import terminal
from zosam.lab.cli.many import runs
from zosam.lab.locks import LOCK, is_held, locked
from zosam.lab.run import Run
from zosam.lab.shelf import look, unread
from zosam.lab.terminal import Output

SGD = Run(optimizer="sgd", epochs=3)
SAM = Run(optimizer="sam", epochs=3, seed=7)
LOOKSAM = Run(optimizer="looksam:k=10", epochs=3, sparsity=0.8)


@pytest.fixture
def shelf(tmp_path, shelve):
    shelve(tmp_path, SGD, epochs=3, test_accuracy=0.75)
    shelve(tmp_path, SAM, "training", epochs=2, test_accuracy=0.875)
    shelve(tmp_path, LOOKSAM, "training", epochs=0)
    broken = shelve(tmp_path, Run(optimizer="rwp"), epochs=1)
    (broken / "record.json").write_text((broken / "record.json").read_text().replace("0.5", "0.6", 1))
    (tmp_path / "figures").mkdir()
    (tmp_path / "speed.json").write_text("{}")
    return tmp_path


def names(shelf, capsys, **filters):
    runs(shelf, output=Output(json=True), **filters)
    return [row["folder"].split("-")[-2] for row in json.loads(capsys.readouterr().out)]


def test_what_is_gone_before_it_is_looked_at(shelf, capsys):
    (shelf / SGD.folder / "steps.csv").unlink(missing_ok=True)
    (shelf / SGD.folder / "steps.csv").symlink_to("nowhere")  # listed, and gone as one looks
    runs(shelf)
    assert SGD.folder in capsys.readouterr().out.replace("\n", "")


def test_every_run_and_nothing_else(shelf):
    found = {run.path.name: run for run in look(shelf)}
    assert len(found) == 4
    assert {name.split("-")[-2]: run.status for name, run in found.items()} == {
        "sgd": "finished", "sam": "stopped", "looksam": "stopped", "rwp": "damaged",
    }  # fmt: skip
    assert (found[SGD.folder].what, found[SGD.folder].seconds) == (SGD, 6.0)
    (one,) = look(shelf / SGD.folder)
    assert one.what == SGD


def test_one_that_is_held_is_training_and_to_look_disturbs_nobody(shelf):
    with locked(shelf / LOOKSAM.folder):
        assert {run.what.optimizer.name for run in look(shelf) if run.status == "training"} == {"looksam"}
    assert not is_held(shelf / LOOKSAM.folder)
    assert not (shelf / SAM.folder / LOCK).exists()  # nothing is written by looking
    with locked(shelf / LOOKSAM.folder):  # and the lock was given back
        pass


def test_what_is_made_of_a_trained_network_is_no_change_of_its_run(shelf):
    (before,) = look(shelf / SGD.folder)
    for file in (before.path / "record.json", before.path / "run.json"):
        if file.exists():
            os.utime(file, (1e9, 1e9))
    (before.path / "model.sparse.safetensors").write_bytes(b"")
    assert before.idle_for > 1e7


def test_how_many_cannot_be_read_is_said(shelf, tmp_path):
    assert unread(shelf) == f"1 of the runs in {shelf} cannot be read: `zosam runs {shelf}` says why"
    assert not unread(shelf / SGD.folder)
    assert not unread(tmp_path / "nowhere")


def test_filters_and_order(shelf, capsys):
    assert names(shelf, capsys) == ["looksam", "rwp", "sam", "sgd"]
    assert names(shelf, capsys, sort="accuracy")[:2] == ["sam", "sgd"]
    assert names(shelf, capsys, sort="time")[0] == "sgd"
    assert names(shelf, capsys, status="stopped") == ["looksam", "sam"]
    assert names(shelf, capsys, only="-SGD-|-rwp-") == ["rwp", "sgd"]
    assert names(shelf, capsys, where=("optimizer=looksam",)) == ["looksam"]
    assert names(shelf, capsys, where=("optimizer=looksam:k=10",)) == ["looksam"]
    assert names(shelf, capsys, where=("optimizer=looksam:k=5",)) == []
    assert names(shelf, capsys, where=("sparsity=0.80",)) == ["looksam"]
    assert names(shelf, capsys, where=("seed=7", "epochs=3")) == ["sam"]


def test_the_table_and_csv(shelf, capsys, monkeypatch):
    monkeypatch.setattr(terminal.console, "width", 150)
    runs(shelf)
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith(SAM.folder))
    assert row.split()[1:8] == ["stopped", "87.50%", "2/3", "7", "4.0", "s", "24"]
    assert next(line for line in out.splitlines() if line.startswith(LOOKSAM.folder)).split()[1:4] == [
        "stopped", "0/3", "0",
    ]  # fmt: skip
    assert "its checksum is another" in out  # what is damaged says why
    assert "4 runs, 10 s of wall time" in out
    runs(shelf, where=("seed=7",), output=Output(csv=True))
    (told,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (told["status"], told["test_accuracy"], told["seconds"]) == ("stopped", "0.875", "4.0")
    assert {key: told[f"run.{key}"] for key in SAM.description} == {k: str(v) for k, v in SAM.description.items()}
