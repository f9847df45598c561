"""Optimizers that were trained in several ways: one colour and one entry for each, its best first; all of it fits."""

from __future__ import annotations

import base64

import pytest

from zosam.lab.report import overview
from zosam.lab.report.arms import arms_of, settings_of
from zosam.lab.report.page import Report, write

DECAYS = (5e-4, 2e-3, 5e-3)
OPTIMIZERS = ("sgd", "sam", "rwp")
LINES = "return document.querySelectorAll('#figure-convergence [data-line]').length"


@pytest.fixture
def many(tmp_path, line):
    found = [
        line(0.5 + 10 * decay + i / 100 + seed * wide, optimizer=o, weight_decay=decay, seed=seed)
        for i, o in enumerate(OPTIMIZERS)
        for decay in DECAYS
        for seed, wide in ((0, 0.05), (1, 0.1 * (1 + i)))  # two seeds far apart have wide intervals
    ]
    arms = arms_of(found)
    settings = settings_of(arms)
    report = Report(
        "Several settings",
        cover=overview.tradeoff(arms),
        comparisons=overview.comparisons(settings),
        figures=[overview.convergence(settings)],
    )
    write(tmp_path / "many.html", report)
    return tmp_path / "many.html"


def legend(chromium, figure):
    return [entry.get_attribute("data-series") for entry in chromium.all(f"#figure-{figure} .legend")]


def test_the_legend_names_optimizers(chromium, many):
    chromium.open(many)
    assert legend(chromium, "tradeoff") == ["SGD", "SAM", "RWP", "sparsity 90 %"]
    dots = "return document.querySelectorAll('#figure-tradeoff [data-arm] polygon').length"
    assert chromium.do(dots) == 18
    chromium.click('#figure-tradeoff [data-series="SAM"]')
    assert chromium.do(dots) == 12


def test_curves_begin_with_the_best_of_each(chromium, many):
    chromium.open(many)
    best = [f"{name}, weight decay 5e-3" for name in ("SGD", "SAM", "RWP")]
    assert (legend(chromium, "convergence"), chromium.do(LINES)) == (best, 2 * 3)  # two charts
    chromium.choose("#figure-convergence .tool:last-child select", 1)
    assert (legend(chromium, "convergence"), chromium.do(LINES)) == (["SGD", "SAM", "RWP"], 2 * 9)


def test_no_cell_leaves_its_row_on_a_phone(chromium, many):
    chromium.open(many, width=390)
    out = chromium.do("""return [...document.querySelectorAll('.results tbody td')].filter((cell) => {
        const own = cell.getBoundingClientRect(), row = cell.parentNode.getBoundingClientRect();
        return own.width && own.right > row.right + 0.5;
    }).map((cell) => cell.textContent)""")
    assert out == []


def test_names_and_numbers_are_not_torn(chromium, many):
    chromium.open(many, width=390)
    torn = "return [...document.querySelectorAll('.unbroken')].filter((s) => s.getClientRects().length > 1).length"
    assert chromium.do(torn) == 0
    assert "5e-3" in [node.get_property("textContent") for node in chromium.all(".unbroken")]


def test_print_says_what_was_chosen_and_no_figure_is_taller_than_a_page(chromium, many, path):
    for file in (many, path):
        chromium.open(file, width=720)
        chromium.cdp("Emulation.setEmulatedMedia", {"media": "print"})
        chromium.frame()
        shown = chromium.do("""return [...document.querySelectorAll('.tools select')].map(
            (s) => getComputedStyle(s).display !== 'none' && getComputedStyle(s).borderTopWidth === '0px')""")
        assert shown
        assert all(shown)
        tall = chromium.do("""return [...document.querySelectorAll('.drawing > *')].map(
            (d) => d.getBoundingClientRect().height)""")
        assert max(tall) < 9.6 * 96  # inches of a letter with its margins
        pdf = base64.b64decode(chromium.cdp("Page.printToPDF", {})["data"])
        assert pdf.startswith(b"%PDF")
        chromium.cdp("Emulation.setEmulatedMedia", {"media": ""})
