"""Tables in a real browser: filters, the list, and the summary."""

from __future__ import annotations

from typing import Any


def names(browser: Any, table: str) -> list[str]:
    return [node.text for node in browser.all(f"#table-{table} tbody th[scope=row]")]


def test_tables_are_filtered_and_listed(browser):
    everything = ["RigL", "RigL + ZO-SAM", "LTH", "random direction"]
    assert names(browser, "table1") == everything
    assert browser.one("#table-table1 tbody.controls th[scope=row]").text == "random direction"
    browser.set("#table-table1 select", "only what was run", "change")
    assert names(browser, "table1") == ["RigL", "RigL + ZO-SAM", "random direction"]
    browser.set("#table-table1 select", "below", "change")
    assert names(browser, "table1") == ["RigL"]
    assert [c.text.splitlines()[0] for c in browser.all("#table-table1 td:not(.faded)[data-verdict]")] == [
        "89.95 ± 0.30a"
    ]
    browser.set("#table-table1 select", "everything", "change")
    browser.click("#table-table1 .tools button")
    assert len(names(browser, "table1")) == 9


def test_the_summary_counts_and_filters(browser):
    words = browser.do("return [...document.querySelectorAll('.words button')].map((b) => b.textContent)")
    counts = {word: count for count, word in (text.split(" ", 1) for text in words)}
    assert counts == {
        "✓reproduced": "2", "▲above": "1", "▼below": "1", "↗same direction": "1", "↘other direction": "1",
        "≈no difference seen": "1", "–not run": "2",
    }  # fmt: skip
    assert browser.one(".lead").text.startswith("8 of 10 cells")
    browser.click(".words button:last-of-type")
    assert names(browser, "table1") == ["LTH"]
    browser.click(".words button:last-of-type")
    assert len(names(browser, "table1")) == 4
