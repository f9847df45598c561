"""Two ranks on the sparse kernels take the steps of one process on the joined batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zosam.kernels import accelerate

from . import ranks


def test_two_ranks_are_one_process_on_the_joined_batch(always: None, forked: Any, tmp_path: Path) -> None:
    files = [tmp_path / str(rank) for rank in (0, 1)]
    words = [[ranks.__file__, str(rank), "2", str(tmp_path / "store"), str(f)] for rank, f in enumerate(files)]
    program = "import runpy\nsys.argv = {!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    workers = [forked(program.format(argv)) for argv in words]
    assert [worker.ends() for worker in workers] == [0, 0], [worker.says() for worker in workers]
    first, second = (torch.load(file) for file in files)
    for way in ranks.WAYS:
        alone = ranks.train(way)
        for name, value in alone.items():
            assert torch.equal(first[way][name], second[way][name]), (way, name)
            torch.testing.assert_close(first[way][name], value, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_the_wrapper_is_refused(masks: Any) -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(TypeError, match=r"accelerate\(model.module"):
        accelerate(nn.DataParallel(model), masks(model, 0.5), torch.randn(2, 3))
