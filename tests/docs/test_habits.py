"""What the workflows, the hooks and the templates say is so."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from .pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONSTRAINTS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_workflows_make_what_can_be_made(path):
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {}).get("target", [])
        for step in job["steps"]:
            for target in re.findall(r"^make (\S+)", step.get("run", ""), re.MULTILINE):
                assert set(matrix if target.startswith("$") else [target]) <= set(targets)


def test_the_oldest_and_the_newest_torch_and_python_are_tried():
    tried = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())["jobs"]["test"]["strategy"]["matrix"][
        "include"
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = next(d for d in project["dependencies"] if d.startswith("torch")).removeprefix("torch>=")
    assert any(t["torch"].startswith(oldest + ".") for t in tried)
    assert {t["python"] for t in tried if t["torch"] == CONSTRAINTS["torch"]} == {"3.11", "3.12", "3.13"}
    assert project["requires-python"] == ">=" + min(t["python"] for t in tried)
    named = {name.rpartition(" :: ")[2] for name in project["classifiers"] if "Python :: 3." in name}
    assert named == {t["python"] for t in tried}


def test_hooks_have_the_versions_of_make_lint():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"ruff==([\d.]+)", text)) == {CONSTRAINTS["ruff"]}


def test_every_page_is_in_the_site():
    listed = re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text())
    pages = [str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages + [f"examples/{p.stem}.md" for p in (ROOT / "examples").glob("*.ipynb")])


def test_the_demo_in_the_readme_is_that_of_this_version():
    from zosam.lab.demo import CONTESTANTS
    from zosam.lab.run import Run

    shown = re.findall(r"^ *\S+  runs/(\S+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    made = [Run(optimizer=name).folder for name in CONTESTANTS.values()]
    assert shown == made, "run zosam demo, and paste what it prints"


def test_the_newest_version_of_the_changelog_is_ours():
    import zosam

    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest == zosam.__version__


def test_the_report_says_how_large_its_own_code_is():
    assets = ROOT / "src" / "zosam" / "lab" / "report" / "assets"
    size = sum(file.stat().st_size for file in assets.glob("*.js"))
    assert f"not minified | {size:,} |" in (ROOT / "docs" / "report.md").read_text()
