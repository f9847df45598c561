"""CIFAR-10-C made here: 19 corruptions at five severities, on many pictures at once."""

from zosam.data.corrupt.files import generate
from zosam.data.corrupt.table import CORRUPTIONS, corrupt

__all__ = ["CORRUPTIONS", "corrupt", "generate"]
