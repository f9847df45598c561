"""The charts that are committed are drawn from the figures beside them."""

from __future__ import annotations

import importlib
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def chart():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("chart")
    sys.path.remove(str(ROOT / "benchmarks"))


def test_they_are_what_the_program_draws(chart):
    file = ROOT / "results" / "kernel_speedup.json"
    drawn = chart.step_charts(json.loads(file.read_text()))
    assert {f"{file.stem}{suffix}.svg" for suffix in drawn} == {
        p.name for p in file.parent.glob("kernel_speedup-*.svg")
    }
    for suffix, text in drawn.items():
        assert file.with_name(f"{file.stem}{suffix}.svg").read_text() == text, f"run python benchmarks/chart.py {file}"


def test_bars_are_as_long_as_their_values_and_names_are_no_markup(chart):
    text = chart.bars("a < b", "x & y", {"90 %": {"one": 2.0, "two": 4.0}, "95 %": {"<one>": 8.0}})
    ET.fromstring(text)
    wide = [float(w) for w in re.findall(r'width="([\d.]+)" height="17"', text)]
    assert wide[1] / wide[0] == pytest.approx(2, abs=0.01)
    assert wide[2] / wide[0] == pytest.approx(4, abs=0.01)
    assert "&lt;one&gt;" in text
