"""Shared by all tests: one torch thread per worker, and a small training that any optimizer and method can run."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.names import fitting, settings_of
from zosam.optim import OPTIMIZERS
from zosam.sparse import METHODS, Sparsity

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under a shell's `&`: tests of Ctrl-C, and their processes,
    signal.signal(signal.SIGINT, signal.default_int_handler)  # take it as in a terminal

# Children of this server start at once: it has imported everything, and used nothing of it.
server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(
    ["pytest", "sklearn.datasets", "torch", "torch._dynamo", "torch.distributed.fsdp", "torch.testing",
     "zosam.lab.cli.arguments", "zosam.lab.cli.runs"]
)  # fmt: skip

# What shares something dear, such as a team of ranks, a browser, a training or that server: one worker runs all of it.
TOGETHER = (
    ("tests/distributed/",), ("tests/lab/report/browser/",), ("tests/lab/report/test_static.py",),
    ("tests/lab/fuzz/test_own_files.py",), ("tests/lab/paper/test_measured.py",), ("tests/lab/test_scoring.py",),
    ("tests/lab/paper/test_paper_tier.py",),
    ("tests/device/", "tests/lab/faults/", "tests/lab/data/test_corrupt_files.py", "tests/lab/fuzz/test_bombs.py",
     "tests/lab/test_run.py::test_nothing_is_loaded", "tests/examples/test_examples.py", "tests/kernels/test_ranks.py",
     "tests/kernels/test_accelerate.py::test_a_forked_child", "tests/test_rooms.py"),
)  # fmt: skip
LONG = bool(os.environ.get("ZOSAM_LONG"))
SCALES = ("filter", "element")
TYPICAL = {"zosam", "rigl"}  # an optimizer and a method that go with all others
BASES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
}


class Counter(nn.Module):
    """A custom layer with state of its own: one buffer edited in place, one replaced at every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edited", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.edited += 1
            self.replaced = self.replaced + 1
        return x


