"""Whole runs on several ranks: rank 0 writes, all resume, and a lost worker costs nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.nn import functional as F

from zosam.distributed.ranks import current
from zosam.lab import data, models
from zosam.lab.run import Run, finished, run

from . import even, trials


def complete(out, settings, stop=None):
    """Run it, broken off after `stop` steps and taken up again."""
    what = even.small(**settings)

    def tick(done, of):
        if done == stop:
            raise KeyboardInterrupt

    if stop is not None:
        with pytest.raises(KeyboardInterrupt):
            run(what, out, tick=tick, checkpoint_minutes=0)
    record = run(what, out, log_every=2)
    return str(record.path), record.epochs


def weights(path):
    return {n: t.numpy() for n, t in safetensors.torch.load_file(Path(path) / "model.safetensors").items()}


@pytest.mark.parametrize("settings", [{}, {"optimizer": "sam"}, {"optimizer": "zosam:decide=pair()", "method": "snip"}])
def test_a_run_on_two_ranks_is_that_of_one_process(two, tmp_path, settings):
    settings = {"epochs": 1, "model": "calm", **settings}  # with dropout, each rank has noise of its own
    alone = run(even.small(**settings), tmp_path / "one", log_every=2)
    (path, epochs), (other_path, other_epochs) = two(complete, tmp_path / "two", settings)
    assert path == other_path
    assert epochs == other_epochs
    assert weights(path).keys() == alone.load().state_dict().keys()  # no name is another than alone
    for name, value in weights(alone.path).items():
        np.testing.assert_allclose(weights(path)[name], value, atol=2e-4, err_msg=name)
    for key in ("train_loss", "test_loss"):
        assert epochs[0][key] == pytest.approx(alone.last[key], abs=1e-4)
    for key in ("step", "forward", "backward", "sparsity"):
        assert epochs[0][key] == alone.last[key]
    said, expected = (np.genfromtxt(f"{p}/steps.csv", delimiter=",", names=True) for p in (path, alone.path))
    assert said["step"].tolist() == expected["step"].tolist()  # one of them writes
    np.testing.assert_allclose(said["train_loss"], expected["train_loss"], atol=1e-4)
    record = finished(Path(path))
    model, test = record.load().eval(), data.digits().test
    with torch.no_grad():
        logits = model(test.x)
    assert epochs[-1]["test_accuracy"] == pytest.approx(float((logits.argmax(1) == test.y).float().mean()))
    assert epochs[-1]["test_loss"] == pytest.approx(float(F.cross_entropy(logits, test.y)), rel=1e-4)


@pytest.mark.parametrize("ranks", ["two", *(["four"] if trials.LONG else [])])
def test_a_run_goes_on_to_the_bit_where_it_was_broken_off(ranks, request, tmp_path):
    team = request.getfixturevalue(ranks)
    settings = {"optimizer": "zosam:probe=momentum()"}
    straight, _ = team(complete, tmp_path / "straight", settings)[0]
    resumed, _ = team(complete, tmp_path / "resumed", settings, 13)[0]
    for name, value in weights(straight).items():
        np.testing.assert_array_equal(weights(resumed)[name], value, err_msg=name)


def refused(out):
    messages = []
    for settings, error in (({"batch_size": 97}, ValueError), ({"lr": 1e30, "optimizer": "sgd"}, FloatingPointError)):
        with pytest.raises(error) as caught:
            run(even.small(**settings), out)
        messages.append(str(caught.value))
    return messages


def test_what_cannot_work_is_refused_on_every_rank(two, tmp_path):
    for batch, loss in two(refused, tmp_path):
        assert "batch_size is 97" in batch
        assert "not taken" in loss


def cannot_lead(out):
    (Path(out) / "runs").touch()  # a file where the folder should be
    try:
        run(even.small(), Path(out) / "runs")
    except SystemExit as stop:
        return current().rank, "stopped", stop.code
    except OSError as error:
        return current().rank, "failed", str(error)
    return None


def test_if_rank_0_cannot_write_all_stop(two, tmp_path):
    first, second = two(cannot_lead, tmp_path)
    assert first[:2] == (0, "failed")
    assert second == (1, "stopped", 2)


def other_world(out):
    with pytest.warns(UserWarning, match="1 processes began this training, 2 go on"):
        return complete(out, {})


def test_another_number_of_ranks_goes_on_with_a_warning(two, tmp_path):
    def tick(done, of):
        if done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(even.small(), tmp_path, tick=tick, checkpoint_minutes=0)
    assert all(epochs[-1]["step"] == 20 for _, epochs in two(other_world, tmp_path))


def trained(what, out):
    run(what, out)


TORCHRUN = """
import runpy
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def program():
    sys.argv = {argv!r}
    runpy.run_path(sys.argv[0], run_name="__main__")

one = {{"min_nodes": 1, "max_nodes": 1, "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}}
elastic_launch(LaunchConfig(**one, nproc_per_node=2, max_restarts=1, start_method="fork"), program)()
"""


def test_torchrun_trains_and_a_killed_worker_costs_nothing(two, forked, tmp_path):
    """By torchrun's own agent, from Python, so that its workers need not import everything anew."""
    what = Run(model="digits_net:width=4", epochs=2, batch_size=144, method="rigl:every=4")
    two(trained, what, tmp_path / "straight")
    restarted = forked(TORCHRUN.format(argv=[str(Path(__file__).with_name("restart.py")), str(tmp_path / "killed")]))
    assert restarted.ends() == 0, restarted.says()
    assert (tmp_path / "killed" / "killed").exists()
    left = [(tmp_path / "killed" / f"threads of rank {rank}").read_text() for rank in range(2)]
    assert not any("gloo" in threads for threads in left), left  # one that outlives the run may abort the process
    first, second = (finished(tmp_path / name / what.folder) for name in ("straight", "killed"))
    assert first.epochs[1]["train_loss"] < first.epochs[0]["train_loss"] < 2.4
    for name, value in weights(first.path).items():
        np.testing.assert_array_equal(weights(second.path)[name], value, err_msg=name)
    assert models.build(what.model, 10).load_state_dict(safetensors.torch.load_file(first.path / "model.safetensors"))
