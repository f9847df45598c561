"""Sparse-training methods: one file per method, each a `Sparsity` bound to a model and its optimizer."""

from zosam.sparse.base import Sparsity
from zosam.sparse.deepr import DeepR
from zosam.sparse.dsr import DSR
from zosam.sparse.gmp import GMP
from zosam.sparse.grasp import GraSP
from zosam.sparse.lth import LTH
from zosam.sparse.magnitude import Magnitude
from zosam.sparse.mest import MEST
from zosam.sparse.random import Random
from zosam.sparse.rigl import RigL
from zosam.sparse.set import SET
from zosam.sparse.snfs import SNFS
from zosam.sparse.snip import SNIP
from zosam.sparse.svite import SViTE
from zosam.sparse.synflow import SynFlow
from zosam.sparse.topkast import TopKAST

_ALL = (LTH, SNIP, GraSP, SynFlow, Magnitude, Random, SET, DeepR, DSR, SNFS, RigL, TopKAST, MEST, SViTE, GMP)
METHODS: dict[str, type[Sparsity]] = {cls.__name__.lower(): cls for cls in _ALL}

__all__ = [
    "DSR",
    "GMP",
    "LTH",
    "MEST",
    "METHODS",
    "SET",
    "SNFS",
    "SNIP",
    "DeepR",
    "GraSP",
    "Magnitude",
    "Random",
    "RigL",
    "SViTE",
    "Sparsity",
    "SynFlow",
    "TopKAST",
]
