"""The kernels as other compilers and another CPU run them: every call of small networks, recorded and replayed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zosam.kernels import accelerate, build, choose
from zosam.lab.models import digits_net
from zosam.lab.models.deit import Layer
from zosam.lab.models.resnet_cifar import CifarResNet

from .conftest import FixedMasks
from .recorder import CALLS, Call, Recorder

CROSS = ("aarch64-linux-gnu-gcc", "qemu-aarch64")
MACHINES: dict[str, tuple[list[str], list[str]]] = {  # compiler, and what runs the result
    "clang": (["clang"], []),
    "aarch64": ([CROSS[0], "-static"], [CROSS[1]]),
}


class Skips(nn.Module):
    """Windows, channels side by side, groups, dilation, dropout and the other activations."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2)
        self.c, self.drop = nn.Conv2d(8, 3, 2), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.silu(self.a(x))
        y = self.drop(nn.functional.hardswish(self.b(nn.functional.max_pool2d(x, 2))))
        y = torch.cat([y, nn.functional.relu6(nn.functional.avg_pool2d(x, 2))], 1)
        return self.c(y)


def networks() -> Iterator[tuple[nn.Module, Tensor]]:
    """Strides 1 and 2, batch norm, residuals with and without weights, ReLU, GELU, layer norm, linear, pooling."""
    torch.manual_seed(0)
    yield digits_net(width=8), torch.randn(11, 1, 8, 8)
    yield CifarResNet(8, 4, 3, zero_pad=True), torch.randn(6, 3, 9, 7)
    yield nn.Sequential(Layer(12, 2, 0.0), Layer(12, 2, 0.0)), torch.randn(3, 7, 12)
    yield Skips(), torch.randn(5, 2, 8, 6)
    yield nn.Sequential(nn.Conv2d(3, 6, 5, 2, 1), nn.GELU(), nn.Conv2d(6, 3, 1, 2)), torch.randn(9, 3, 9, 9)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """What training steps and passes without a graph call, on the portable build."""
    if build.compiler() is None:
        pytest.skip("no C compiler")
    path = build.compile_library("portable", tmp_path_factory.mktemp("portable"))
    with pytest.MonkeyPatch.context() as patch:
        lib: Any = build.Library(path, "given")
        lib.c = Recorder(lib.c)
        patch.setattr(build, "load", lambda: lib)
        patch.setattr(choose, "remember", lambda key, measure: 2.0)
        before = torch.get_num_threads()
        try:
            for threads, (model, x) in enumerate(networks(), 1):
                torch.set_num_threads(threads)
                accelerate(model, FixedMasks(model, 0.7), x)
                model(x.requires_grad_()).square().sum().backward()
                with torch.no_grad():
                    model(x)
                    model.eval()(x[:1])
        finally:
            torch.set_num_threads(before)
            recorded: list[Call] = lib.c.close()
    return recorded


@pytest.mark.parametrize("machine", MACHINES)
def test_the_same_results(request: pytest.FixtureRequest, machine: str, tmp_path: Path) -> None:
    compiler, runner = MACHINES[machine]
    if runner and "ZOSAM_LONG" not in os.environ:
        pytest.skip("a minute under emulation: ZOSAM_LONG=1")
    for tool in (compiler[0], *runner):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    calls: list[Call] = request.getfixturevalue("calls")  # recorded only where it is replayed
    program = tmp_path / "replay"
    source = [f'-DSOURCE="{build.SOURCE}"', str(Path(__file__).with_name("replay.c"))]
    subprocess.run([*compiler, *build.FLAGS, "-pthread", *source, "-o", str(program), "-lm"], check=True)
    given = b"".join(call.packed() for call in calls)
    replayed = subprocess.run([*runner, str(program)], input=given, capture_output=True, check=True).stdout
    assert {call.number for call in calls} == set(range(len(CALLS)))
    assert len(replayed) == sum(len(call.after) for call in calls)
    at = 0
    for number, call in enumerate(calls):
        image, at = replayed[at : at + len(call.after)], at + len(call.after)
        difference = call.difference(image)  # one rounds every product, the other has fused ones: 2.6e-6 in a long sum
        assert difference < 4e-6, f"call {number}, of kind {call.number}"
