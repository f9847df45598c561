"""What mkdocs must be told: what lies outside of docs/, and that no page asks another host for anything."""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
ASKS = re.compile(
    r"""<(?:script|link|img|iframe|source|video|audio)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'>\s]*"""
)


class Made(NamedTuple):
    """A report of committed results: its file in the site, and what it is made from."""

    name: str
    lines: tuple[Path, ...]
    figures: Path


REPORTS = {
    "results.md": Made("evidence", tuple(sorted(RESULTS.glob("evidence*.jsonl"))), RESULTS / "figures"),
    "report.md": Made("digits", (RESULTS / "digits_example" / "runs.jsonl",), RESULTS / "digits_example" / "figures"),
}
CSS = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//[^"')\s]*""")


def on_files(files: Files, config: Any) -> Files:
    """Pictures of results/ are part of the site."""
    for picture in sorted((ROOT / "results").rglob("*.svg")):
        place = str(picture.relative_to(ROOT))
        files.append(File.generated(config, place, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that are right in the repository lead to the same things in the site."""
    markdown = markdown.replace("](../results/", "](results/").replace("](../CONTRIBUTING.md)", "](howto/add.md)")
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.ipynb\)", r"](examples/\1.md)", markdown)
    markdown = re.sub(r"!\[[^\]]*\]\((?:\.\./)?(assets/[\w-]+\.svg)\)", lambda found: _inline(found[1]), markdown)
    markdown = re.sub(
        r"^<!-- not run: needs (\w+), so make test-ecosystem runs it -->$",
        r'<p class="not-run">Needs \1; <code>make test-ecosystem</code> runs it.</p>\n', markdown, flags=re.M,
    )  # fmt: skip
    markdown = re.sub(
        r"^<!-- not run: (.*) -->$", r'<p class="not-run">Not run by the tests: \1.</p>\n', markdown, flags=re.M
    )
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", _commands())
    if "<!-- examples -->" in markdown:
        markdown = markdown.replace("<!-- examples -->", _examples())
    if "<!-- measured -->" in markdown:
        markdown = markdown.replace("<!-- measured -->", _measured(REPORTS["results.md"]))
    if page.file.src_uri in REPORTS:
        markdown = markdown.replace("<!-- report -->", _cover(REPORTS[page.file.src_uri]))
    return markdown


@cache
def _report(made: Made) -> Any:
    """What the report of committed results says."""
    from zosam.lab.paper.contents import contents
    from zosam.lab.paper.results_store import Book

    return contents(Book.open(ROOT / "nowhere", made.lines), made.figures)


def _cover(made: Made) -> str:
    """The first figure of a report, what it says and what it was measured on, as a link to all of it."""
    report = _report(made)
    told = f"{report.lead[1]} Measured on {report.facts['processor']}, torch {report.facts['torch']}."
    return (
        f'<figure class="cover" markdown="0"><a href="{made.name}.html"><img src="{made.name}.svg" '
        f'alt="{report.cover["title"]}"></a><figcaption>{html.escape(told)} '
        f'<a href="{made.name}.html">Open the report</a></figcaption></figure>'
    )


def _measured(made: Made) -> str:
    """Of the setting that most arms were trained in: each optimizer at its best, against SGD, and what it cost."""
    from zosam.lab.report.finding import duration

    report = _report(made)
    block = report.comparisons[0]
    rows = [row for row in block["rows"] if row["best"]]
    top = max(rows, key=lambda row: float(row["ours"].split()[0]))
    table = [f"| | accuracy, % | against SGD | passes | {block['time']} |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: -float(row["ours"].split()[0])):
        gap = row["gap"]["text"] if row["gap"] else "–"
        name = f"**{row['name']}**" if row is top else row["name"]
        table.append(f"| {name} | {row['ours']} | {gap} | {row['passes']:.2f} × | {duration(row['seconds'])} |")
    return "\n".join([*table, "", f"{report.lead[1]} Measured on {block['on']}."])


def _examples() -> str:
    """Every program of examples/, in the order of its table there."""
    names = re.findall(r"^\| \[(\w+\.py)\]", (ROOT / "examples" / "README.md").read_text(), re.M)
    return "\n\n".join(f"## {n}\n\n```python\n{(ROOT / 'examples' / n).read_text().strip()}\n```" for n in names)


def _commands() -> str:
    """What every command says of itself."""
    from zosam.lab import cli

    os.environ["COLUMNS"] = "84"
    parts = []
    for name in cli.COMMANDS:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            cli.main([*name.split(), "--help"])
        parts.append(f"## zosam {name}\n\n```text\n{said.getvalue().strip()}\n```")
    return "\n\n".join(parts)


def _inline(drawing: str) -> str:
    """A drawing as part of the page, so that its ink is that of the text."""
    text = re.sub(r"<style>.*?</style>\n", "", (ROOT / "docs" / drawing).read_text())
    return f'<div class="drawn {Path(drawing).stem}">{text.strip()}</div>'


def on_post_build(config: Any) -> None:
    """Reports are made of the committed results; and nothing that a browser loads comes from another host."""
    from zosam.lab.report.page import write
    from zosam.lab.report.still import draw

    site = Path(config.site_dir)
    for made in REPORTS.values():
        write(site / f"{made.name}.html", _report(made))
        draw(_report(made).cover, site / f"{made.name}.svg")
    found = []
    for file in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        asks = ASKS if file.suffix == ".html" else CSS
        found += [f"{file.relative_to(site)}: {m[0][:120]}" for m in asks.finditer(file.read_text())]
    if found:
        raise PluginError("pages that ask other hosts:\n" + "\n".join(found))
