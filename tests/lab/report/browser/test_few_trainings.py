"""A page of few trainings: no axis goes beyond 100 %, and nothing is said of a comparison that is not there."""

from __future__ import annotations

from zosam.lab.report import overview, page
from zosam.lab.report.arms import arms_of, settings_of

TICKS = "return [...document.querySelectorAll('#figure-{} text')].map((t) => Number(t.textContent)).filter(isFinite)"


def test_no_axis_goes_beyond_all(chromium, tmp_path, line):
    arms = arms_of([line(1.0, optimizer="sgd"), line(1.0, optimizer="sam")])
    settings = settings_of(arms)
    figures = [overview.convergence(settings)]
    page.write(tmp_path / "r.html", page.Report("r", cover=overview.tradeoff(arms), figures=figures))
    chromium.open(tmp_path / "r.html")
    for name in ("tradeoff", "convergence"):
        assert max(chromium.do(TICKS.format(name))) == 100


def test_trainings_that_are_not_compared_are_shown_as_such(chromium, tmp_path, line):
    arms = arms_of([line(0.9, optimizer="sam"), line(0.97, optimizer="zosam")])  # no SGD
    page.write(tmp_path / "r.html", page.Report("r", comparisons=overview.comparisons(settings_of(arms))))
    chromium.open(tmp_path / "r.html")
    assert [h.text for h in chromium.all("h2")] == ["Trainings"]
    assert [h.text for h in chromium.all("tbody th")] == ["ZO-SAM", "SAM"]
    assert "passes" not in chromium.one("thead").text


def test_the_last_name_over_a_map_stays_inside(chromium, tmp_path, figures):
    figure = {
        "name": "map", "kind": "heat", "title": "A map", "note": "", "value": "%", "rows": ["a row of a name"],
        "columns": [f"a long name of a column {i}" for i in range(6)], "panels": [{"name": "p", "values": [[1] * 6]}],
    }  # fmt: skip
    page.write(tmp_path / "r.html", page.Report("r", figures=[figure]))
    chromium.open(tmp_path / "r.html", width=390)
    box = chromium.do("const b = document.querySelector('.drawing'); return [b.scrollWidth, b.clientWidth]")
    assert box[0] <= box[1]
