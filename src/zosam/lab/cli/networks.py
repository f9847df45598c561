"""`zosam export`, `zosam serve-bench` and `zosam doctor`: what becomes of a trained network, and on what it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from zosam.lab.terminal import console


def export(
    path: Annotated[Path, tyro.conf.Positional],
    form: Literal["compressed", "dense", "onnx"] = "compressed",
    out: Path | None = None,
    data_dir: str | None = None,
    model: str | None = None,
) -> None:
    """Write the network of a finished run as compressed or dense safetensors, or as ONNX.

    Args:
        path: The run's folder.
        form: compressed holds active weights and one bit per weight; dense a plain state_dict; onnx the network.
        out: Folder for the file; by default the run's.
        data_dir: Where data sets lie, for the example picture that ONNX needs.
        model: The network, module:function, if it is your own: a record alone does not make its code run.
    """
    from zosam.lab import models
    from zosam.lab.assemble import load_data
    from zosam.lab.run import finished
    from zosam.sparse.save import export

    record = finished(path)
    example = next(iter(load_data(record.run, data_dir).test))[0][:1] if form == "onnx" else None
    own = None if model is None else models.build(model, record.classes)
    file = export(record.load(own), out or path, form, masks=record.masks() or None, example=example)
    console.print(f"{file}  {file.stat().st_size:,} bytes", highlight=False)


def serve_bench(
    path: Annotated[Path, tyro.conf.Positional],
    batches: tuple[int, ...] = (1, 8, 64),
    threads: int = 1,
    model: str | None = None,
) -> None:
    """How fast the network of a finished run serves: on the sparse kernels, in dense torch and in onnxruntime.

    Args:
        path: The run's folder.
        batches: Batch sizes.
        threads: For all three.
        model: The network, module:function, if it is your own: a record alone does not make its code run.
    """
    from zosam.lab.serve import bench

    console.print(bench(path, batches, threads, model), highlight=False)


def doctor() -> None:
    """Which sparse kernels this machine runs, and why."""
    from zosam.kernels import doctor

    console.print("\n".join(doctor()), highlight=False)
