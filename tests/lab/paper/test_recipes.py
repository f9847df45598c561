"""Every tier makes valid runs of every table and figure, with equal settings on both sides of each comparison."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch

from zosam.lab import models
from zosam.lab.assemble import build_optimizer
from zosam.lab.measure.budget import equal_epochs
from zosam.lab.paper.figure import FIGURES, load_figure
from zosam.lab.paper.recipes import TIERS, label, tier
from zosam.lab.paper.source import read
from zosam.lab.paper.table import MEASURES, NAMES
from zosam.lab.paper.table import load as load_table
from zosam.lab.run import Run, run

load = cache(load_table)  # hundreds of runs are checked each time
NOT_THERE = {"medium": {"table2", "table6"}}  # tables none of whose networks a tier has
KINDS = {"variance", "surface", "convergence", "features", "corruptions", "masks", "throughput", "budget"}


def runs(name):
    """All runs of a tier."""
    cells = [c.run for table in NAMES for c in load(table, name).cells if c.run is not None]
    return {*cells, *(r for figure in FIGURES for r in load_figure(figure, name).runs.values())}


@pytest.mark.parametrize("name", TIERS)
def test_every_run_can_be_built(name):
    found = runs(name)
    assert len(found) > (100 if name == "medium" else 200)
    assert len({r.key for r in found}) == len(found)
    assert {r.seed for r in found} == {0}
    for model in {r.model for r in found}:
        with torch.device("meta"):
            models.build(model)
    for one in {r.optimizer: r for r in found}.values():
        assert build_optimizer(one, torch.nn.Linear(2, 2), 100).passes_per_step()["backward"] >= 1


def test_what_a_tier_cannot_do_is_not_run():
    left_out = {
        name: {c.measure for t in NAMES for c in load(t, name).cells if c.run is None and "1e-4" not in c.row}
        for name in TIERS
    }
    without = {"tiny": {"corrupted_accuracy", "robustness_gap"}, "small": set(), "paper": set()}
    assert left_out == without | {"medium": {"test_accuracy", "images_per_second"}}
    assert load_figure("corruptions", "tiny").runs == {}
    assert tier("tiny").run("resnet1001", "cifar10", "rigl", "sgd", 0.9) is None
    assert tier("tiny").run("resnet32", "mars", "rigl", "sgd", 0.9) is None


@pytest.mark.parametrize("name", TIERS)
@pytest.mark.parametrize("table", NAMES)
def test_both_sides_of_a_comparison_differ_in_the_optimizer_only(name, table):
    loaded = load(table, name)
    compared = 0
    for cell in loaded.cells:
        other = loaded.versus(cell)
        assert cell.measure in MEASURES
        if other is not None and cell.run is not None:
            assert other.measure == cell.measure
            assert other.run.optimizer.name == "sgd"
            assert cell.run.optimizer.name != "sgd"
            assert dataclasses.replace(cell.run, optimizer="sgd", rho=other.run.rho) == other.run
            compared += 1
    assert (compared >= 10) != (table in NOT_THERE.get(name, ()))


@pytest.mark.parametrize("name", TIERS)
def test_cells_shared_by_tables_and_figures_are_one_run(name):
    one, three, four, five = (load(f"table{n}", name) for n in (1, 3, 4, 5))
    zosam = one.cell("MEST + ZO-SAM", "CIFAR-10 90 %").run
    assert zosam.key == four.cell("ZO-SAM", "ResNet-32 CIFAR-10").run.key
    assert zosam.key == three.cell("ZO-SAM", "90 %").run.key
    assert zosam.key == load_figure("convergence-90", name).runs["ZO-SAM"].key
    assert zosam.key == load_figure("throughput", name).runs["ZO-SAM"].key
    assert one.cell("MEST", "CIFAR-100 90 %").run.key == four.cell("SGD 90 %", "ResNet-32 CIFAR-100").run.key
    assert one.cell("Dense", "CIFAR-10 90 %").run.key == four.cell("SGD (dense)", "ResNet-32 CIFAR-10").run.key
    assert one.cell("SNIP", "CIFAR-10 90 %").run.key == five.cell("SNIP", "CIFAR-10 (%)").run.key
    assert one.cell("SNIP + MSAM", "CIFAR-10 90 %").run.key == five.cell("SNIP + MSAM", "CIFAR-10 (%)").run.key


def test_borrowed_numbers_are_those_of_the_same_run():
    for name in NAMES:
        for row in read(name)["row"]:
            if "printed_in" in row:
                there = {c.run.key: c.printed for c in load(row["printed_in"], "paper").cells if c.printed}
                here = [c for c in load(name, "paper").cells if c.row == row["name"] and c.printed]
                assert here
                assert all(there[c.run.key] == c.printed for c in here)


def test_the_recipes_of_the_paper():
    """Written out, so that a slip of the merging shows."""
    assert load("table1", "paper").cell("MEST + ZO-SAM", "CIFAR-100 95 %").run == Run(
        model="resnet32", data="cifar100", method="mest:every=3910", sparsity=0.95, optimizer="zosam", rho=0.05,
        epochs=160, batch_size=64, lr=0.1, momentum=0.9, weight_decay=5e-4, schedule="cosine:minimum=4e-8",
    )  # fmt: skip
    assert load("table4", "paper").cell("MSAM", "WRN-28-10 CIFAR-10").run == Run(
        model="wrn28_10", data="cifar10:reflect=true", method="mest:every=1955", sparsity=0.9, optimizer="msam",
        rho=3.0, epochs=200, batch_size=128, lr=0.1, nesterov=True, weight_decay=5e-4,
        schedule="steps:at=(60,120,160),factor=0.2",
    )  # fmt: skip
    rigl = load("table6", "paper").cell("RigL + ZO-SAM", "CIFAR-10 95 %").run
    assert rigl == Run(
        model="resnet50_cifar", data="cifar10:validation=5000,reflect=true", method="rigl:every=1000,drop_fraction=0.5",
        sparsity=0.95, optimizer="zosam", rho=0.05, epochs=160, batch_size=128, lr=0.1, nesterov=True,
        weight_decay=5e-4, schedule="steps:at=(80,120)",
    ) != load("table6", "paper").cell("RigL + ZO-SAM", "CIFAR-100 95 %").run  # fmt: skip
    assert str(load("table6", "paper").cell("RigL", "CIFAR-100 95 %").run.data) == "cifar100"
    deit = Run(
        model="deit_tiny", data="imagenet", method="svite:every=20000", sparsity=0.5, optimizer="zosam", rho=0.05,
        base="adamw", epochs=600, batch_size=512, lr=5e-4, weight_decay=0.05, weight_decay_on="weights",
        schedule="cosine:warmup=5,warmup_lr=1e-6,minimum=1e-5,per_epoch=true", label_smoothing=0.1, ema=0.99996,
        precision="fp16",
    )  # fmt: skip
    assert load("table2", "paper").cell("SViTE + ZO-SAM", "DeiT-Tiny 50 %").run == deit
    dense = dataclasses.replace(deit, epochs=300, method="dense", optimizer="sgd")
    assert load("table2", "paper").cell("Dense", "DeiT-Tiny 50 %").run == dense
    assert str(load("table1", "paper").cell("LT", "CIFAR-10 90 %").run.method) == "lth"


def test_the_weight_decay_of_published_baselines_has_an_arm():
    one, four = load("table1", "paper"), load("table4", "paper")
    for row in ("SNIP", "SNIP + ZO-SAM", "MEST", "MEST + ZO-SAM"):
        arm, usual = (one.cell(name, "CIFAR-10 90 %") for name in (f"{row}, weight decay 1e-4", row))
        assert arm.run == dataclasses.replace(usual.run, weight_decay=1e-4)
        assert arm.versus == (None if usual.versus is None else f"{usual.versus}, weight decay 1e-4")
        assert arm.control
        assert not arm.printed
    arms = [c for c in four.cells if "1e-4" in c.row]
    assert {(c.column.split()[0], c.run is None) for c in arms} == {("ResNet-32", False), ("WRN-28-10", True)}
    for other in ("table2", "table6"):
        assert not any("1e-4" in row for row in load(other, "paper").rows)
    assert not any("1e-4" in row for row in load("table1", "small").rows)


@pytest.mark.parametrize("name", TIERS)
def test_at_an_equal_budget_nobody_gets_more_than_sam(name):
    figure = load_figure("equal-budget", name)
    assert set(figure.runs) >= {"SGD", "SAM", "ZO-SAM", "ZO-SAM, fast", "S²-SAM"}
    passes = {n: build_optimizer(r, torch.nn.Linear(2, 2), 100).passes_per_step() for n, r in figure.runs.items()}
    for series, one in figure.runs.items():
        assert one.epochs == equal_epochs(passes[series], figure.runs["SAM"].epochs, passes["SAM"]), series


@pytest.mark.parametrize("name", TIERS)
def test_figures(name):
    figures = {f: load_figure(f, name) for f in FIGURES}
    assert {f.measure for f in figures.values()} == KINDS
    assert all(f.title and f.name == n and f.tier == name for n, f in figures.items())
    assert {r.diagnostics for r in figures["variance"].runs.values()} == {True}
    assert {r.diagnostics for r in figures["masks"].runs.values()} == {True}
    assert [r.sparsity for r in figures["surface-sparsity"].runs.values()] == [0.0, 0.9, 0.95]
    assert figures["surface-zosam"].settings["points"] % 2 == 1
    assert len(figures["features"].settings["layers"]) == 3
    assert figures["throughput"].settings["reference"] in figures["throughput"].runs


def test_settings_of_a_figure_follow_the_tier():
    assert load_figure("features", "paper").settings["layers"] == [3, 17, 31]
    assert load_figure("features", "small").settings == {"layers": [3, 11, 19], "classes": {"airplane": 0, "bird": 2}}


def test_a_tier_says_what_it_can_say():
    assert [tier(name).says for name in TIERS] == ["direction", "direction", "direction", "value"]
    assert all(0 < tier(name).goal < 1 and tier(name).note for name in TIERS)
    with pytest.raises(ValueError, match="did you mean 'tiny'"):
        tier("tinny")
    with pytest.raises(ValueError, match="did you mean 'zosam'"):
        label("zosma")


def test_a_tiny_cell_trains(tmp_path):
    cell = load("table1", "tiny").cell("MEST + ZO-SAM", "CIFAR-10 90 %")
    record = run(dataclasses.replace(cell.run, epochs=1, batch_size=256), tmp_path)
    assert record.last["test_accuracy"] > 0.05
