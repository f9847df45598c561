"""Every block of the documentation is run as it is printed, every command is one that the programs take."""

from __future__ import annotations

import contextlib
import functools
import importlib
import linecache
import os
import re
import shlex
import socket
import sys
import types

import pytest
import torch

import zosam

from .pages import PAGES, ROOT, blocks, commands, reader

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
SHELL = {"sh", "bash", "console", "indented"}
LANGUAGES = SHELL | {"python", "toml", "yaml", "json", "text", ""}


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """An empty folder, and the environment of `torchrun --nproc-per-node 1`."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        free = str(port.getsockname()[1])
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": free}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("ZOSAM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def run(page):
    """Run the blocks of a page one after another, in one namespace."""
    names, found = reader(), [b for b in blocks(page) if b.language == "python"]
    for block in found:
        if block.not_run is not None:
            compile(block.code, block.place, "exec")  # at least it is Python
            continue
        linecache.cache[block.place] = (len(block.code), None, block.code.splitlines(keepends=True), block.place)
        try:
            exec(compile(block.code, block.place, "exec"), names)
        except Exception as error:
            line = next((t.tb_lineno for t in _frames(error) if t.tb_frame.f_code.co_filename == block.place), 1)
            text = block.code.splitlines()[line - 1]
            raise AssertionError(f"{block.place}, line {line} of the block, {text!r}: {error!r}") from error


@by_page
def test_the_blocks_run_as_printed(page, alone):
    if not any(b.language == "python" and b.not_run is None for b in blocks(page)):
        pytest.skip("nothing to run here")
    run(page)


def test_what_start_has_pasted_goes_on_after_a_kill_and_ends_in_the_same_bits(alone, monkeypatch):
    page = [b.code for b in blocks(ROOT / "docs" / "start.md") if b.language == "python"]
    last = next(i for i, code in enumerate(page) if "os.path.exists" in code)
    pasted, given, accelerate, replace = "\n".join(page[: last + 1]), [], zosam.accelerate, os.replace

    def measured_once(model, sparse, example, choices=None):
        given.append(choices)
        accelerate(model, sparse, example, choices or chosen)
        chosen.update(zosam.kernels.choices(model))

    def trained():
        exec(compile(pasted, "pasted", "exec"), names := reader())
        return names["model"].state_dict()

    def killed(*where):
        if where[1] == "checkpoint.pt" and torch.load(where[0], weights_only=True)["epochs"] == 4:
            raise KeyboardInterrupt
        replace(*where)

    chosen = {}
    monkeypatch.setattr(zosam, "accelerate", measured_once)
    whole = trained()
    os.remove("checkpoint.pt")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            trained()
    assert torch.load("checkpoint.pt", weights_only=True)["epochs"] == 3
    again = trained()
    assert all(torch.equal(again[name], value) for name, value in whole.items())
    assert given[-1] == chosen


def _frames(error):
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _takes(words: list[str]) -> None:
    """Let the command line read the words, and do nothing."""
    import tyro

    from zosam.lab.cli import COMMANDS
    from zosam.lab.cli.arguments import registry

    name = next(n for n in COMMANDS if words[: n.count(" ") + 1] == n.split())
    module, _, function = COMMANDS[name].partition(":")
    command = getattr(importlib.import_module(f"zosam.lab.{module}"), function)
    idle = functools.wraps(command)(lambda *_, **__: None)
    tyro.cli(idle, prog="zosam", args=words[name.count(" ") + 1 :], registry=registry)


@by_page
def test_the_commands_are_taken(page, capsys, monkeypatch):
    own = types.ModuleType("mine")  # the file mine.py of a reader
    own.net = lambda num_classes: torch.nn.Linear(2, num_classes)
    monkeypatch.setitem(sys.modules, "mine", own)
    targets = re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{block.place}: what is {block.language}?"
        if block.language not in SHELL or block.not_run is not None:
            continue
        for command in commands(block):
            command = re.sub(r"^for \w+ in [^;]*; do (.*?) & done; wait$", r"\1", command)
            words = shlex.split(command.replace(" ...", " "), comments=True)
            if not words:
                continue
            if "zosam" in words and words[0] in {"zosam", "torchrun", "srun"}:
                words = ["3" if w.startswith("$") else re.sub(r"\$\w+", "3", w) for w in words]
                with contextlib.suppress(SystemExit):
                    _takes(words[words.index("zosam") + 1 :])
                    continue
                pytest.fail(f"{block.place}: {command}\n{capsys.readouterr().err}")
            elif words[0] == "make":
                assert set(words[1:]) <= set(targets), f"{block.place}: no target for {command}"
            elif words[0] == "python" and words[1].endswith(".py"):
                assert (ROOT / words[1]).is_file() or words[1] == "train.py", f"{block.place}: there is no {words[1]}"
            else:
                assert words[0] in {"pip", "python", "git", "cd", "docker", "torchrun", "mkdir"}, (
                    f"{block.place}: what is {words[0]}?"
                )


@by_page
def test_commands_within_sentences_exist(page):
    from zosam.lab.cli import COMMANDS

    first = {name.split()[0] for name in COMMANDS}
    for found in re.finditer(r"`zosam ([a-z][\w-]*)", page.read_text()):
        assert found[1] in first, f"{page.name}: there is no zosam {found[1]}"


@by_page
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s#]+)(?:#[\w-]*)?\)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name}: there is no {target}"
    for named in re.findall(r"`((?:src|tests|docs|benchmarks|results|examples)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), f"{page.name}: there is no {named}"


def test_a_block_that_fails_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    text = "```python\nx = 0\n```\n\n<!-- not run: no reason -->\n```python\n2\n```\n\n    zosam x\n"
    page.write_text(text)
    found = [(b.line, b.language, b.not_run) for b in blocks(page)]
    assert found == [(2, "python", None), (7, "python", "no reason"), (10, "indented", None)]
    run(page)
    page.write_text(f"{text}\n```python\n1\n1 / x\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:13, line 2 of the block, '1 / x': ZeroDivisionError"):
        run(page)
    with pytest.raises(AssertionError, match="no zosam x"):
        test_commands_within_sentences_exist(_saying(page, "`zosam x`"))
    with pytest.raises(AssertionError, match=r"no docs/x\.md"):
        test_links_lead_somewhere(_saying(page, "[here](docs/x.md)"))


def _saying(page, text):
    page.write_text(text)
    return page
