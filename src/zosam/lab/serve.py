"""A trained network, ready to serve: `zosam.load`, and how fast it is: `zosam.serve_bench`, `zosam serve-bench RUN`."""

from __future__ import annotations

import copy
import importlib.util
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zosam.kernels import accelerate, accelerate_at_first_batch, report, restore
from zosam.kernels.trace import Example
from zosam.lab.where import Where
from zosam.layouts import bears_channels_last
from zosam.optim.masked import masks_of
from zosam.sparse.save import export, load_compressed, read_tensors

TURN = 0.02  # seconds


def load(path: str | Path, model: nn.Module | None = None, example: Any = None) -> nn.Module:
    """A trained network on the sparse kernels, in eval mode and without gradients.

    `path` is the folder of a finished run, or a file that `zosam.save` or `zosam export` wrote. A file does not say
    which network it holds: pass `model`, unless it lies in the folder of its run. `example`, one batch or a list of
    batches as they will come, is what the faster way is measured on; without it the first batch is taken, whose pass is
    then slower than those that follow.
    """
    path = Path(path)
    if path.is_dir():
        model = _finished(path).load(model)
    else:
        state = _state(path)
        if model is None:
            if not (path.parent / "record.json").is_file():
                raise ValueError(f"{path} does not say which network it holds: pass it, zosam.load(path, model)")
            model = _finished(path.parent).load()
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"{path} holds another network: {error}") from None
    model.eval().requires_grad_(False)
    if example is not None:
        return accelerate(model, example=example)

    return accelerate_at_first_batch(model)


def _state(path: Path) -> dict[str, Tensor]:
    """The state_dict in a file, compressed or dense."""
    tensors, about = read_tensors(path)
    return tensors if about.get("format") == "pt" else load_compressed(path)


def _finished(folder: Path) -> Any:
    from zosam.lab.run import finished

    return finished(folder)


def serve_bench(
    model: nn.Module, inputs: Example, batches: Sequence[int] = (1, 8, 64), seconds: float = 1.0
) -> list[dict[str, Any]]:
    """Latency of a network beside that of the same network dense: one line for each batch size.

    `kernels_ms`, `torch_ms` and, where it is installed, `onnxruntime_ms` are milliseconds per batch, medians of
    `seconds` in which all take turns of 20 ms, on as many threads as torch has; torch's are those of the faster of its
    memory layouts. `per_second` is how many inputs the kernels answer in a second, `gain` the time of the fastest dense
    one / that of the kernels. Batches are made of `inputs`: a tensor, or a dict of them if the model takes its inputs
    by name (then without onnxruntime).
    """
    if not batches or min(batches) < 1:
        raise ValueError(f"batch sizes are numbers of inputs, 1 or more, not {list(batches)}")
    if masks_of(model.parameters()):
        raise ValueError(
            "serve_bench wants a network that is served, and a sparse method keeps this one:"
            " zosam.save it and zosam.load it, or sparse.release() first"
        )
    model.eval().requires_grad_(False)
    plain = restore(model)
    examples = [_batch(inputs, n) for n in batches]
    with tempfile.TemporaryDirectory() as folder:
        session = _session(plain, examples[0], Path(folder))
        dense = copy.deepcopy(plain)
        last = _channels_last(plain) if bears_channels_last(plain) else None
        accelerate(model, example=examples)
        found = []
        for count, x in zip(batches, examples, strict=True):
            runs: dict[str, Callable[[], object]] = {"kernels": _call(model, x), "torch": _call(dense, x)}
            if last is not None:
                runs["channels_last"] = _call(last, _last(x))
            if session is not None and isinstance(x, Tensor):
                given = {session.get_inputs()[0].name: x.numpy()}
                runs["onnxruntime"] = partial(session.run, None, given)
            took = _in_turns(runs, seconds)
            took["torch"] = min(took["torch"], took.pop("channels_last", math.inf))
            least = min(value for name, value in took.items() if name != "kernels")
            line = {f"{name}_ms": 1e3 * value for name, value in took.items()}
            line |= {"per_second": count / took["kernels"], "gain": least / took["kernels"]}
            found.append({"batch": count} | {name: float(f"{value:.4g}") for name, value in line.items()})
    return found


def _call(model: nn.Module, x: Example) -> Callable[[], object]:
    return partial(model, x) if isinstance(x, Tensor) else partial(model, **x)


def _batch(inputs: Example, count: int) -> Example:
    """So many of the inputs, from the first again where there are fewer; by name each of them that is one per input."""
    if isinstance(inputs, Tensor):
        return inputs[torch.arange(count) % len(inputs)].contiguous()
    size = len(next(iter(inputs.values())))
    one_each = {name: x.dim() > 0 and len(x) == size for name, x in inputs.items()}
    return {name: x[torch.arange(count) % size].contiguous() if one_each[name] else x for name, x in inputs.items()}


def _channels_last(model: nn.Module) -> nn.Module:
    """The dense network in the layout that is the faster one for most convolutions."""
    own: nn.Module = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return own


def _last(x: Example) -> Example:
    """Inputs in that layout."""
    if isinstance(x, Tensor):
        return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    return {name: y.contiguous(memory_format=torch.channels_last) if y.dim() == 4 else y for name, y in x.items()}


def _session(model: nn.Module, example: Example, folder: Path) -> Any:
    """The network in onnxruntime, on as many threads as torch has; None where it is not installed, or by name."""
    if not isinstance(example, Tensor):
        return None
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    file = export(model, folder, "onnx", example=_batch(example, 2))
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _in_turns(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median time of each. A turn is as many calls as fit into it: a server, too, answers with warm caches."""
    took: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for run in runs.values():
            run()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(took["kernels"]) < 3:
            for name, run in runs.items():
                now = time.perf_counter()
                over = now + TURN
                while now < over:
                    start = now
                    run()
                    now = time.perf_counter()
                    took[name].append(now - start)
    return {name: statistics.median(times) for name, times in took.items()}


def example_batch(record: Any, data: str | None = None, data_dir: str | None = None) -> Tensor:
    """The first test batch of a run's data set, or of another: code of the user's own is run only if they name it."""
    from zosam.lab.data import load

    source = load(data or record.run.data, record.run.batch_size, record.run.seed, data_dir=data_dir)
    pictures: Tensor = next(iter(source.test))[0]
    return pictures


def bench(
    path: Path,
    batches: Sequence[int],
    threads: int,
    model: str | None = None,
    data: str | None = None,
    data_dir: str | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """What `serve_bench` finds for a finished run, and what runs where."""
    from zosam.lab import models

    with Where(device="cpu", threads=threads).here():
        record = _finished(path)
        network = record.load(None if model is None else models.build(model, record.classes))
        return serve_bench(network, example_batch(record, data, data_dir), batches), report(network)
