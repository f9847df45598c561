"""The one error of this folder: data that is missing, damaged or not what it should be."""

from __future__ import annotations


class DataError(ValueError):
    """Says which file is wrong and what to do about it."""
