"""Data sets: each is a function (batch_size, seed, device, ...) -> Data."""

from zosam.lab.data.batches import Batches, Data, Size, Tensors
from zosam.lab.data.catalog import DATA, DATA_SETS, load, size_of
from zosam.lab.data.cifar import cifar10, cifar100
from zosam.lab.data.cifar_c import cifar10c, corrupted
from zosam.lab.data.digits import digits
from zosam.lab.data.errors import DataError
from zosam.lab.data.image_folder import folder, imagenet
from zosam.lab.data.place import data_folder
from zosam.lab.data.stand_in import stand_in

__all__ = [
    "DATA",
    "DATA_SETS",
    "Batches",
    "Data",
    "DataError",
    "Size",
    "Tensors",
    "cifar10",
    "cifar10c",
    "cifar100",
    "corrupted",
    "data_folder",
    "digits",
    "folder",
    "imagenet",
    "load",
    "size_of",
    "stand_in",
]
