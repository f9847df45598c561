"""The committed results can be read by this version, and the page that is made of them says what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from zosam.lab.paper.contents import contents
from zosam.lab.paper.results_store import Book
from zosam.lab.report.page import build

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize("file", sorted(RESULTS.rglob("*.jsonl")), ids=lambda file: file.name)
def test_every_line_describes_a_run_at_its_address(file):
    book = Book.open("nowhere", [file])
    assert all(line["key"] == key for key, line in book.lines.items())
    assert len(book.entries()) == len(file.read_text().splitlines())


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
    assert report.lead[0].count("against SGD") == 1


def test_runs_are_chosen_by_a_pattern(tmp_path):
    files = sorted(RESULTS.glob("*.jsonl"))
    if not files:
        pytest.skip("no results are here")
    book = Book.open(tmp_path, files)
    report = contents(book, tmp_path, tier="tiny", only="random 90 %.*SGD")
    names = {arm["name"] for panel in report.cover["panels"] for arm in panel["arms"]}
    assert {name.split(",")[0] for name in names} == {"SGD"}
    with pytest.raises(ValueError, match="regular expression"):
        contents(book, tmp_path, only="(")
    with pytest.raises(ValueError, match="no run and no figure"):
        contents(Book.open(tmp_path), tmp_path, tier="tiny")
