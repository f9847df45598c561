"""The page in a real browser: it draws without an error, asks for nothing, fits a phone, and has two themes."""

from __future__ import annotations

import json

import pytest

from zosam.lab.report import page


@pytest.mark.parametrize("which", ["path", "hostile_path"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_draws_without_an_error_and_asks_for_nothing(chromium, request, which, width):
    file = request.getfixturevalue(which)
    chromium.open(file, width)
    assert [entry["message"] for entry in chromium.driver.get_log("browser")] == []
    messages = [json.loads(entry["message"])["message"] for entry in chromium.driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [file.as_uri()]
    assert chromium.do("return window.broken") is None
    boxes = chromium.do("""return [...document.querySelectorAll('figure .drawing > *')].map((d) => {
        const box = d.getBoundingClientRect();
        return [box.width, box.height, d.localName === 'svg' ? d.childNodes.length : 9];
    })""")
    assert len(boxes) == 9
    assert all(w > 100 and h > 50 and children > 3 for w, h, children in boxes)
    assert len(chromium.all("table")) > 10
    assert chromium.do("return document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_themes(chromium, path):
    ground = "return getComputedStyle(document.body).backgroundColor"
    chromium.open(path, scheme="dark")
    dark, picture = chromium.do(ground), chromium.pixels("landscape")
    chromium.click(".theme")
    light = chromium.do(ground)
    assert (dark, light) == ("rgb(20, 23, 27)", "rgb(255, 255, 255)")
    assert chromium.pixels("landscape") != picture


def test_figures_without_a_number_are_drawn_empty(chromium, tmp_path, blank):
    page.write(tmp_path / "blank.html", page.Report("All diverged", figures=blank))
    chromium.open(tmp_path / "blank.html")
    assert [entry["message"] for entry in chromium.driver.get_log("browser")] == []
    assert not chromium.all("#figure-loss [data-line] polyline, #figure-accuracy [data-bar] polygon")
    assert chromium.do("return document.querySelectorAll('main svg, main canvas').length") == 8
    assert "NaN" not in chromium.do("return document.querySelector('main').outerHTML")