class Noise(nn.Module):
    """Multiplicative noise from the user's random stream; remembers what it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rand(())
        self.drawn.append(scale.item())
        return x * (0.5 + scale)


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), Noise(),
        nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8, momentum=None), nn.ReLU(), Counter(),
        nn.Dropout(0.2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip


@dataclass
class Trial:
    """A small training: build it with an optimizer and a sparse method by name, then take steps."""

    optimizer_name: str = "sgd"
    method: str | None = None
    base: str = "sgd"
    rho: float = 0.1
    sparsity: float = 0.7
    settings: dict[str, Any] = field(default_factory=dict)
    method_settings: dict[str, Any] = field(default_factory=dict)
    torch_form: bool = False
    sparse_first: bool = False  # the sparse method is made on the base, before that is wrapped
    starts_from: dict[str, Tensor] | None = None  # a model's state, loaded before optimizer and method are made
    bare: bool = False  # the base optimizer in a plain torch loop, nothing of ours around it

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        data = torch.Generator().manual_seed(1)
        self.x = torch.randn(12, 1, 6, 6, generator=data)
        self.y = torch.randint(0, 5, (12,), generator=data)
        self.model = small_net()
        if self.starts_from is not None:
            self.model.load_state_dict(self.starts_from)
        base = BASES[self.base](self.model.parameters())
        self.optimizer: Any = base
        self.sparse: Sparsity | None = None
        if self.sparse_first:
            self._make_sparse()
        if not self.bare:
            name, _, scale = self.optimizer_name.partition("/")
            cls = OPTIMIZERS[name]
            settings = {"rho": self.rho, **({"scale": scale} if scale else {}), **self.settings}
            self.optimizer = cls(base, **fitting(cls, **settings))
        if not self.sparse_first:
            self._make_sparse()
        torch.manual_seed(7)
        self.stream = torch.get_rng_state()

    def _make_sparse(self) -> None:
        if self.method is None:
            return
        cls = METHODS[self.method]
        wanted = {"every": 2, "loss": self.mean_loss, "steps": 100} | self.method_settings
        known = settings_of(cls)
        self.sparse = cls(self.model, self.optimizer, self.sparsity, **{k: v for k, v in wanted.items() if k in known})

    def mean_loss(self) -> Tensor:
        return F.cross_entropy(self.model(self.x), self.y)

    def loss(self, keep: Any = slice(None)) -> Tensor:
        reduction = "none" if getattr(self.optimizer, "per_sample", False) else "mean"
        return F.cross_entropy(self.model(self.x[keep]), self.y[keep], reduction=reduction)

    def closure(self, keep: Any = slice(None)) -> Tensor:
        if not self.torch_form:
            return self.loss(keep)
        self.optimizer.zero_grad()
        loss = self.loss(keep)
        loss.mean().backward()
        return loss

    def step(self, n: int = 1) -> None:
        torch.set_rng_state(self.stream)  # trials side by side do not share a random stream
        for _ in range(n):
            if self.bare:
                self.optimizer.zero_grad()
                self.mean_loss().backward()
                self.optimizer.step()
            else:
                self.optimizer.step(self.closure)
        self.stream = torch.get_rng_state()

    def snapshot(self) -> list[Tensor]:
        """Everything of the model, bit for bit."""
        return [t.detach().clone() for t in self.model.state_dict().values()]

    def weights(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture(name="same")
def _same() -> Callable[[list[Tensor], list[Tensor]], bool]:
    return same


@pytest.fixture
def trial() -> type[Trial]:
    return Trial


CHILD = """
import os, sys
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(log, 1), os.dup2(log, 2)
sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
import torch
torch.set_num_threads(1)
"""


class Forked:
    """A Python program in a process of its own, for tests that do not need one that has imported nothing."""

    def __init__(self, program: str, log: Path) -> None:
        self.log = log
        code = CHILD.format(log=str(log)) + program
        self.process = server.Process(target=exec, args=(code, {"__name__": "__main__"}))
        self.process.start()

    def ends(self, seconds: float = 300) -> int:
        self.process.join(seconds)
        assert self.process.exitcode is not None, "it hangs"
        return self.process.exitcode

    def says(self) -> str:
        return self.log.read_text()


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Forked]:
    """Start a program: `forked("print(3)").ends()`."""
    folder, logs = tmp_path_factory.mktemp("forked"), itertools.count()
    return lambda program: Forked(program, folder / str(next(logs)))


@pytest.fixture(autouse=True)
def nothing_stays_compiled() -> Iterator[None]:
    """Where something was compiled, optimizers search all that is alive for their modules: slow in a long process."""
    yield
    if getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", None):
        torch._dynamo.reset()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`optimizer_name`, `method` (with none) and `sparse_method` run over everything that the package lists.

    Of all pairs, those with the typical optimizer or method are tried every time, the others by `make test-long`.
    `sam/filter` is SAM in the metric of filters; every time each optimizer is tried in one metric, in turn.
    """
    scales = [name for name, cls in OPTIMIZERS.items() if "scale" in settings_of(cls)]
    scaled = [f"{name}/{s}" for i, name in enumerate(scales) for s in (SCALES if LONG else SCALES[i % 2 :][:1])]
    asked = set(metafunc.fixturenames)
    which = next((name for name in ("method", "sparse_method") if name in asked), None)
    methods = [*([None] if which == "method" else []), *sorted(METHODS)]
    if "optimizer_name" in asked and which is not None:
        pairs = [(o, m) for o in sorted(OPTIMIZERS) for m in methods]
        pairs = [(o, m) for o, m in pairs if LONG or o in TYPICAL or m in TYPICAL]
        pairs += [(o, m) for o in scaled for m in methods if m in ({None, "rigl"} if LONG else {"rigl"})]
        metafunc.parametrize(("optimizer_name", which), pairs)
    elif "optimizer_name" in asked:
        metafunc.parametrize("optimizer_name", [*sorted(OPTIMIZERS), *scaled])
    elif which is not None:
        metafunc.parametrize(which, methods)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more for every two cores: a third of the time tests wait, for ranks, browsers and children."""
    return 3 * (os.cpu_count() or 2) // 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The largest of `TOGETHER` goes first, all other tests one by one to whoever is free."""
    from xdist.scheduler import LoadScopeScheduling

    class Shared(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((places[0] for places in TOGETHER if nodeid.startswith(places)), nodeid)

    return Shared(config, log)
