"""Figures in a real browser: points and colours are where the numbers say, and the controls work."""

from __future__ import annotations

import base64
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from zosam.lab.report import page


def test_points_are_where_their_numbers_say(browser, figures):
    script = "return document.querySelector('#figure-{} [data-line=\"{}\"] polyline').getAttribute('points')"
    for name, figure, f in (("loss", figures[0], np.asarray), ("variance", figures[1], np.log10)):
        series = figure["series"][1]
        points = np.array([p.split(",") for p in browser.do(script.format(name, 1)).split()], float)
        values = f(np.array(series["y"])[: len(points)])  # the last value of the second is 0: a gap on a log axis
        for pixels, numbers in ((points[:, 0], np.array(series["x"])[: len(points)]), (points[:, 1], values)):
            slope, start = np.polyfit(numbers, pixels, 1)
            np.testing.assert_allclose(slope * numbers + start, pixels, atol=0.02)
        assert np.polyfit(values, points[:, 1], 1)[0] < 0  # more is higher


def test_the_legend_hides_a_line_and_shows_it_again(browser):
    entry, line = '#figure-loss [data-series="SAM"]', '#figure-loss [data-line="1"]'
    assert len(browser.all("#figure-loss [data-line]")) == 3
    browser.click(entry)
    assert not browser.all(line)
    assert browser.one(entry).get_attribute("aria-pressed") == "false"
    assert len(browser.all("#figure-loss [data-line]")) == 2
    browser.one(entry).send_keys("\ue007")  # Enter, on the entry that has kept the focus
    assert browser.all(line)


def test_the_pointer_reads_values_off(browser, figures):
    browser.do("document.querySelector('#figure-loss .pad').focus()")
    for _ in range(3):
        browser.one("#figure-loss .pad").send_keys("\ue014")  # arrow right
    lines = browser.one("#tip").text.replace("\u2068", "").replace("\u2069", "").splitlines()
    assert lines[0] == "epoch: 16"
    assert [line.split(" (")[0] for line in lines[1:]] == [
        f"{series['name']}: {series['y'][2]:.4g}" for series in figures[0]["series"]
    ]


def test_the_surface_turns_zooms_and_is_cut(browser):
    canvas = browser.one("#figure-landscape canvas")
    browser.do("arguments[0].scrollIntoView({block: 'center'})", canvas)
    seen = [browser.pixels("landscape")]

    def changed() -> bool:
        browser.frame()
        seen.append(browser.pixels("landscape"))
        return seen[-1] != seen[-2]

    actions = browser.webdriver.ActionChains(browser.driver)
    actions.click_and_hold(canvas).move_by_offset(80, 30).release().perform()
    assert changed()
    for key in ("\ue012", "\ue013", "+"):  # left, up, closer
        canvas.send_keys(key)
        assert changed()
    box = browser.do("const b = arguments[0].getBoundingClientRect(); return [b.x + b.width / 2, b.y + 90]", canvas)
    wheel = {"type": "mouseWheel", "x": box[0], "y": box[1], "deltaX": 0, "deltaY": -200}
    browser.cdp("Input.dispatchMouseEvent", wheel)
    assert changed()
    browser.click("#figure-landscape .tools button")
    browser.frame()
    assert browser.pixels("landscape") == seen[0]  # the way home
    browser.set("#figure-landscape input[type=range]", 0.5)
    assert changed()
    browser.click("#figure-landscape input[type=checkbox]")
    assert changed()


