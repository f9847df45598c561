"""The tables against the paper's own source: every printed number is here, and none that it does not have."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from zosam.lab.paper.printed import Printed, parse
from zosam.lab.paper.source import read
from zosam.lab.paper.table import NAMES
from zosam.lab.paper.table import load as load_table

load = cache(load_table)  # hundreds of runs are checked each time
PAPER = Path(__file__).parents[4] / "shared" / "paper"
# what the paper calls a row or a column otherwise than we do
RENAMED = {
    "table1": {"ResNet-32": "Dense"},
    "table2": {"SNIP + ZO-SAM": "SViTE + ZO-SAM"},
    "table3": {"LookSAM(k=5)": "LookSAM (k=5)", "sp=0.9, Epoch#": "90 %", "sp=0.95, Epoch#": "95 %"},
    "table4": {"SGD": "SGD (dense)"},
    "table6": {"ResNet-50": "Dense"},
}


def latex_tables():
    files = sorted(PAPER.glob("*.txt"))
    if not files:
        pytest.skip("the paper's source is not here")
    source = "".join(f.read_text() for f in files)
    return re.findall(r"\\begin\{tabular\}(?=\{[lc])(.*?)\\end\{tabular\}", source, re.S)[-6:]


def plain(text):
    """A LaTeX cell as we write it."""
    text = re.sub(r"~?\[?\\cite(num)?\{[^}]*\}\]?|\\(cell|row)color\{[^}]*\}", "", text)
    text = re.sub(r"\\[a-z]*rule(\[[^]]*\])?(\([^)]*\))?(\{[^}]*\})?|\\vspace\{[^}]*\}", "", text)
    text = text.replace(r"\projectname", "ZO-SAM").replace(r"\%", "%").replace(r"\#", "#")
    text = re.sub(r"\s*\$\\pm\$\s*", " ± ", text)
    text = re.sub(r"\((\d+\.\d+)\$\\uparrow\$\)", r"(+\1)", text)
    while r"\textbf{" in text:
        text = re.sub(r"\\textbf\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\s*\((\d+\.\d+)%\)", r" (\1 %)", text)
    return " ".join(text.replace(" (Dense)", "").split())


def row_name(text):
    text = re.sub(r"\s*\+\s*", " + ", re.sub(r"\((?:ours|Ours)\)", "", text))
    return re.sub(r"\bLS\(k=(\d+)\)", r"LookSAM (k=\1)", text).strip()


def cells_of(number, tabular):
    """{(row, place of the column): printed} of one LaTeX table; empty cells are left out."""
    lines = [[plain(c) for c in line.split("&")] for line in tabular.split(r"\\")]
    body = [x for x in lines if len(x) > 1 and any(re.match(r"\d+(\.\d+)?(?!\d*%)", c) for c in x[1:])]
    if number == 3:  # turned: optimizers are its columns
        head = next(x for x in lines if "SGD" in x)
        body = [list(column) for column in zip(head, *body, strict=True)][1:]
    if number == 4:  # its second column is the sparsity
        body = [[x[0], *x[2:]] for x in body]
    names = RENAMED.get(f"table{number}", {})
    found = {}
    for name, *values in body:
        row = row_name(name)
        found |= {(names.get(row, row), place): v for place, v in enumerate(values) if v}
    return found


def ours(name):
    content = read(name)
    rows = [r for r in content["row"] if "printed" in r and "printed_in" not in r]
    assert all(len(r["printed"]) == len(content["column"]) for r in rows)
    return {(r["name"], place): v for r in rows for place, v in enumerate(r["printed"]) if v}


@pytest.mark.parametrize("number", range(1, 7))
def test_every_printed_cell_is_here_and_no_other(number):
    theirs = cells_of(number, latex_tables()[number - 1])
    assert ours(f"table{number}") == theirs
    assert len(theirs) == {1: 86, 2: 14, 3: 10, 4: 42, 5: 18, 6: 74}[number]  # counted by hand


@pytest.mark.parametrize("number", range(1, 7))
def test_number_by_number_nothing_is_missing(number):
    """Cruder and independent of rows: the same numbers, as often."""
    tabular = re.sub(r"\\vspace\{[^}]*\}|sp=0\.\d+|k=\d+", "", latex_tables()[number - 1])
    whole = r"(?<![-\d])\d{2,3}(?![\d\\])" if number == 3 else r"\b2701\b"  # all others have a point
    theirs = re.findall(rf"\d+\.\d+|{whole}", tabular)
    mine = [n for v in ours(f"table{number}").values() for n in re.findall(r"\d+(?:\.\d+)?", v)]
    assert Counter(theirs) == Counter(mine)
    assert len(mine) == {1: 188, 2: 20, 3: 10, 4: 54, 5: 28, 6: 164}[number]


def cells():
    return [(table.name, table, cell) for table in (load(n, "paper") for n in NAMES) for cell in table.cells]


def test_gains_are_the_printed_differences_unless_noted():
    checked = 0
    for name, table, cell in cells():
        other = table.versus(cell)
        mine = parse(cell.printed)
        if mine is not None and mine.gain is not None:
            there = parse(other.printed)
            fits = abs(mine.value - there.value - mine.gain) < 0.0051
            assert fits or cell.misprint, (name, cell)
            checked += 1
    assert checked == 42 + 6 + 10 + 36


def test_shares_are_of_the_dense_row_unless_noted():
    table, wrong = load("table4", "paper"), []
    for column in ("ResNet-32 images/s", "WRN-28-10 images/s"):
        dense = parse(table.cell("SGD (dense)", column).printed).value
        for cell in table.cells:
            mine = parse(cell.printed)
            if cell.column == column and mine is not None and mine.share is not None:
                right = 100 * mine.value / dense
                if abs(right - mine.share) > 0.00501:
                    assert f"{right:.2f} %" in cell.misprint
                    wrong.append(cell.row)
    assert wrong == ["ESAM", "LookSAM (k=5)", "LookSAM (k=10)", "ZO-SAM"]


def test_gaps_are_the_printed_differences():
    table = load("table5", "paper")
    for row in ("SNIP", "SNIP + ESAM", "SNIP + LookSAM (k=5)", "SNIP + LookSAM (k=10)", "SNIP + GSAM", "SNIP + ZO-SAM"):
        clean, corrupted, gap = (table.cell(row, c) for c in table.columns)
        digits = len(gap.printed.partition(".")[2])
        right = parse(clean.printed).value - parse(corrupted.printed).value
        assert f"{right:.{digits}f}" == gap.printed
        assert digits == 2 or gap.misprint


def test_what_the_text_says_of_the_tables():
    def gains(name, data):
        printed = [parse(c.printed) for c in load(name, "paper").cells if data in c.column.split()]
        return [p.gain for p in printed if p is not None and p.gain is not None]

    assert (min(gains("table1", "CIFAR-10")), max(gains("table1", "CIFAR-10"))) == (0.38, 2.31)
    assert (min(gains("table1", "CIFAR-100")), max(gains("table1", "CIFAR-100"))) == (0.45, 2.54)
    assert (max(gains("table6", "CIFAR-10")), max(gains("table6", "CIFAR-100"))) == (1.04, 1.56)
    assert (max(gains("table2", "DeiT-Tiny")), max(gains("table2", "DeiT-Small"))) == (1.14, 1.17)


def test_cells_that_are_the_same_training_say_the_same():
    """By the address of the run, across all tables; also the numbers that table 4 borrows from table 1."""
    said = {}
    for _, _, cell in cells():
        if cell.printed:
            printed = parse(cell.printed)
            said.setdefault((cell.run.key, cell.measure), set()).add(printed.value)
    assert all(len(values) == 1 for values in said.values())


def test_a_printed_number_is_read():
    assert parse("94.58") == Printed(94.58)
    assert parse("92.69 ± 0.05 (+0.38)") == Printed(92.69, spread=0.05, gain=0.38)
    assert parse("93.40 (+0.81)") == Printed(93.4, gain=0.81)
    assert parse("2701 (47.60 %)") == Printed(2701.0, share=47.6)
    assert parse("") is None
    for wrong in ("92.69±0.05", "n/a", "94.58 (Dense)"):
        with pytest.raises(ValueError, match="not a printed number"):
            parse(wrong)


def test_directions():
    table = load("table1", "tiny")
    assert {c.direction for c in table.cells if c.row.endswith("+ ZO-SAM")} == {1}
    assert {c.direction for c in table.cells if c.control or c.versus is None} == {0}
    assert load("table3", "tiny").cell("ZO-SAM", "90 %").direction == -1  # 70 epochs, not 104
    assert load("table5", "tiny").cell("SNIP + ZO-SAM", "Δ").direction == -1  # 30.68, not 32.99
    four = load("table4", "tiny")
    assert four.cell("ZO-SAM", "ResNet-32 CIFAR-10").direction == 1  # 93.50, and 92.56 in table 1
    assert four.cell("ZO-SAM", "ResNet-32 images/s").direction == -1  # 76.67 % of SGD's
    assert four.cell("ZO-SAM", "WRN-28-10 CIFAR-10").direction == 0  # SGD at 90 % is printed nowhere


def test_controls_follow_what_they_control():
    table = load("table1", "tiny")
    assert table.rows[:10] == (
        "Dense", "LT", "LT + ZO-SAM", "LT + SAM", "LT + SAM, ⅛ batch", "LT + ZO-SAM, fast", "LT + random direction",
        "LT + S²-SAM", "LT + MSAM", "SNIP",
    )  # fmt: skip
    assert table.cell("LT + SAM", "CIFAR-10 95 %").run.optimizer.name == "sam"
    assert table.cell("LT + SAM", "CIFAR-10 95 %").control
    assert not table.cell("LT + ZO-SAM", "CIFAR-10 95 %").control
    assert table.rows[-1] == "MEST + MSAM"
    assert len(table.rows) == 1 + 7 * 8


def test_misprints_are_with_their_cells():
    table = load("table1", "paper")
    assert "LT" in table.cell("SNIP", "CIFAR-100 95 %").misprint
    assert table.cell("SNIP", "CIFAR-10 95 %").misprint == ""
    assert any(m.startswith("SNIP: 65.02") for m in table.misprints)
    for name in NAMES:  # a misprint that names what is not there would be lost in silence
        content, table = read(name), load(name, "tiny")
        for misprint in content.get("misprint", []):
            assert misprint.get("row") in {None, *table.rows}
            assert set(misprint.get("columns", [])) <= set(table.columns)


def test_an_unknown_table_is_refused():
    with pytest.raises(ValueError, match="did you mean 'table"):
        load("tabel1", "tiny")
