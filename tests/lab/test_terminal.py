"""Tables in a terminal lose no digit at any width; in a pipe they are plain; programs get JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from rich.console import Console
from rich.text import Text

from zosam.lab.terminal import Column, Output, lay_out, show_table

COLUMNS = [
    Column(""),
    Column("ours", right=True),
    Column("difference", 1, right=True),
    Column("paper", 2),
    Column("cost", 3),
]
ROWS = [
    Text("SNIP", style="bold"),
    ["CIFAR-10 90 %", "52.09 ± 1.36", "", "92.59 ± 0.10", "3 × 1.6 min"],
    ["CIFAR-100 95 %", "50.58 ± 1.76", "-0.63 ± 1.71", "91.69 ± 0.17 (+0.68)", "3 × 1.3 min"],
]


def numbers(text: str) -> list[str]:
    return sorted(re.findall(r"\d+(?:\.\d+)?", text))


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 100, 200, None])
def test_no_digit_is_lost_at_any_width(width):
    told = "\n".join(line.plain for line in lay_out(COLUMNS, ROWS, width))
    assert numbers(told) == numbers(" ".join(str(cell) for row in ROWS[1:] for cell in row))


def test_columns_leave_by_rank_and_say_their_name():
    lines = [line.plain for line in lay_out(COLUMNS, ROWS, 70)]
    assert lines[0] == "                        ours    difference  paper"
    assert lines[2] == "CIFAR-10 90 %   52.09 ± 1.36                92.59 ± 0.10"
    assert lines[3] == "    cost 3 × 1.6 min"
    assert lines[4] == "CIFAR-100 95 %  50.58 ± 1.76  -0.63 ± 1.71  91.69 ± 0.17 (+0.68)"
    narrow = [line.plain for line in lay_out(COLUMNS, ROWS, 30)]
    assert narrow[2:4] == ["CIFAR-10 90 %   52.09 ± 1.36", "    paper 92.59 ± 0.10  cost 3 × 1.6 min"]
    assert all(len(line) <= 70 for line in lines)


def test_prose_is_broken_between_words_and_numbers_never():
    columns = [Column("name"), Column("", prose=True)]
    rows = [["sam", "Sharpness-aware minimization climbs along the gradient before it takes the step"]]
    lines = [line.plain for line in lay_out(columns, rows, 40, head=False)]
    assert all(len(line) <= 40 for line in lines)
    assert (
        " ".join(" ".join(lines).split())
        == "sam Sharpness-aware minimization climbs along the gradient before it takes the step"
    )
    assert lines[1].startswith("     ")
    assert len(lay_out(columns, rows, None, head=False)) == 1


def test_a_column_that_nobody_fills_is_left_out():
    rows = [["a", "1.00", "", "", ""]]
    assert lay_out(COLUMNS, rows, 80, head=False)[0].plain == "a  1.00"


def test_a_pipe_gets_plain_lines_of_any_length():
    page = io.StringIO()
    show_table(Console(file=page), COLUMNS, ROWS)
    lines = page.getvalue().splitlines()
    assert "\x1b" not in page.getvalue()
    assert len(lines) == 4
    assert lines[3].endswith("91.69 ± 0.17 (+0.68)  3 × 1.3 min")


def test_names_from_files_are_no_markup():
    page = io.StringIO()
    show_table(Console(file=page), [Column("")], [["[bold]x[/bold] [/]"]])
    assert page.getvalue().strip() == "[bold]x[/bold] [/]"


def test_records_as_json_and_as_csv(capsys):
    records = [
        {"name": 'a "b", c', "mean": 1.5, "gap": {"mean": 1.0, "by_seed": {"0": 2}}, "each": [1, 2]},
        {"name": "d", "mean": None, "gap": None, "each": []},
    ]
    Output(json=True).write(records)
    assert json.loads(capsys.readouterr().out) == records
    Output(csv=True).write(records)
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    head = ["name", "mean", "gap.mean", "gap.by_seed.0", "each"]
    assert rows == [head, ['a "b", c', "1.5", "1.0", "2", "[1, 2]"], ["d", "", "", "", "[]"]]
    Output(json=True).write([])
    assert json.loads(capsys.readouterr().out) == []
    with pytest.raises(ValueError, match="--json or --csv"):
        Output(json=True, csv=True)


def test_of_several_processes_one_prints(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for rank, printed in (("1", ""), ("0", "a\n1\n")):
        monkeypatch.setenv("RANK", rank)
        Output(csv=True).write([{"a": 1}])
        assert capsys.readouterr().out == printed
        assert Output(json=True).aside(Console()).quiet == (rank == "1")
