"""The notebooks, cell by cell, as Jupyter would run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_cell_runs(path, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    drawn = 0
    try:
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] != "code":
                continue
            place = f"{path.name}, {cell['id']}"
            exec(compile("".join(cell["source"]), place, "exec"), names)
            for number in plt.get_fignums():
                plt.figure(number).canvas.draw()  # a picture that cannot be drawn is found here
                plt.close(number)
                drawn += 1
    finally:
        plt.close("all")
        matplotlib.rcdefaults()
    assert drawn >= 4  # they are made to be looked at


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_they_are_committed_without_outputs(path):
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert path.name in (path.parent / "README.md").read_text()
