"""Of the runs whose folders are there the report shows what is kept of each layer, and the film of the masks."""

from __future__ import annotations

import dataclasses

import pytest

from zosam.lab.paper import contents as made
from zosam.lab.paper.contents import contents
from zosam.lab.paper.kept import _evenly
from zosam.lab.paper.results_store import Book
from zosam.lab.report.page import build
from zosam.lab.run import Run, finished, run

ONE = Run(model="digits_net:width=4", method="rigl:every=5", epochs=2, batch_size=128, optimizer="sgd")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    run(dataclasses.replace(ONE, diagnostics=True), root)
    return root


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    root = tmp_path_factory.mktemp("two")
    for optimizer in ("sgd", "rwp"):
        run(dataclasses.replace(ONE, optimizer=optimizer), root)
    return root


def figures(report, section="Masks"):
    return [figure for figure in report.figures if figure["section"] == section]


def test_a_folder_is_read_as_a_record(root):
    (folder,) = root.iterdir()
    record = finished(str(folder))
    steps = [step for step, _ in record.masks_over_training()]
    assert steps[0] == 0
    assert steps == sorted(steps)
    assert len(steps) == 3
    assert all(mask.equal(record.masks()[name]) for name, mask in record.masks_over_training()[-1][1].items())


def test_one_training_has_bars_of_what_is_kept_and_a_film(root):
    report = contents(Book.open(root), root / "none")
    bars, film = figures(report)
    record = finished(next(root.iterdir()))
    assert (bars["kind"], film["kind"]) == ("bars", "film")
    assert bars["groups"][0] == "all of them"
    assert bars["groups"][1].startswith("stem.0 (4×1×3×3)")
    (series,) = bars["series"]
    whole, *layers = series["values"]
    assert layers == [round(100 * float(m.double().mean()), 2) for m in record.masks().values()]
    assert whole == pytest.approx(10, abs=0.1)
    assert [frame["step"] for frame in film["frames"]] == [step for step, _ in record.masks_over_training()]
    assert build(report)


def test_one_training_has_no_empty_section(root):
    report = contents(Book.open(root), root / "none")
    assert report.cover is None
    assert not report.comparisons
    assert report.lead[0].startswith("One training: SGD, RigL 90 %, 2 epochs")
    assert figures(report, "Over training")


def test_several_stand_side_by_side(two):
    report = contents(Book.open(two), two / "none")
    (heat,) = figures(report)
    assert heat["kind"] == "heat"
    assert heat["columns"] == ["SGD", "RWP"]
    assert report.cover["most"] == 100
    assert build(report)


def test_of_a_long_film_some_frames_are_shown_evenly():
    assert _evenly(3, 24) == [0, 1, 2]
    assert _evenly(1, 24) == [0]
    assert _evenly(9, 5) == [0, 2, 4, 6, 8]


def test_the_papers_tables_are_filled_only_where_a_run_of_theirs_is_there(root, monkeypatch):
    filled = []
    monkeypatch.setattr(made, "filled", lambda table, *rest: filled.append(table.name) or {"rows": []})
    contents(Book.open(root), root / "none")
    assert filled == []
