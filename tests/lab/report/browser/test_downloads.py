"""What comes down: CSV with the right numbers and no formula, SVG that is XML, PNG of twice its size."""

from __future__ import annotations

import base64
import struct
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest

from zosam.lab.report import page


def test_numbers_come_down_as_csv(browser, figures):
    expected: dict[str, list[list[Any]]] = {
        "loss": [["", s["name"], s["x"][k], s["y"][k], s["low"][k], s["high"][k]]
                 for s in figures[0]["series"] for k in range(21)],
        "landscape": [[m["name"], x, y, m["loss"][j][i]] for m in figures[2]["models"]
                      for j, y in enumerate(figures[2]["y"]) for i, x in enumerate(figures[2]["x"])],
        "alignment": [["all", r, c, figures[4]["panels"][0]["values"][i][j]]
                      for i, r in enumerate("ab") for j, c in enumerate("123")],
        "accuracy": [[g, s["name"], s["values"][k], 0.25] for k, g in enumerate(figures[5]["groups"])
                     for s in figures[5]["series"]],
        "features": [[r, c, i, j, v] for a, r in enumerate(figures[6]["rows"])
                     for b, c in enumerate(figures[6]["columns"])
                     for i, line in enumerate(figures[6]["tiles"][a][b]) for j, v in enumerate(line)],
    }  # fmt: skip
    expected["alignment"][2][3] = expected["alignment"][5][3] = ""
    for name, rows in expected.items():
        found = browser.csv(f"#figure-{name} .downloads button:last-child")[1:]
        assert [[_number(v) for v in row] for row in found] == [[_number(str(v)) for v in row] for row in rows]
    masks = browser.csv("#figure-masks .downloads button:last-child")[1:]
    ours = sum(
        int(np.unpackbits(np.frombuffer(base64.b64decode(m), np.uint8)).sum())
        for f in figures[7]["frames"]
        for m in f["masks"]
    )
    assert len(masks) == ours


def _number(text: str) -> Any:
    """With six digits, as the page has it."""
    try:
        return float(f"{float(text):.6g}")
    except ValueError:
        return text


def test_a_table_comes_down_as_csv_and_no_name_is_a_formula(chromium, hostile, hostile_path, path):
    chromium.open(path)
    rows = chromium.csv("#table-table1 .downloads button")
    assert rows[0] == ["row", "control", "column", "paper", "ours", "difference", "verdict", "cost", "note"]
    assert rows[1] == ["RigL", "no", "90 %", "93.41", "93.52 ± 0.18", "'+0.11 ± 0.05", "reproduced", "1.9 h", ""]
    assert rows[4][3:6] == ["+0.45", "'+0.31 ± 0.12", "-0.14"]  # a number may begin with a sign, nothing else
    chromium.open(hostile_path)
    selector = "article[id^=table] .downloads button"
    found = [field for row in chromium.csv(selector) for field in row]
    assert [f for f in found if f[:1] in "=@" and f] == []
    assert "'" + '=HYPERLINK("http://example.org","x")' in found
    assert hostile.tables[0]["rows"][0]["name"] in found  # commas, quotes and tags come through whole


@pytest.mark.parametrize("which", ["path", "hostile_path"])
def test_drawings_come_down_as_svg_and_png(chromium, request, which):
    chromium.open(request.getfixturevalue(which), scheme="dark")
    chromium.set("figure[data-kind=surface] input[type=range]", 1)  # nothing is cut off
    shapes = {}
    for figure in chromium.all("figure"):
        name = figure.get_attribute("id")
        root = ET.fromstring(chromium.download(f"#{name} .downloads button:nth-child(2)", ".svg"))
        tags = [node.tag.split("}")[1] for node in root.iter()]
        shapes[name] = {tag: tags.count(tag) for tag in set(tags)}
        assert root[1].get("fill") == "#ffffff"  # dark on white, whatever the theme
        words = {node.get("fill") for node in root.iter("{http://www.w3.org/2000/svg}text")}
        assert words <= {"#1b1f24", "#5c6570", "#ffffff", "#1a1a1a"}
        png = chromium.download(f"#{name} .downloads button:nth-child(1)", ".png")
        size = struct.unpack(">II", png[16:24])
        assert size == tuple(2 * int(float(root.get(side))) for side in ("width", "height"))
        assert len(png) > 5000
    assert shapes["figure-landscape"]["polygon"] == 3 * 30 * 30 + 3  # every quad, and a floor for each model
    assert shapes["figure-features"]["image"] == 21  # with the inputs
    assert [e for e in chromium.driver.get_log("browser") if e["level"] == "SEVERE"] == []


def test_a_loss_that_is_not_finite_leaves_a_hole(chromium, tmp_path, figures):
    figure = figures[2]
    figure["models"][0]["loss"][10][10] = float("inf")
    page.write(tmp_path / "hole.html", page.Report("A hole", figures=[figure]))
    chromium.open(tmp_path / "hole.html")
    chromium.set("#figure-landscape input[type=range]", 1)
    root = ET.fromstring(chromium.download("#figure-landscape .downloads button:nth-child(2)", ".svg"))
    assert sum(node.tag.endswith("polygon") for node in root.iter()) == 3 * 30 * 30 + 3 - 4
