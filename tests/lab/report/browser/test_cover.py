"""The picture of the first screen: a dot for each seed where its numbers say, the front, and what a pointer tells."""

from __future__ import annotations

import numpy as np

CENTRES = """return [...document.querySelectorAll('#figure-tradeoff [data-arm] polygon')].map((p) => {
    const points = p.getAttribute('points').split(' ').map((q) => q.split(',').map(Number));
    return [0, 1].map((k) => (Math.min(...points.map((q) => q[k])) + Math.max(...points.map((q) => q[k]))) / 2);
})"""


def test_every_seed_is_a_dot_where_its_numbers_say(browser, report):
    arms = report.cover["panels"][0]["arms"]
    seeds = [seed for arm in arms for seed in arm["seeds"]]
    places = np.array(browser.do(CENTRES))
    assert len(places) == len(seeds)
    heights = np.array([seed["y"] for seed in seeds])
    slope, start = np.polyfit(heights, places[:, 1], 1)
    assert slope < 0  # more is higher
    np.testing.assert_allclose(slope * heights + start, places[:, 1], atol=0.6)
    cost = np.log10([seed["seconds"] for seed in seeds])  # they differ by more than eight times
    slope, start = np.polyfit(cost, places[:, 0], 1)
    np.testing.assert_allclose(slope * cost + start, places[:, 0], atol=12)  # equal costs stand side by side


def test_the_first_screen_says_what_was_found(chromium, path, report):
    chromium.open(path, width=1440)
    assert [p.text for p in chromium.all("header p.lead, header p.second")] == list(report.lead)
    box = chromium.do("return document.querySelector('#figure-tradeoff svg').getBoundingClientRect().bottom")
    assert box < 900
    facts = chromium.one(".facts").text
    assert report.facts["hardware"] in facts


def test_the_legend_hides_an_optimizer_and_a_sparsity(browser):
    everything = len(browser.do(CENTRES))
    browser.click('#figure-tradeoff [data-series="SAM"]')
    without = len(browser.do(CENTRES))
    assert without < everything
    browser.click('#figure-tradeoff [data-series="sparsity 90 %"]')
    assert len(browser.do(CENTRES)) < without
    browser.click('#figure-tradeoff [data-series="SAM"]')
    browser.click('#figure-tradeoff [data-series="sparsity 90 %"]')
    assert len(browser.do(CENTRES)) == everything


def test_the_pointer_tells_what_a_dot_is(browser, report):
    arm = max(report.cover["panels"][0]["arms"], key=lambda arm: max(seed["seconds"] for seed in arm["seeds"]))
    browser.do("document.querySelector('#figure-tradeoff .pad').focus()")
    browser.one("#figure-tradeoff .pad").send_keys("\ue014" * 60)  # arrow right, to the dearest
    told = browser.one("#tip").text.replace("\u2068", "").replace("\u2069", "").splitlines()
    assert told[0] == arm["name"]
    assert told[1] == arm["where"]
    mean = np.mean([seed["y"] for seed in arm["seeds"]])
    assert told[3].startswith(f"mean of 3: {mean:.2f} % in ")


def test_cost_is_time_or_passes_and_the_task_can_be_chosen(browser):
    label = "return [...document.querySelectorAll('#figure-tradeoff svg > text')].map((t) => t.textContent)"
    assert "wall time of training, minutes" in browser.do(label)
    browser.choose("#figure-tradeoff label:nth-of-type(2) select", 1)
    assert any(text.startswith("passes") for text in browser.do(label))
    before = len(browser.do(CENTRES))
    browser.choose("#figure-tradeoff label:nth-of-type(1) select", 1)
    assert len(browser.do(CENTRES)) != before
