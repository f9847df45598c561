"""Sparse-training methods: one file per method, each a `Sparsity` bound to a model and its optimizer."""

from zosam.sparse.base import Sparsity
from zosam.sparse.rigl import RigL
from zosam.sparse.set import SET
from zosam.sparse.snip import SNIP

METHODS: dict[str, type[Sparsity]] = {cls.__name__.lower(): cls for cls in (SNIP, SET, RigL)}

__all__ = ["METHODS", "SET", "SNIP", "RigL", "Sparsity"]
