"""What mkdocs must be told about notebooks: each is run, and becomes a page with what it prints and draws."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

EXAMPLES = Path(__file__).parent.parent / "examples"


def on_files(files: Files, config: Any) -> Files:
    """A page for every notebook, and its pictures beside it."""
    for notebook in sorted(EXAMPLES.glob("*.ipynb")):
        page, pictures = render(notebook)
        files.append(File.generated(config, f"examples/{notebook.stem}.md", content=page))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"examples/{name}", content=picture))
    return files


def render(notebook: Path) -> tuple[str, dict[str, str]]:
    """The notebook as Markdown, and its pictures as SVG by their names."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = notebook.stem  # the same drawing is the same file
    import matplotlib.pyplot as plt

    names: dict[str, Any] = {"__name__": "__main__"}
    page: list[str] = []
    pictures: dict[str, str] = {}
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # what it writes is not ours to keep
        try:
            for cell in json.loads(notebook.read_text())["cells"]:
                source = "".join(cell["source"])
                if cell["cell_type"] == "markdown":
                    page.append(source)
                    continue
                page.append(f"```python\n{source}\n```")
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(source, f"{notebook.name}, {cell['id']}", "exec"), names)
                if printed.getvalue():
                    page.append(f"```text\n{printed.getvalue().rstrip()}\n```")
                for number in plt.get_fignums():
                    name, drawn = f"{notebook.stem}-{len(pictures) + 1}.svg", io.StringIO()
                    plt.figure(number).savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None})
                    plt.close(number)
                    pictures[name] = drawn.getvalue()
                    page.append(f"![]({name})")
        finally:
            os.chdir(home)
            matplotlib.rcdefaults()
    where = f"This page is `examples/{notebook.name}`, run when the site was built."
    return "\n\n".join([page[0], where, *page[1:]]) + "\n", pictures
