"""CIFAR-10-C made here: 19 corruptions at five severities, on many pictures at once."""

from zosam.lab.data.corrupt.archive import generate
from zosam.lab.data.corrupt.severities import CORRUPTIONS, corrupt

__all__ = ["CORRUPTIONS", "corrupt", "generate"]
