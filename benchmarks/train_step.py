"""Whole training steps with and without the sparse kernels, as ratios to dense SGD in the same run.

    python benchmarks/train_step.py [resnet32 ...] [--sparsity 0.9 0.95] [--threads 1 2] [--out step.json]

Each number of threads has a process of its own, which never changes it. In every round each contestant takes, in
turns and through the public interface, a step to warm up and one on the clock; fast, which probes in every other step,
two and two. Its figure is the median over rounds of dense SGD's time in the round / its own, for one step; the JSON
holds that of the least times too. "ZO-SAM pair" takes the same step as "ZO-SAM" with a graph for each of its probes, so
that it needs no third forward; "masked-dense" is ZO-SAM on the same sparse model without the kernels; dense SGD
under bf16 autocast joins in where the CPU has bf16. The last column is what the most threads gain over the fewest.
`--clock cpu` counts the CPU time of the process, for one thread on a busy machine; more threads need `--clock wall` and
an idle one. With --out bar charts land beside the JSON.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from chart import has_bf16, machine, step_charts, write
from torch import Tensor, nn
from torch.nn import functional as F

from zosam.kernels import accelerate, doctor, report
from zosam.lab.models import deit_tiny, resnet20, resnet32, resnet32_he, resnet50_cifar, wrn28_10
from zosam.optim import SAM, ZOSAM, Pair
from zosam.sparse import METHODS

Step = Callable[[], object]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {  # network, batch, pixels
    "resnet20": (resnet20, 32, 32),
    "resnet32": (resnet32, 128, 32),
    "resnet32_he": (resnet32_he, 128, 32),
    "resnet50_cifar": (resnet50_cifar, 32, 32),
    "wrn28_10": (wrn28_10, 16, 32),
    "deit_tiny": (lambda: deit_tiny(10, image_size=64, drop_path=0.0), 64, 64),
}
KINDS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda base: SAM(base, rho=0.0),  # at rho = 0 it is its base optimizer
    "SAM": lambda base: SAM(base, rho=0.05),
    "ZO-SAM": lambda base: ZOSAM(base, rho=0.05),
    "ZO-SAM pair": lambda base: ZOSAM(base, rho=0.05, decide=Pair()),
    "ZO-SAM fast": lambda base: ZOSAM.fast(base, rho=0.05),
}
EVERYBODY = ["dense SGD", "dense SGD bf16", "masked-dense ZO-SAM", *KINDS]


def dense(network: str, bf16: bool = False) -> Step:
    """A step of SGD on the dense model in torch's fastest layout."""
    build, batch, pixels = NETWORKS[network]
    model = build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(batch, 3, pixels, pixels).to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,))
    optimizer = sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Fused, for all: torch's default update runs through the weights several times, mostly on one thread."""
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=True)


def sparse(network: str, sparsity: float, kind: str, fast: bool, budget: str = "uniform") -> tuple[Step, str]:
    """A step of one optimizer on a sparse model, with or without the kernels; and how its regions run."""
    build, batch, pixels = NETWORKS[network]
    model = build()
    optimizer = KINDS[kind](sgd(model))
    dense = first_layer(model) if budget == "uniform" else ()
    masks = METHODS["random"](model, optimizer, sparsity, budget=budget, dense=dense)
    x, y = torch.randn(batch, 3, pixels, pixels), torch.randint(0, 10, (batch,))
    if fast:
        accelerate(model, masks, x)
    else:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def closure(keep: Any = slice(None)) -> Tensor:
        return F.cross_entropy(model(x[keep]), y[keep])

    return lambda: optimizer.step(closure), report(model)


def first_layer(model: nn.Module) -> list[str]:
    """The stem stays dense, as in the literature on uniform sparsity; the patches of a transformer do not."""
    name, conv = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d))
    return [f"{name}.weight"] if conv.kernel_size == (3, 3) else []


def contestants(network: str, level: float, bf16: bool, budget: str) -> tuple[dict[str, Step], str]:
    """A step of each, for as many threads as are set now, and how the regions run."""
    steps: dict[str, Step] = {"dense SGD": dense(network)}
    if bf16:
        steps["dense SGD bf16"] = dense(network, bf16=True)
    steps["masked-dense ZO-SAM"] = sparse(network, level, "ZO-SAM", fast=False, budget=budget)[0]
    way = ""
    for kind in KINDS:
        steps[kind], way = sparse(network, level, kind, fast=True, budget=budget)
    return steps, way