def test_the_map_tells_the_value_of_every_model_under_the_pointer(browser, figures):
    figure = figures[2]
    root = ET.fromstring(browser.download("#figure-landscape .downloads button:nth-child(2)", ".svg"))
    squares = [node for node in root.iter() if node.tag.endswith("rect") and node.get("width") == node.get("height")]
    ground = max((s for s in squares if s.get("width") != "100%"), key=lambda s: float(s.get("width")))
    left, top, size = (float(ground.get(k)) for k in ("x", "y", "width"))
    canvas = browser.one("#figure-landscape canvas")
    browser.do("arguments[0].scrollIntoView({block: 'start'})", canvas)
    box = browser.do("const b = arguments[0].getBoundingClientRect(); return [b.x, b.y]", canvas)
    i, j = 18, 9  # of 31 points; rows rise from the bottom
    place = {"x": box[0] + left + size * i / 30, "y": box[1] + top + size * (1 - j / 30)}
    browser.cdp("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
    browser.frame()
    told = browser.one("#tip").text.replace("\u2068", "").replace("\u2069", "").replace("−", "-").splitlines()
    assert [line.split(": ")[0] for line in told[1:]] == [model["name"] for model in figure["models"]]
    for line, model in zip(told[1:], figure["models"], strict=True):
        assert float(line.split(": ")[1]) == pytest.approx(model["loss"][j][i], rel=0.03)
    assert told[0].startswith(f"at ({figure['x'][i]:.1g}")


def test_beside_a_surface_stand_its_sharpness_and_eigenvalues(browser):
    root = ET.fromstring(browser.download("#figure-landscape .downloads button:nth-child(2)", ".svg"))
    words = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert "sharpness 0.4321; λ 31.5, 12.25" in words
    assert any(word.startswith("at the weights 0.3; below ") for word in words)


def test_all_surfaces_of_the_page_turn_together(chromium, tmp_path, figures):
    page.write(tmp_path / "two.html", page.Report("Two", figures=[figures[2], {**figures[2], "name": "other"}]))
    chromium.open(tmp_path / "two.html")
    before = chromium.pixels("other")
    chromium.one("#figure-landscape canvas").send_keys("\ue012")
    chromium.frame()
    assert chromium.pixels("other") != before


def test_what_is_in_front_follows_the_pointer(browser):
    def front() -> tuple[float, float]:
        """The lowest corner of the first floor, by (x, y) in pixels."""
        root = ET.fromstring(browser.download("#figure-landscape .downloads button:nth-child(2)", ".svg"))
        floor = next(node for node in root.iter() if node.tag.endswith("polygon")).get("points")
        return max((tuple(map(float, p.split(","))) for p in floor.split()), key=lambda p: p[1])

    canvas = browser.one("#figure-landscape canvas")
    start = front()
    for move, grows in (((25, 0), 0), ((0, 25), 1)):
        browser.webdriver.ActionChains(browser.driver).click_and_hold(canvas).move_by_offset(*move).release().perform()
        browser.frame()
        assert front()[grows] > start[grows]


def test_fingers_turn_and_pinch_the_surface(chromium, path):
    chromium.open(path, width=360)
    canvas = chromium.one("#figure-landscape canvas")
    chromium.do("arguments[0].scrollIntoView({block: 'center'})", canvas)
    x, y = chromium.do(
        "const b = arguments[0].getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]", canvas
    )

    def touch(kind: str, *fingers: tuple[float, float]) -> None:
        points = [{"x": fx, "y": fy, "id": i} for i, (fx, fy) in enumerate(fingers)]
        chromium.cdp("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    for moves in ([[(x - 40, y)], [(x, y)], [(x + 40, y)]],
                  [[(x - 20, y), (x + 20, y)], [(x - 40, y), (x + 40, y)], [(x - 60, y), (x + 60, y)]]):  # fmt: skip
        before = chromium.pixels("landscape")
        touch("touchStart", *moves[0])
        for move in moves[1:]:
            touch("touchMove", *move)
        touch("touchEnd")
        chromium.frame()
        assert chromium.pixels("landscape") != before


def test_a_frame_of_the_film_shows_its_mask(browser, figures):
    figure = figures[-1]
    first = browser.pixels("masks")
    browser.set("#figure-masks input[type=range]", 3)
    assert browser.pixels("masks") != first
    rows, columns = figure["layers"][0]["shape"]
    now, before = (
        np.unpackbits(np.frombuffer(base64.b64decode(figure["frames"][k]["masks"][0]), np.uint8))[: rows * columns]
        for k in (3, 2)
    )
    script = """const c = document.querySelector('#figure-masks canvas'), [rows, columns, unit] = arguments;
        const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, found = [];
        for (let r = 0; r < rows; r++) for (let k = 0; k < columns; k++) {
          const at = 4 * ((r * unit + (unit >> 1)) * c.width + k * unit + (unit >> 1));
          found.push([...data.slice(at, at + 3)].join());
        }
        return found"""
    unit = min(
        browser.do("return document.querySelector('#figure-masks .drawing').clientWidth") // columns, 420 // rows, 18
    )
    colours = np.array(browser.do(script, rows, columns, unit))
    states = now * 2 + before  # nothing, dropped, grown, kept: four states, four colours
    assert len(set(colours)) == 4
    assert all(len(set(colours[states == state])) == 1 for state in range(4))
    told = browser.one("#figure-masks output").text
    assert f"{now.sum()} of {rows * columns:,} active" in told
    assert "12.0 % moved since the frame before, 70.0 % of the first mask is left" in told


def test_the_film_plays_and_pauses_and_changes_layers(browser):
    play, slider = "#figure-masks .tools button", "#figure-masks input[type=range]"
    browser.click(play)
    assert browser.one(play).text == "Pause"
    for _ in range(100):
        if browser.one(slider).get_attribute("value") != "0":
            break
        time.sleep(0.05)
    browser.click(play)
    stopped = browser.one(slider).get_attribute("value")
    assert stopped != "0"
    assert browser.one(play).text == "Play"
    before = browser.pixels("masks")
    browser.choose("#figure-masks select", 1)
    assert browser.pixels("masks") != before


def test_heat_cells_carry_their_values(browser, figures):
    titles = browser.do(
        "return [...document.querySelectorAll('#figure-corruption [data-cell] title')].map((t) => t.textContent)"
    )
    values = [v for panel in figures[3]["panels"] for row in panel["values"] for v in row]
    assert [float(title.split(": ")[-1]) for title in titles] == values
    browser.choose("#figure-corruption select", 1)
    assert len(browser.all("#figure-corruption [data-cell]")) == 28
    browser.click("#figure-corruption input[type=checkbox]")  # as differences to the first column
    titles = browser.do(
        "return [...document.querySelectorAll('#figure-corruption [data-cell] title')].map((t) => t.textContent)"
    )
    line = figures[3]["panels"][1]["values"][2]
    told = [title.split(": ")[-1].replace("−", "-") for title in titles[14:21]]
    assert told[0] == "–"
    assert [float(t) for t in told[1:]] == pytest.approx([v - line[0] for v in line[1:]], rel=1e-3)


def test_bars_have_the_lengths_of_their_values(browser, figures):
    script = """return [...document.querySelectorAll('#figure-accuracy [data-bar="2"] rect')]
        .map((r) => Number(r.getAttribute('width')))"""
    assert browser.do(script) == []  # all within two per cent: points, near the values
    browser.click("#figure-accuracy input")
    lengths = np.array(browser.do(script))
    np.testing.assert_allclose(lengths / lengths[0], np.array(figures[5]["series"][2]["values"]) / 93.0, rtol=1e-6)
