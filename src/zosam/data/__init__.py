"""Data sets: each is a function (batch_size, seed, device, ...) -> Data."""

from zosam.data.batches import Batches, Data, Tensors
from zosam.data.cifar import cifar10, cifar100
from zosam.data.cifar_c import cifar10c, corrupted
from zosam.data.digits import digits
from zosam.data.errors import DataError
from zosam.data.image_folder import folder, imagenet
from zosam.data.named import DATA, load
from zosam.data.place import data_folder

__all__ = [
    "DATA",
    "Batches",
    "Data",
    "DataError",
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
]
