"""The committed results can be read by this version, and the page that is made of them says what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from zosam.lab.paper.contents import contents
from zosam.lab.paper.evidence import names, question, rows
from zosam.lab.paper.results_store import Book
from zosam.lab.paper.sweep import with_seeds
from zosam.lab.report.page import build

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize("file", sorted(RESULTS.rglob("*.jsonl")), ids=lambda file: file.name)
def test_every_line_describes_a_run_at_its_address(file):
    book = Book.open("nowhere", [file])
    assert all(line["key"] == key for key, line in book.lines.items())
    assert len(book.entries()) == len(file.read_text().splitlines())


def test_the_control_finds_its_lines():
    """Nine trainings that were made before anything moved are where this version looks for them."""
    book = Book.open("nowhere", [RESULTS / "evidence.jsonl"])
    asked = question("control", book)
    assert sum(book.get(run) is not None for run in with_seeds(asked.runs(), asked.seeds)) >= 9


def test_the_report_of_the_committed_results(tmp_path):
    files = sorted(RESULTS.glob("*.jsonl"))
    if not files:
        pytest.skip("no results are here")
    book = Book.open(tmp_path, files)
    report = contents(book, RESULTS / "figures", tier="small")
    assert build(report).startswith("<!doctype html>")
    dots = [seed for panel in report.cover["panels"] for arm in panel["arms"] for seed in arm["seeds"]]
    trials = sum("validation_accuracy" in line["epochs"][-1] for line in book.entries())
    assert len(dots) + trials == len(book.entries())
    assert report.lead[0].startswith("Against SGD")


def test_the_report_answers_as_the_command_does(tmp_path):
    book = Book.open(tmp_path, sorted(RESULTS.glob("*.jsonl")))
    asked = contents(book, tmp_path, tier="tiny").questions
    assert asked[0]["name"] == names()[0]
    for one in asked:
        known = list(rows(question(one["name"], book), book))
        shown = [(block["name"], row) for block in one["blocks"] for row in block["rows"]]
        assert [(group, row["name"], row["ours"]) for group, row in shown] == [
            (row.group, row.label, row.accuracy.text()) for row in known
        ]
        gaps = [None if row["gap"] is None else row["gap"]["text"] for _, row in shown]
        assert gaps == [None if row.gap is None else row.gap.text(sign=True) for row in known]
        assert all(block["on"].startswith("AMD EPYC") for block in one["blocks"])


@pytest.mark.parametrize("content", ["[]", "null", "{"])
def test_a_figure_that_is_none_is_named(content, tmp_path):
    (tmp_path / "tiny-masks.json").write_text(content)
    with pytest.raises(ValueError, match=r"tiny-masks\.json cannot be read as a JSON object"):
        contents(Book.open(tmp_path), tmp_path, tier="tiny")


def test_runs_are_chosen_by_a_pattern(tmp_path):
    files = sorted(RESULTS.glob("*.jsonl"))
    if not files:
        pytest.skip("no results are here")
    book = Book.open(tmp_path, files)
    report = contents(book, tmp_path, tier="tiny", only="random 90 %.*SGD")
    shown = {arm["name"] for panel in report.cover["panels"] for arm in panel["arms"]}
    assert {name.split(",")[0] for name in shown} == {"SGD"}
    with pytest.raises(ValueError, match="regular expression"):
        contents(book, tmp_path, only="(")
    with pytest.raises(ValueError, match="no run and no figure"):
        contents(Book.open(tmp_path), tmp_path, tier="tiny")