def serve(pipe: Connection, network: str, level: float, threads: int, cpu: bool, bf16: bool, budget: str) -> None:
    """In a process of its own: take a step of whoever is named, and tell how long it took."""
    clock = time.process_time if cpu else time.perf_counter
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    steps, way = contestants(network, level, bf16, budget)
    pipe.send((list(steps), way))
    for who in iter(pipe.recv, None):
        period = 2 if who == "ZO-SAM fast" else 1
        for turn in range(2 * period):
            if turn == period:  # warm now
                began = clock()
            steps[who]()
        pipe.send((clock() - began) / period)


def compare(
    network: str, level: float, threads: list[int], rounds: int, only: list[str], cpu: bool, bf16: bool, budget: str
) -> dict[str, Any]:
    """Of every contestant at one sparsity: ratio to dense SGD on as many threads, milliseconds, gain by threads."""
    context = get_context("spawn")
    pipes: dict[int, Connection] = {}
    for n in threads:
        pipes[n], other = context.Pipe()
        context.Process(target=serve, args=(other, network, level, n, cpu, bf16, budget), daemon=True).start()
        other.close()  # so that the end of the process ends our waiting for it
    told = {n: pipe.recv() for n, pipe in pipes.items()}
    names = [who for who in told[threads[0]][0] if not only or who in only]
    took: dict[tuple[str, int], list[float]] = {(who, n): [] for who in names for n in threads}
    for _ in range(rounds):
        for who, n in took:
            pipes[n].send(who)
            took[who, n].append(pipes[n].recv())
    for pipe in pipes.values():
        pipe.send(None)

    def over(a: list[float], b: list[float]) -> float:
        return median(x / y for x, y in zip(a, b, strict=True))

    base, few, most = names[0], threads[0], threads[-1]
    return {
        "ratio": {n: {who: over(took[base, n], took[who, n]) for who in names} for n in threads},
        "least": {n: {who: min(took[base, n]) / min(took[who, n]) for who in names} for n in threads},
        "milliseconds": {n: {who: median(took[who, n]) * 1e3 for who in names} for n in threads},
        "gain by threads": {who: over(took[who, few], took[who, most]) for who in names} if most > few else {},
        "gain, least": {who: min(took[who, few]) / min(took[who, most]) for who in names} if most > few else {},
        "way": {n: way for n, (_, way) in told.items()},
    }


def show(head: str, found: dict[str, Any], threads: list[int]) -> None:
    """One line per contestant."""
    names = list(found["ratio"][threads[0]])
    columns = [f"{n} thread{'s' * (n > 1)}" for n in threads]
    gain = [f"{threads[-1]} threads / {threads[0]}"] if len(threads) > 1 else []
    print(f"\n{head}: {names[0]} time / time\n{'':22}" + "".join(f"{c:>22}" for c in [*columns, *gain]), flush=True)
    for who in names:
        cells = [f"{found['ratio'][n][who]:.2f} {found['milliseconds'][n][who]:9.1f} ms" for n in threads]
        cells += [f"{found['gain by threads'][who]:.2f}"] if gain else []
        print(f"  {who:20}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["resnet32"], choices=[*NETWORKS, []])
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.95, 0.98])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--budget", choices=["uniform", "erk"], default="uniform", help="what each layer keeps")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[], choices=EVERYBODY, help="ratios are to the first of these")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--bf16", action="store_true", default=has_bf16(), help="dense bf16 where it is emulated too")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.clock == "cpu" and arguments.threads != [1]:
        parser.error("--clock cpu counts all threads together: use it with --threads 1")
    cpu = arguments.clock == "cpu"
    print("\n".join(doctor()))
    settings = {name: getattr(arguments, name) for name in ("threads", "clock", "rounds", "budget")}
    record = machine() | settings | {"networks": {}}
    for network in arguments.networks:
        _, batch, pixels = NETWORKS[network]
        levels: dict[str, Any] = {}
        for level in arguments.sparsity:
            how = arguments.threads, arguments.rounds, arguments.only, cpu, arguments.bf16, arguments.budget
            found = compare(network, level, *how)
            show(f"{network}, batch {batch}, {level:.0%} sparse", found, arguments.threads)
            levels[f"{level:.0%}"] = found
        record["networks"][network] = {"batch": batch, "pixels": pixels, "sparsity": levels}
        if arguments.out is not None:  # after every network, for those who do not wait for all
            write(arguments.out, record, step_charts(record))


if __name__ == "__main__":
    main()
