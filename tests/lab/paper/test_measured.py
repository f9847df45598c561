"""Figures and tables from finished runs: every kind of measurement gives what the report and matplotlib can draw."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from zosam.lab.paper.figure import FIGURES, Figure, load_figure
from zosam.lab.paper.measured import KINDS, measured
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.show import chosen, filled, records, show
from zosam.lab.paper.sweep import sweep, with_seeds
from zosam.lab.paper.table import load
from zosam.lab.report.contract import check_figure
from zosam.lab.run import Run

BASE = Run(model="digits_net:width=4", method="rigl:every=5", epochs=2, batch_size=128, diagnostics=True)
RUNS = {"SGD": dataclasses.replace(BASE, optimizer="sgd"), "ZO-SAM": dataclasses.replace(BASE, optimizer="zosam")}
SETTINGS = {
    "surface": {"points": 3, "span": 0.5, "pictures": 20},
    "features": {"layers": [2, 3], "classes": {"zero": 0, "two": 2}},
    "throughput": {"reference": "SGD"},
}


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    book = Book.open(tmp_path_factory.mktemp("runs"))
    sweep(with_seeds(RUNS.values(), 2), book)
    for run, rates in zip(RUNS.values(), ([100, 120], [50, 90]), strict=True):
        about = {"versus": RUNS["SGD"].key, "how": {}}
        book.keep(run, "speed", about | {"images_per_second": rates, "reference": [100, 120]})
    return book


def drawn(kind, book):
    figure = Figure("example", "An example", "tiny", kind, SETTINGS.get(kind, {}), RUNS)
    return measured(figure, book, seeds=2)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"corruptions"}))
def test_each_measurement_can_be_drawn(kind, book):
    drawings = drawn(kind, book)
    assert drawings
    assert len({d["name"] for d in drawings}) == len(drawings)
    for drawing in drawings:
        check_figure(json.loads(json.dumps(drawing)))
        assert drawing["title"].startswith("An example")


def test_variance_is_that_of_the_records(book):
    (drawing,) = drawn("variance", book)
    seeds = [book.get(dataclasses.replace(RUNS["SGD"], seed=s)).epochs for s in range(2)]
    sgd = drawing["series"][0]
    means = [(a["gradient_variance"] + b["gradient_variance"]) / 2 for a, b in zip(*seeds, strict=True)]
    assert sgd["y"] == pytest.approx(means)
    assert sgd["x"] == [1, 2]


def test_the_film_has_a_frame_for_the_beginning_and_for_each_epoch(book):
    film = drawn("masks", book)[0]
    assert [f["step"] for f in film["frames"]] == [0, *(e["step"] for e in book.get(RUNS["SGD"]).epochs)]
    assert film["frames"][0]["survived"] == [1.0] * len(film["layers"])
    assert not any(film["frames"][0]["moved"])
    assert any(film["frames"][1]["moved"])


def test_series_say_how_they_are_drawn(book):
    (variance,) = drawn("variance", book)
    style = {"arm": "ZO-SAM", "optimizer": "zosam", "sparsity": "90 %"}
    assert style.items() <= variance["series"][1].items()


def test_beside_a_surface_stand_sharpness_and_eigenvalues(book):
    model = drawn("surface", book)[0]["models"][1]
    assert (model["arm"], model["sparsity"]) == ("ZO-SAM", "90 %")
    assert model["sharpness"] > 0
    assert len(model["eigenvalues"]) == 3
    assert model["eigenvalues"] == sorted(model["eigenvalues"], reverse=True)


def test_a_surface_says_how_far_it_is(book):
    ticks = []
    figure = Figure("example", "An example", "tiny", "surface", SETTINGS["surface"] | {"eigenvalues": 0}, RUNS)
    measured(figure, book, tick=lambda done, of: ticks.append((done, of)))
    points = 2 * 3 * 3
    assert ticks == [(n, points) for n in range(1, points + 1)] + [(n, 82) for n in range(1, 83)]  # and the line's 41


def test_corruptions_come_from_notes(book):
    assert drawn("corruptions", book) == []
    book.keep(RUNS["SGD"], "corrupted", {"pictures": 10, "accuracy": {"fog": [0.5, 0.4, 0.3, 0.2, 0.1]}})
    (heat,) = drawn("corruptions", book)
    check_figure(heat)
    assert heat["panels"][0]["values"] == [pytest.approx([50, 40, 30, 20, 10])]


def test_throughput_is_what_was_measured_in_turns(book):
    (bars,) = drawn("throughput", book)
    assert bars["groups"] == ["SGD", "ZO-SAM"]
    assert bars["series"][0]["values"] == pytest.approx([1.0, (0.5 + 0.75) / 2])


def test_a_figure_without_runs_is_empty(tmp_path):
    assert measured(load_figure(FIGURES[0], "tiny"), Book.open(tmp_path)) == []


def test_a_table_shows_what_is_there(tmp_path, shelve):
    table, book = load("table1", "tiny"), Book.open(tmp_path)
    cells = chosen(table, "^SNIP . ZO-SAM / CIFAR-10 90")
    assert {c.row for c in cells} == {"SNIP", "SNIP + ZO-SAM"}  # the row to compare with comes along
    runs = with_seeds((c.run for c in cells), 2)
    for number, what in enumerate(runs):
        shelve(tmp_path, what, epochs=what.epochs, test_accuracy=0.9 + 0.01 * number**2)
    content = filled(table, book, 2, "^SNIP . ZO-SAM / CIFAR-10 90")
    by_name = {row["name"]: row["cells"][0] for row in content["rows"]}
    own = [100 * book.get(r).last["test_accuracy"] for r in runs if r.optimizer.name == "zosam"]
    other = [100 * book.get(r).last["test_accuracy"] for r in runs if r.optimizer.name == "sgd"]
    cell = by_name["SNIP + ZO-SAM"]
    assert cell["paper"] == "93.38 ± 0.12 (+0.79)"
    assert cell["ours"].startswith(f"{sum(own) / 2:.2f} ± ")
    assert cell["difference"].startswith(f"{(sum(own) - sum(other)) / 2:+.2f} ± ")
    assert cell["verdict"] in {"same direction", "other direction", "no difference seen"}
    assert cell["cost"].startswith("2 × ")
    page = io.StringIO()
    show(content, Console(file=page))
    text = page.getvalue()
    assert "93.38 ± 0.12 (+0.79)" in text
    assert cell["verdict"] in text
    record = next(r for r in records(content) if r["row"] == "SNIP + ZO-SAM")
    assert record["mean"] == pytest.approx(sum(own) / 2)
    assert list(record["by_seed"].values()) == own
    assert record["difference"] == pytest.approx((sum(own) - sum(other)) / 2)


def test_a_pattern_that_finds_nothing_says_what_cells_are_called():
    with pytest.raises(ValueError, match="row / column"):
        chosen(load("table1", "tiny"), "no such thing")
    with pytest.raises(ValueError, match="regular expression"):
        chosen(load("table1", "tiny"), "(")


def test_a_table_of_epochs_says_what_a_missed_goal_counts(tmp_path):
    note = filled(load("table3", "small"), Book.open(tmp_path), 1)["note"]
    assert "The goal is 55% here; a training that misses it counts as one epoch longer than it was." in note
    assert "goal" not in filled(load("table1", "small"), Book.open(tmp_path), 1)["note"]
