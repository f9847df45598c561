"""Figures for print: every kind in every format, the same bytes twice, nothing of the user's changed."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from zosam.lab.report import overview
from zosam.lab.report.arms import arms_of, settings_of
from zosam.lab.report.still import draw

KINDS = ("loss", "variance", "landscape", "corruption", "alignment", "accuracy", "features", "masks")


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'zosam[report]'")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_drawn(matplotlib, tmp_path, figures, name):
    from matplotlib.image import imread

    figure = next(f for f in figures if f["name"] == name)
    draw(figure, tmp_path / "figure.png")
    picture = imread(tmp_path / "figure.png")
    assert min(picture.shape[:2]) > 200
    assert (picture[..., :3].min(axis=-1) < 0.9).mean() > 0.01  # more than a white sheet


def test_what_lines_say_is_drawn(matplotlib, tmp_path, lines):
    arms = arms_of(entry for entry in lines if entry["run"]["seed"] < 100)
    settings = settings_of(arms)
    found = [overview.tradeoff(arms), overview.convergence(settings[:2]), *overview.corruptions(arms)[:1]]
    for figure in found:
        draw(figure, tmp_path / "figure.svg")
        assert (tmp_path / "figure.svg").stat().st_size > 10_000


def test_arms_with_long_names_are_not_joined(matplotlib, line):
    from matplotlib.figure import Figure

    from zosam.lab.report.drawings import KINDS
    from zosam.lab.report.still import _printable

    found = [line(0.5 + d, optimizer="zosam:probe=rademacher(2),scale=filter", weight_decay=d) for d in (1e-3, 1e-2)]
    figure = overview.tradeoff(arms_of(found))
    assert all(len(arm["name"]) > 50 for arm in figure["panels"][0]["arms"])
    paper = Figure()
    KINDS["scatter"](paper, _printable(figure))
    chains = [d for d in paper.axes[0].lines if d.get_linestyle() == "-" and d.get_drawstyle() == "default"]
    assert [len(chain.get_xdata()) for chain in chains] == [1, 1]


def test_the_names_of_arms_stay_on_the_paper(matplotlib, line):
    from matplotlib.figure import Figure

    from zosam.lab.report.drawings import KINDS

    long = "random direction, filter metric"
    arms = arms_of([line(0.5, optimizer=name) for name in ("sgd", "sam", "zosam", "rwp", "msam", "s2sam", "gsam")])
    figure = overview.tradeoff([replace(arm, optimizer_name=f"{long} {i}") for i, arm in enumerate(arms)])
    paper = Figure(layout="constrained")
    KINDS["scatter"](paper, figure)
    paper.draw_without_rendering()
    (legend,) = paper.legends
    assert legend.get_window_extent().x0 >= 0
    assert legend.get_window_extent().x1 <= paper.bbox.x1


@pytest.mark.filterwarnings("ignore:Glyph")  # no font has everything
@pytest.mark.filterwarnings("ignore:constrained_layout")
@pytest.mark.parametrize("i", range(len(KINDS)))
def test_hostile_names_are_drawn(matplotlib, tmp_path, hostile, i):
    draw(hostile.figures[i], tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert {node.tag.split("}")[1] for node in ET.fromstring(text).iter()} & {"path", "image"}
    assert "<img" not in text
    assert "<script" not in text


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_figure_gives_the_same_bytes(matplotlib, tmp_path, figures, suffix):
    before = dict(matplotlib.rcParams)
    draw(figures[0], tmp_path / f"a{suffix}")
    draw(figures[0], tmp_path / f"b{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    assert dict(matplotlib.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")  # another part of matplotlib may have loaded it
    assert pyplot is None or pyplot.get_fignums() == []


def test_the_values_are_where_they_belong(matplotlib, figures):
    from matplotlib.figure import Figure

    from zosam.lab.report.drawings import KINDS

    paper = Figure()
    KINDS["bars"](paper, figures[5])
    heights = [bar.get_height() for bar in paper.axes[0].patches]
    assert heights == [v for series in figures[5]["series"] for v in series["values"]]
    paper = Figure()
    KINDS["lines"](paper, figures[1])
    assert paper.axes[0].get_yscale() == "log"
    assert list(paper.axes[0].lines[2].get_ydata())[:-1] == figures[1]["series"][2]["y"][:-1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("i", range(len(KINDS)))
def test_figures_without_a_number_are_drawn_empty(matplotlib, tmp_path, blank, i):
    draw(blank[i], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_what_cannot_be_drawn_is_named(matplotlib, tmp_path, figures):
    with pytest.raises(ValueError, match=r"figure 'loss': a\.gif must end in \.png, \.svg, \.pdf"):
        draw(figures[0], tmp_path / "a.gif")
    with pytest.raises(ValueError, match="figure 'loss': kind 'pie'"):
        draw(figures[0] | {"kind": "pie"}, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch, tmp_path, figures):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'zosam\[report\]'"):
        draw(figures[0], tmp_path / "a.png")
