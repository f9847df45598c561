"""What feeding costs: augmented CIFAR batches against a training step and against Pillow, and all corruptions.

    python benchmarks/data.py [--data-dir DIR] [--rounds N] [--out FILE]

Batches are ours and Pillow's in turn, within one run and on one thread, so a busy machine slows both; medians
are printed as JSON. Without CIFAR-10 in the data folder the pictures are random: the cost is the same.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from chart import machine
from torch import Tensor
from torch.nn import functional as F

from zosam.lab.data import DataError, Tensors
from zosam.lab.data.augment import Augmented
from zosam.lab.data.cifar import CIFAR10, Bytes, read_split
from zosam.lab.data.corrupt import CORRUPTIONS, corrupt
from zosam.lab.models import resnet32

BATCH = 128


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def pillow_batch(pictures: Bytes, index: list[int]) -> Tensor:
    """The same crop, flip and normalisation, picture by picture."""
    from PIL import Image, ImageOps

    mean, std = np.array(CIFAR10.mean, np.float32), np.array(CIFAR10.std, np.float32)
    out = []
    for number in index:
        picture = ImageOps.expand(Image.fromarray(pictures[number]), 4)
        top, left = random.randint(0, 8), random.randint(0, 8)
        picture = picture.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        out.append((np.asarray(picture, np.float32) / 255 - mean) / std)
    return torch.from_numpy(np.stack(out).transpose(0, 3, 1, 2).copy())


def feeding(x: Bytes, y: Tensor, rounds: int) -> dict[str, Any]:
    """Our batches, Pillow's batches and ResNet-32 steps in turn."""
    tensors = Tensors(torch.from_numpy(x), y, BATCH, shuffle=True, augment=Augmented(CIFAR10.mean, CIFAR10.std))
    rows = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    model = resnet32()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def forever() -> Iterator[tuple[Tensor, Tensor]]:
        epoch = 0
        while True:
            yield from tensors.epoch(epoch)
            epoch += 1

    batches = forever()

    def step() -> None:
        inputs, labels = batch
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    batch = next(batches)
    ours: list[float] = []
    pillow: list[float] = []
    steps: list[float] = []
    for round_ in range(rounds):
        for _ in range(10):
            ours.append(seconds(lambda: next(batches)))
            index = np.random.default_rng(len(ours)).integers(0, len(rows), BATCH).tolist()
            pillow.append(seconds(partial(pillow_batch, rows, index)))
        if round_ % 5 == 0:
            steps.append(seconds(step))
    a, b, c = (statistics.median(times) for times in (ours, pillow, steps))
    return {
        "batch": BATCH,
        "ours_ms": round(1e3 * a, 3),
        "pillow_ms": round(1e3 * b, 3),
        "resnet32_step_ms": round(1e3 * c, 1),
        "times_faster_than_pillow": round(b / a, 1),
        "percent_of_a_step": round(100 * a / c, 3),
    }


def corruptions(x: Bytes, count: int = 500) -> dict[str, Any]:
    """Pictures per second of each corruption over its five severities, and what all 950,000 would take."""
    pictures = np.ascontiguousarray(x[:count].transpose(0, 2, 3, 1))
    rates: dict[str, int] = {}
    for name in CORRUPTIONS:
        try:
            times = [
                seconds(partial(corrupt, pictures, name, severity, np.random.default_rng(0)))
                for severity in range(1, 6)
            ]
        except DataError as error:
            print(f"left out: {error}")
            continue
        rates[name] = round(5 * count / sum(times))
    minutes = sum(50_000 / rate for rate in rates.values()) / 60
    return {"pictures_per_second": rates, "minutes_for_all_on_one_core": round(minutes, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    try:
        x, y = read_split(CIFAR10, "train", given.data_dir)
        source = "cifar10"
    except DataError:
        rng = np.random.default_rng(0)
        x, y, source = rng.integers(0, 256, (50_000, 3, 32, 32), np.uint8), rng.integers(0, 10, 50_000), "random"
    result = {
        "pictures": source,
        **machine(),
        "threads": torch.get_num_threads(),
        "feeding": feeding(x, torch.from_numpy(y), given.rounds),
        "corruptions": corruptions(x),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
