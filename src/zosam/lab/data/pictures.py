"""Pictures from files: decoded in worker processes, with the same result for any number of workers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zosam.lab.data.augment import normalise
from zosam.lab.data.batches import share, share_size, visit
from zosam.lab.data.errors import DataError
from zosam.lab.data.mix import erase, mix
from zosam.lab.data.randaugment import rand_augment
from zosam.lab.data.scan import Listing

if TYPE_CHECKING:
    from PIL.Image import Image

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
FORMATS = ("JPEG", "PNG", "WEBP", "BMP")  # whatever a file is called: of others, some start programs
REPEATS = 3  # copies of a picture in an epoch of repeated augmentation
Key = tuple[int, int]  # place in the epoch, number of the file


@dataclass(frozen=True)
class Decoder(Dataset["Tensor | str"]):
    """Turns a list of keys into one byte tensor; a file that cannot be read comes back as the error's text."""

    files: tuple[str, ...]
    size: int
    augment: str
    seed: int
    epoch: int

    def __getitem__(self, keys: list[Key]) -> Tensor | str:
        out = np.empty((len(keys), self.size, self.size, 3), np.uint8)
        for row, (place, number) in zip(out, keys, strict=True):
            try:
                picture = decode(self.files[number])
            except DataError as error:
                return str(error)
            row[:] = np.asarray(self.change(picture, Random(f"{self.seed} {self.epoch} {place}")))
        return torch.from_numpy(out).permute(0, 3, 1, 2).contiguous()

    def change(self, picture: Image, random: Random) -> Image:
        from PIL import Image

        if self.augment == "none":
            return centre(picture, self.size)
        picture = random_crop(picture, self.size, random)
        if random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return rand_augment(picture, random) if self.augment == "deit" else picture


def decode(path: str) -> Image:
    """The picture in a file, in three colours."""
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as file:
            return file.convert("RGB")
    except Exception as error:  # a damaged picture can fail in any way
        raise DataError(f"{path} cannot be read as a picture ({error}): replace or remove it") from error


def centre(picture: Image, size: int) -> Image:
    """The middle square at 224/256 of the shorter side, resized in one step."""
    from PIL import Image

    side = min(picture.size) * size / (size * 256 // 224)
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    return picture.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))


def random_crop(picture: Image, size: int, random: Random) -> Image:
    """A random piece of 8 to 100 % of the area and 3:4 to 4:3 in shape, resized to a square."""
    from PIL import Image

    width, height = picture.size
    for _ in range(10):
        area = random.uniform(0.08, 1) * width * height
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = random.randint(0, width - wide), random.randint(0, height - tall)
            return picture.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + wide, top + tall))
    return centre(picture, size)


@dataclass(frozen=True)
class Pictures:
    """A split that lives in files. `augment` is "none", "crop" (crop and flip) or "deit" (all that DeiT does)."""

    listing: Listing
    batch_size: int
    size: int
    augment: str = "none"
    seed: int = 0
    device: torch.device | str = "cpu"
    workers: int = 0
    rank: int = 0
    world: int = 1

    def __len__(self) -> int:
        count = share_size(len(self.listing.files), self.rank, self.world, self.augment != "none")
        return -(-count // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def keys(self, epoch: int) -> list[Key]:
        """What this rank sees in this epoch. Repeated augmentation gives the copies of a picture to
        neighbouring ranks, and ends the epoch when as many pictures were seen as there are."""
        training = self.augment != "none"
        order = visit(len(self.listing.files), training, self.seed, epoch)
        if self.augment == "deit":
            order = order.repeat_interleave(REPEATS)[: len(order)]
        places = share(torch.arange(len(order)), self.rank, self.world, training)
        return list(zip(places.tolist(), order[places].tolist(), strict=True))

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        keys = self.keys(epoch)
        batches = [keys[i : i + self.batch_size] for i in range(0, len(keys), self.batch_size)]
        decoder = Decoder(self.listing.files, self.size, self.augment, self.seed, epoch)
        own = torch.Generator()  # else the loader draws from the user's random numbers
        pinned = torch.device(self.device).type == "cuda"  # then they are copied there while it computes
        loader = DataLoader(
            decoder, batch_size=None, sampler=batches, num_workers=self.workers, generator=own, pin_memory=pinned
        )
        rng = np.random.default_rng((self.seed, epoch, self.rank))
        for batch, decoded in zip(batches, loader, strict=True):
            if isinstance(decoded, str):
                raise DataError(decoded)
            x = normalise(decoded.to(self.device, non_blocking=True), MEAN, STD)
            y = torch.tensor([self.listing.labels[number] for _, number in batch], device=self.device)
            yield mix(erase(x, rng), y, len(self.listing.classes), rng) if self.augment == "deit" else (x, y)
