"""Questions and grids: every method gets the same chances, arms differ in what they say, and numbers add up by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from zosam.lab.paper import answers, evidence
from zosam.lab.paper.evidence import grids, names, question, rows
from zosam.lab.paper.results_store import Book, is_idle, line
from zosam.lab.paper.source import read
from zosam.lab.paper.sweep import missing
from zosam.lab.run import run
from zosam.lab.terminal import Output

NOWHERE = Path("nowhere")
ASKED = [name for name in names() if name != "tuning"]
EPOCH = {"epoch": 1, "step": 1, "train_loss": 0.5, "test_loss": 1.0, "sparsity": 0.9, "forward": 1, "backward": 1}


def known(values):
    """A book that holds a training of one epoch for each run, with these figures."""
    lines = {}
    for one, figures in values.items():
        epoch = EPOCH | {"seconds": 2.0, "cpu_seconds": 2.0, "test_accuracy": 0.5} | figures
        lines[one.key] = {"run": one.description, "made_with": {}, "classes": 10, "epochs": [epoch]}
    return Book(NOWHERE, lines)


def tuned(best=(1, 1)):
    """A book with all trials, the best of each grid at this place of its axes."""
    values = {}
    for grid in grids():
        top = tuple(axis[at] for axis, at in zip(grid.axes.values(), best, strict=True))
        values |= {r: {"validation_accuracy": 0.7 if at == top else 0.6} for at, r in grid.trials.items()}
    return known(values)


def test_every_method_has_as_many_trials_and_none_is_reported():
    found = grids()
    assert len({len(grid.trials) for grid in found}) == 1
    assert all(len(set(grid.trials.values())) == len(grid.trials) for grid in found)
    assert all(list(axis) == sorted(axis) and len(axis) >= 3 for grid in found for axis in grid.axes.values())
    for grid in found:
        for one in grid.trials.values():
            assert one.data.settings["validation"] == 5000
            assert one.seed >= 1000
    book = tuned()
    reported = {r.description["data"] for name in ASKED for r in question(name, book).runs()}
    assert not any("validation=5000" in data for data in reported)


def test_the_best_trial_is_what_arms_are_trained_with():
    book = tuned(best=(2, 1))
    sam = next(grid for grid in grids() if grid.method == "sam")
    _, middle, rho = sam.axes["rho"]
    assert sam.best(book) == {"rho": rho, "weight_decay": 5e-3}
    assert sam.at_edge({"rho": rho, "weight_decay": 5e-3}) == ["rho"]
    assert sam.at_edge({"rho": middle, "weight_decay": 5e-3}) == []
    arms = {e.label: e.run for e in question("c", book).entries}
    assert (arms["SAM"].rho, arms["SAM"].weight_decay) == (rho, 5e-3)
    assert (arms["SAM, ⅛ batch"].rho, arms["LookSAM (k=5)"].rho) == (rho, rho)
    assert str(arms["SAM, last quarter"].rho) == "late:rho=0.1,start=0.75"
    assert (arms["SGD"].lr, arms["SGD"].weight_decay) == (0.1, 1e-2)
    assert arms["SGD, twice the epochs"] == dataclasses.replace(arms["SGD"], epochs=60)
    assert arms["SGD, averaged (EMA)"].ema == 0.995


def test_a_grid_that_is_not_finished_chooses_nothing():
    book = tuned()
    sam = next(grid for grid in grids() if grid.method == "sam")
    del book.lines[next(iter(sam.trials.values())).key]
    assert sam.best(book) is None
    asked = question("c", book)
    assert asked.waits_for == ("sam",)
    assert all(e.run is not None for e in question("c", book, guess=True).entries)
    assert {e.label for e in asked.entries if e.run is None} == {
        "SAM", "SAM, ⅛ batch", "SAM, last quarter", "SAM, norm layers only", "LookSAM (k=5)"
    }  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_arms_are_at_one_place_and_none_is_compared_with_itself(name):
    asked, allowed = question(name, tuned()), {"optimizer", "rho", "weight_decay", "lr", "ema", "epochs", "perturb_on"}
    assert not asked.waits_for
    assert len({(e.group, e.label) for e in asked.entries}) == len(asked.entries)
    assert len({e.run for e in asked.entries}) == len(asked.entries)
    for entry in asked.entries:
        assert entry.run.seed == 0
        if entry.versus is not None:
            own, other = entry.run.description, entry.versus.description
            assert {k for k in {*own, *other} if own.get(k) != other.get(k)} <= allowed
    assert any(e.versus for e in asked.entries) or len(read("evidence")["questions"][name]["arms"]) == 1


def test_the_control_varies_weight_decay_alike_for_all():
    entries = question("control", Book(NOWHERE)).entries
    assert {e.run.weight_decay for e in entries} == {5e-4, 2e-3, 5e-3}
    assert all(e.versus is None or e.versus.weight_decay == e.run.weight_decay for e in entries)
    confounded = question("b_confounded", Book(NOWHERE)).entries
    assert {e.versus.weight_decay for e in confounded if e.versus} == {1e-4}


def test_groups_are_shown_in_the_order_of_what_they_vary():
    asked = question("control", Book(NOWHERE))  # which is trained in another order
    groups = list(dict.fromkeys(row.group for row in rows(asked, known({r: {} for r in asked.runs()}))))
    assert groups == [f"CIFAR-10, 90 %, weight decay {decay}" for decay in ("5e-4", "2e-3", "5e-3")]


def test_differences_are_taken_seed_by_seed():
    asked = question("b", Book(NOWHERE))
    sgd, sam = (next(e.run for e in asked.entries if e.label == label) for label in ("SGD", "SAM"))
    figures = {(sgd, 0): 0.50, (sgd, 1): 0.56, (sam, 0): 0.52, (sam, 1): 0.60, (sam, 2): 0.9}
    values = {dataclasses.replace(r, seed=s): {"test_accuracy": a} for (r, s), a in figures.items()}
    values[dataclasses.replace(sam, seed=1)]["cpu_seconds"] = 1.0  # it had half of its core
    own = {row.label: row for row in rows(asked, known(values))}
    assert own["SGD"].gap is None
    assert own["SGD"].accuracy.mean == pytest.approx(53)
    assert own["SAM"].gap.mean == pytest.approx(3)  # of +2 and +4; seed 2 has no partner
    assert own["SAM"].gap.half_width == pytest.approx(12.7062, rel=1e-4)  # t of one degree of freedom, times 1
    assert own["SAM"].cpu_seconds == pytest.approx(5 / 3)
    assert (own["SGD"].idle, own["SAM"].idle) == (True, False)


def test_an_averaged_network_is_judged_by_its_average():
    entry = next(e for e in question("c", tuned()).entries if e.run.ema)
    book = known({entry.run: {"test_accuracy": 0.5, "ema_test_accuracy": 0.6}})
    book.lines |= tuned().lines
    assert next(r for r in rows(question("c", book), book) if r.label == entry.label).accuracy.mean == 60


def test_the_command_trains_what_is_missing_and_keeps_it(tmp_path, monkeypatch, capsys):
    place = {"label": "digits", "tier": "tiny", "data": "cifar10", "method": "random", "sparsity": 0.9}
    arms = {n: {"label": n, "optimizer": n} for n in ("sgd", "rwp")}
    asked = {"title": "Asked", "places": ["here"], "arms": ["sgd", "rwp"], "versus": "sgd", "vary": {"epochs": [1]}}
    content = {"places": {"here": place | {"run": {"batch_size": 512}}}, "arms": arms, "questions": {"q": asked}}
    content["tuning"] = {"place": "here", "run": {"seed": 1000}, "weight_decay": [1e-3], "methods": {}}
    monkeypatch.setattr(evidence, "read", lambda name: content)
    lines, out = tmp_path / "lines.jsonl", tmp_path / "runs"
    answers.evidence("q", seeds=2, out=out, save=lines)
    assert "digits, epochs 1" in capsys.readouterr().out
    assert len(lines.read_text().splitlines()) == 4
    found = json.loads(lines.read_text().splitlines()[0])
    assert found["idle"] is is_idle(found["epochs"])
    answers.evidence("q", seeds=2, train=False, out=tmp_path / "none", results=(lines,), output=Output(json=True))
    printed = json.loads(capsys.readouterr().out)
    assert [p["arm"] for p in printed] == ["sgd", "rwp"]
    assert printed[1]["difference"]["n"] == 2
    answers.evidence("list", out=out, cost=True, output=Output(json=True))
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["finished"], first["missing"]) == (4, 2)  # three seeds by default
    assert float(first["core-hours"]) >= 0
    with pytest.raises(ValueError, match="choose from q"):
        answers.evidence("p", out=out)


def test_networks_are_tested_on_corrupted_pictures(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(answers, "measure_corruptions", lambda runs, *_: asked.extend(runs))
    answers.evidence("control", train=False, out=tmp_path)
    assert asked == []
    answers.evidence("control", seeds=1, train=False, corrupted=True, out=tmp_path)
    assert set(asked) == set(question("control", Book(NOWHERE)).runs())
    for name in ("list", "tuning"):
        with pytest.raises(ValueError, match="--corrupted would have no effect"):
            answers.evidence(name, corrupted=True, out=tmp_path)


def test_accuracy_on_corrupted_pictures_is_printed_by_severity(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(answers, "measure_corruptions", lambda *_: None)
    asked = question("control", Book(NOWHERE))
    own = dataclasses.replace(next(e.run for e in asked.entries if e.label == "SAM"), seed=1)
    found = known({own: {"test_accuracy": 0.6}}).lines[own.key]
    found |= {"key": own.key, "corrupted": {"pictures": 10, "accuracy": {"fog": [0.5, 0.3], "snow": [0.4, 0.2]}}}
    (tmp_path / "lines.jsonl").write_text(json.dumps(found) + "\n")

    def printed(**given):
        answers.evidence(
            "control", train=False, corrupted=True, out=tmp_path, results=(tmp_path / "lines.jsonl",), **given
        )
        return capsys.readouterr().out

    table = " ".join(printed().split())
    assert "seeds clean mean severity 1 severity 2" in table
    assert "SAM 1 60.00 35.00 45.00 25.00" in table
    (record,) = json.loads(printed(output=Output(json=True)))
    assert record["corrupted"] == {
        "seeds": 1, "clean": 60.0, "mean": pytest.approx(35), "severity 1": pytest.approx(45),
        "severity 2": pytest.approx(25),
    }  # fmt: skip


def test_trials_say_whose_they_are(monkeypatch, tmp_path, capsys):
    grid = grids()[0]
    book = tuned()
    notes = answers._trials(book)
    chosen = [n["trial"] for n in notes.values() if n["trial"]["chosen"]]
    assert [c["method"] for c in chosen] == [g.method for g in grids()]
    assert chosen[0] == {"method": "sgd", "lr": 0.05, "weight_decay": 1e-2, "chosen": True}
    answers._show_grids([grid], book, Output())
    assert "chosen: lr 0.05, weight decay 0.01 (70.00 %), inside the grid." in capsys.readouterr().out
    answers._show_grids([grid], tuned(best=(0, 1)), Output())
    assert "at the edge of the grid in lr" in capsys.readouterr().out
    answers._show_grids([grid], Book(NOWHERE), Output())
    assert "0 of 9 trials" in capsys.readouterr().out
    trial = dataclasses.replace(next(iter(grid.trials.values())), data="digits", model="digits_net", epochs=1)
    record = run(dataclasses.replace(trial, batch_size=512), tmp_path)
    assert json.loads(line(record, more={"trial": {"method": "sgd"}}))["trial"] == {"method": "sgd"}


def test_what_is_finished_is_not_missing():
    asked = question("b", Book(NOWHERE))
    book = known({asked.runs()[0]: {}})
    assert len(missing(asked.runs(), book)) == len(asked.runs()) - 1
