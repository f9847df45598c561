"""`zosam eval`, `export`, `serve-bench` and `doctor`: what becomes of a trained network, and on what it runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.text import Text

from zosam.lab.data import DATA_SETS
from zosam.lab.models import NETWORKS
from zosam.lab.record import Record
from zosam.lab.run import finished
from zosam.lab.terminal import Cells, Column, Output, Printed, console, plain, progress_bar, show_table

KINDS = {"model": NETWORKS, "data": DATA_SETS}


def of_run(command: str, path: Path, **named: str | None) -> Record:
    """The record of a finished run. `named` is what the command says of its network and data: code of the user's own
    that it does not name gets an error with the whole command."""
    record = finished(path)
    own = [field for field in named if not KINDS[field].knows(getattr(record.run, field))]
    if any(named[field] is None for field in own):
        whole = {
            field: text or str(getattr(record.run, field)) for field, text in named.items() if text or field in own
        }
        words = [word for field, text in whole.items() for word in (f"--{field}", text)]
        what = " and ".join({"model": "network"}.get(field, field) for field in own)
        raise ValueError(
            f"this run's {what} {'are' if len(own) > 1 else 'is'} your own code, which no file may start: if you trust"
            f" it, name it, by what it is called now: {shlex.join(['zosam', command, str(path), *words])}"
        )
    return record


def eval_(
    path: Annotated[Path, tyro.conf.Positional],
    data: str | None = None,
    split: Literal["test", "train", "validation"] = "test",
    averaged: bool = False,
    batch_size: int | None = None,
    data_dir: str | None = None,
    workers: int = 2,
    device: str = "auto",
    model: str | None = None,
    output: Printed = Output(),
) -> None:
    """Accuracy and loss of a finished run's network, on its own data set or on another of as many classes.

    Args:
        path: The run's folder.
        data: Data set with settings, such as cifar10c:corruption=fog; by default the run's own.
        split: Which part of it. The training set comes as it was trained on, augmented.
        averaged: Take the averaged weights of a run with --ema.
        batch_size: Pictures at a time; by default the run's.
        data_dir: Folder of the data sets; by default $ZOSAM_DATA, else ~/.cache/zosam.
        workers: Processes that read pictures.
        device: auto for the accelerator, if there is one; or cpu, cuda, cuda:1, mps, xpu.
        model: Your own network as module:function; code is never run because a file names it.
        output: In which form to print it.
    """
    from zosam.lab import models
    from zosam.lab.data import load
    from zosam.lab.device import placed
    from zosam.lab.train import evaluate
    from zosam.lab.where import Where

    record = of_run("eval", path, model=model, data=data)
    what = data or record.run.data
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
    size, where = batch_size or record.run.batch_size, Where(device=device, data_dir=data_dir, workers=workers)
    with where.here() as place, progress_bar(output.aside(console), "batches", transient=True) as progress:
        task = progress.add_task(f"{what}", total=None)
        source = load(what, size, record.run.seed, place, data_dir=data_dir, workers=workers)
        batches = getattr(source, split)
        if batches is None:
            raise ValueError(f"{what} has no {split} split")
        if source.classes != record.classes:
            raise ValueError(f"{what} has {source.classes} classes, and the network of {path} {record.classes}")
        network = placed(record.load(None if model is None else models.build(model, record.classes), averaged), place)
        found = evaluate(network, batches, tick=lambda done, of: progress.update(task, completed=done, total=of))
    accuracy, loss = found["test_accuracy"], found["test_loss"]
    asked = {"folder": str(path), "data": str(what), "split": split, "averaged": averaged}
    told = f"{what}, {split}: accuracy {accuracy:.2%}, loss {loss:.4f}"
    output.tell(told, asked | {"accuracy": accuracy, "loss": loss})


def export(
    path: Annotated[Path, tyro.conf.Positional],
    form: Literal["compressed", "dense", "onnx"] = "compressed",
    out: Path | None = None,
    data_dir: str | None = None,
    model: str | None = None,
    data: str | None = None,
    output: Printed = Output(),
) -> None:
    """Write the network of a finished run as compressed or dense safetensors, or as ONNX.

    Args:
        path: The run's folder.
        form: compressed holds active weights and one bit per weight; dense a plain state_dict; onnx the network.
        out: Folder for the file; by default the run's.
        data_dir: Folder of the data sets, for the example picture that ONNX needs.
        model: Your own network as module:function; code is never run because a file names it.
        data: Your own data set as module:function, for that picture; by default the run's.
        output: In which form to print which file was written.
    """
    from zosam.lab import models
    from zosam.lab.serve import example_batch
    from zosam.sparse.save import FORMS, export

    record = of_run("export", path, model=model, **({"data": data} if form == "onnx" else {}))
    if data is not None and form != "onnx":
        raise ValueError(f"data gives ONNX an example picture, and {form} needs none: leave it out")
    example = example_batch(record, data, data_dir)[:1] if form == "onnx" else None
    own = None if model is None else models.build(model, record.classes)
    replaced = ((out or path) / FORMS[form]).exists()
    file = export(record.load(own), out or path, form, masks=record.masks() or None, example=example)
    size = file.stat().st_size
    told = {"file": str(file), "form": form, "bytes": size, "replaced": replaced}
    output.tell(f"{file}  {size:,} bytes{', in place of the one that was there' * replaced}", told)


def serve_bench(
    path: Annotated[Path, tyro.conf.Positional],
    batches: tuple[int, ...] = (1, 8, 64),
    threads: int = 1,
    data_dir: str | None = None,
    model: str | None = None,
    data: str | None = None,
    output: Printed = Output(),
) -> None:
    """Time the network of a finished run: on the sparse kernels, in dense torch and in onnxruntime.

    Args:
        path: The run's folder.
        batches: Batch sizes.
        threads: Number of threads, for all three.
        data_dir: Folder of the data sets; by default $ZOSAM_DATA, else ~/.cache/zosam.
        model: Your own network as module:function; code is never run because a file names it.
        data: Your own data set as module:function, or another one for the pictures; by default the run's.
        output: In which form to print it.
    """
    from zosam.lab.serve import bench

    of_run("serve-bench", path, model=model, data=data)
    found, ways = bench(path, batches, threads, model, data, data_dir)
    if not output.is_plain:
        output.write(found)
        return
    console.print(plain(f"{ways}\n"), soft_wrap=True, highlight=False)
    names = [name for name in ("kernels", "torch", "onnxruntime") if f"{name}_ms" in found[0]]
    heads = ["batch", *(f"{name}, ms" for name in names), "pictures/s", "gain"]
    columns = [Column(head, rank, right=True) for rank, head in enumerate(heads)]
    rows: list[Cells | Text] = []
    for line in found:
        times = [f"{line[f'{name}_ms']:.2f}" for name in names]
        rows.append([str(line["batch"]), *times, f"{line['per_second']:,.0f}", f"{line['gain']:.2f}"])
    show_table(console, columns, rows)
    console.print(
        "\ngain: the fastest dense time / that of the kernels; below 1, serve it dense. torch: the dense network in the"
        " faster of its memory layouts; the lines above the table compare with the layout that it has.",
        style="dim", highlight=False, markup=False, soft_wrap=not console.is_terminal,
    )  # fmt: skip
    if "onnxruntime" not in names:
        console.print(plain("onnxruntime is not installed: pip install 'zosam[onnx]' onnxruntime"), highlight=False)


def doctor(output: Printed = Output()) -> None:
    """Which sparse kernels this machine runs, and why.

    Args:
        output: In which form to print it.
    """
    from zosam.kernels import doctor

    found = doctor()
    named = (line.partition(": ") for line in found)
    output.tell("\n".join(found), *({"what": what, "found": told} for what, _, told in named))
