"""The page as text: nothing in the data can leave its script, and what breaks the contract is named."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from zosam.lab.report import page, palette


class Tags(HTMLParser):
    """What a parser sees: every tag, and the text of the data script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data, self.inside = "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id") == "data"

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        self.data += data if self.inside else ""


def test_the_data_comes_back_as_it_was(report):
    seen = json.loads(Tags(page.build(report)).data)
    assert seen["figures"][4]["panels"][0]["values"][1][2] is None  # a NaN is a gap
    assert seen["figures"][0]["series"][0]["y"] == report.figures[0]["series"][0]["y"]
    assert seen["tables"][0]["rows"][0]["cells"][0]["ours"] == "93.52 ± 0.18"
    assert (seen["facts"], seen["title"], seen["lead"]) == (report.facts, "A report", list(report.lead))
    assert seen["comparisons"][0]["rows"][0]["ours"] == report.comparisons[0]["rows"][0]["ours"]


def test_an_optimizer_has_one_hue_and_a_sparsity_one_place(report):
    seen = json.loads(Tags(page.build(report)).data)
    assert seen["sparsities"] == ["dense", "90 %", "95 %"]
    assert seen["styles"]["SGD"] == list(palette.HUES["sgd"])
    assert seen["styles"]["ZO-SAM"] == list(palette.HUES["zosam"])
    assert len(set(palette.SERIES)) == 12  # as many layers are told apart by colour
    two = palette.shades([("zosam", "ZO-SAM"), ("zosam", "ZO-SAM, fast"), ("unheard of", "X")])
    assert len({light for light, _ in two.values()}) == 3


def test_hostile_names_stay_data(hostile, report):
    bad, good = Tags(page.build(hostile)), Tags(page.build(report))
    assert [tag for tag, _ in bad.tags] == [tag for tag, _ in good.tags]
    assert json.loads(bad.data)["tables"][0]["name"] == hostile.tables[0]["name"]
    assert not re.search("[<>&\u2028\u2029]", bad.data)


def test_everything_is_inside_and_the_policy_holds_only_that(report):
    text = page.build(report)
    tags = Tags(text).tags
    assert not [a for _, a in tags if "src" in a or (a.get("href") or "#")[0] not in "#d"]
    policy = next(a["content"] for _, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for name, content in (("script", re.findall(r"<script>(.*)</script>", text, re.S)[0]),
                          ("style", re.findall(r"<style>(.*)</style>", text, re.S)[0])):  # fmt: skip
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_the_script_puts_in_text_only(report):
    text = page.build(report)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "XMLHttpRequest"):
        assert way not in text


def test_an_empty_report_is_a_page():
    assert "<main" in page.build(page.Report("Nothing yet"))


def test_write_leaves_one_whole_file(tmp_path, report):
    page.write(tmp_path / "out" / "report.html", replace(report, title="half a pair: \ud800"))
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["report.html"]
    assert (tmp_path / "out" / "report.html").read_text("utf-8").startswith("<!doctype html>")


def broken(figures, name, change):
    figures = copy.deepcopy(figures)
    change(next(f for f in figures if f["name"] == name))
    return figures


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("loss", lambda f: f.update(kind="pie"), "kind 'pie' is not one of scatter, lines"),
        ("loss", lambda f: f.pop("series"), "key 'series' is missing"),
        ("loss", lambda f: f["series"][1]["y"].pop(), "y of 'SAM' has 20 entries where 21 are needed"),
        ("loss", lambda f: f["series"][0]["low"].append(1.0), "low of 'SGD'"),
        ("loss", lambda f: f["series"][0]["y"].__setitem__(0, "1"), "'1', which is no number"),
        ("loss", lambda f: f["series"][0]["x"].__setitem__(0, float("inf")), "not finite"),
        ("landscape", lambda f: f["models"][2]["loss"][3].pop(), "loss of 'ZO-SAM' has 30 entries where 31"),
        ("landscape", lambda f: f["x"].reverse(), "x must hold at least two offsets that rise"),
        ("corruption", lambda f: f["panels"][1]["values"].pop(), "values of 'ZO-SAM' has 3 entries where 4"),
        ("accuracy", lambda f: f["series"][0].update(errors=[1.0]), "errors of 'SGD' has 1 entries where 5"),
        ("features", lambda f: f["tiles"][1][2][0].pop(), "tile \\('SAM', 'channel 2'\\)"),
        ("features", lambda f: f["tiles"].pop(), "tiles has 2 entries where 3"),
        ("features", lambda f: f["inputs"].pop(), "inputs has 2 entries where 3"),
        ("masks", lambda f: f["frames"][1]["moved"].pop(), "moved of step 100 has 1 entries where 2"),
        ("masks", lambda f: f["frames"][2]["masks"].pop(), "masks of step 200 has 1 entries where 2"),
        ("masks", lambda f: f["frames"][0]["masks"].__setitem__(0, "AAAA"), "has 3 bytes, not 24 x 60 bits"),
        ("masks", lambda f: f["frames"][0]["masks"].__setitem__(1, "?"), "is not base64"),
        ("masks", lambda f: f.update(frames=[]), "frames is empty, so there is nothing to draw"),
        ("accuracy", lambda f: f.update(groups=[]), "groups is empty"),
    ],
)
def test_a_figure_that_breaks_the_contract_is_named(figures, name, change, words):
    with pytest.raises(ValueError, match=f"figure '{name}': .*{words}"):
        page.build(page.Report("A title", figures=broken(figures, name, change)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t["rows"][0]["cells"].pop(), "cells of row 'RigL' has 2 entries where 3"),
        (lambda t: t["rows"][0]["cells"][0].update(verdict="fine"), "verdict 'fine' is not one of reproduced"),
        (lambda t: t["rows"][0]["cells"][0].update(paper=93.4), "paper must be text, not 93.4"),
        (lambda t: t.pop("columns"), "key 'columns' is missing"),
    ],
)
def test_a_table_that_breaks_the_contract_is_named(report, change, words):
    with pytest.raises(ValueError, match=f"table 'table1': .*{words}"):
        page.build(page.Report("A title", tables=broken(report.tables, "table1", change)))


def test_a_name_may_be_used_once(report):
    for what, things in (("figure", report.figures), ("table", report.tables)):
        with pytest.raises(ValueError, match=f"two {what}s are called '{things[0]['name']}'"):
            page.build(page.Report("A title", **{f"{what}s": [things[0], things[0]]}))


def test_a_cover_that_breaks_the_contract_is_named(report):
    for change, words in (
        (lambda arm: arm["seeds"].clear(), "has no seed"),
        (lambda arm: arm.update(front=["heartbeats"]), "is not among"),
        (lambda arm: arm["seeds"][0].update(seconds=float("nan")), "not finite"),
    ):
        cover = copy.deepcopy(report.cover)
        change(cover["panels"][0]["arms"][0])
        with pytest.raises(ValueError, match=f"figure 'tradeoff': .*{words}"):
            page.build(replace(report, cover=cover))
