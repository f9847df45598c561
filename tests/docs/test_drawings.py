"""The drawings that are committed are those that the program draws."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET

import pytest

from .pages import PAGES, ROOT


@pytest.fixture(scope="module")
def drawings():
    spec = importlib.util.spec_from_file_location("drawings", ROOT / "docs" / "drawings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.DRAWINGS


def test_they_are_what_the_program_draws(drawings):
    assert {p.stem for p in (ROOT / "docs" / "assets").glob("*.svg")} == set(drawings)
    for name, draw in drawings.items():
        assert (ROOT / "docs" / "assets" / f"{name}.svg").read_text() == draw(), "run python docs/drawings.py"


def test_each_stands_on_a_page_and_says_what_it_shows(drawings):
    pages = "".join(page.read_text() for page in PAGES)
    for name, draw in drawings.items():
        assert f"assets/{name}.svg)" in pages
        assert ET.fromstring(draw()).get("aria-label")
