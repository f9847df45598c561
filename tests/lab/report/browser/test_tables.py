"""Tables in a real browser: what was run is shown, the rest is folded; dots and bars are where the numbers say."""

from __future__ import annotations

import re
from typing import Any

import pytest


def names(browser: Any, selector: str) -> list[str]:
    return [node.text for node in browser.all(f"{selector} tbody th[scope=row]") if node.is_displayed()]


def test_only_what_was_run_is_shown_and_the_rest_is_folded(browser):
    assert names(browser, "#table-table1") == ["RigL", "RigL + ZO-SAM"] * 3  # one block for each column
    folds = [node.text for node in browser.all("#table-table1 .rest summary")]
    assert folds == ["1 row of our own, with the same measure", "2 printed cells that were not run here"]
    browser.click("#table-table1 .rest:last-of-type summary")
    assert names(browser, "#table-table1")[-2:] == ["LTH", "LTH"]
    assert browser.one("#table-table1 td.verdict").text.replace("\n", "") == "✓reproduced"


def test_seeds_are_dots_and_differences_bars(browser, report):
    row = report.tables[0]["rows"][0]["cells"][0]  # +0.11 ± 0.05: the interval leaves zero out
    bar = "#table-table1 tbody tr:nth-child(1) td.bar svg"
    assert browser.one(bar).get_attribute("aria-label") == f"difference {row['gap']['text']}"
    x = {
        k: float(browser.one(f"{bar} {k.split()[0]}").get_attribute(k.split()[1]))
        for k in (".mean cx", ".span x1", ".span x2")
    }
    assert x[".mean cx"] - 60 == pytest.approx((x[".span x2"] - 60) * 0.11 / 0.16, abs=1e-3)  # zero is at 60
    assert x[".span x1"] - 60 == pytest.approx((x[".span x2"] - 60) * 0.06 / 0.16, abs=1e-3)
    assert browser.all(f"{bar} .span.clear")
    dots = [float(d.get_attribute("cx")) for d in browser.all("#table-table1 tbody tr:nth-child(1) td.strip .seed")][:3]
    assert dots[2] - dots[1] == pytest.approx(dots[1] - dots[0], abs=1e-6)  # 93.52, 93.62, 93.72


def test_every_setting_is_compared_with_sgd(browser, report):
    blocks = browser.all("#comparisons > div > .block")
    assert len(blocks) == 6
    first = report.comparisons[0]
    assert [th.text for th in blocks[0].find_elements("css selector", "tbody th")] == [r["name"] for r in first["rows"]]
    gaps = [td.text for td in blocks[0].find_elements("css selector", "td.gap")]
    assert gaps == ["reference" if r["gap"] is None else r["gap"]["text"] for r in first["rows"]]
    assert re.fullmatch(r"[\d.]+ (s|min|h), × \d\.\d\d", blocks[0].find_element("css selector", "td.cost").text)


def test_a_question_comes_with_its_arms_and_what_they_ran_on(browser, report):
    asked = report.questions[0]
    article = browser.one("#question-q")
    assert asked["title"] in article.text
    assert asked["note"] in article.text
    blocks = article.find_elements("css selector", ".block")
    assert len(blocks) == len(asked["blocks"])
    assert blocks[0].find_element("css selector", ".on").text == "AMD EPYC, 1 thread"
    assert [th.text for th in blocks[0].find_elements("css selector", "tbody th")] == [
        row["name"] for row in asked["blocks"][0]["rows"]
    ]
    assert blocks[0].find_element("css selector", "th.gap").text == "against SGD"


def test_on_a_phone_a_row_is_a_card_and_nothing_scrolls_sideways(chromium, path):
    wide = "return [...document.querySelectorAll('.scroll')].filter((s) => s.scrollWidth > s.clientWidth + 1).length"
    for width in (800, 390):
        chromium.open(path, width=width)
        assert chromium.do(wide) == 0
    assert not chromium.one("#comparisons thead").is_displayed()
