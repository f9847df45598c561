"""Sparse training that is cheap, robust and real: ZO-SAM, the SAM family and the sparse-training methods."""

__version__ = "0.1.0"

from zosam.optim import SAM, SGD, ZOSAM, SharpnessAware
from zosam.sparse import SET, SNIP, RigL, Sparsity

__all__ = ["SAM", "SET", "SGD", "SNIP", "ZOSAM", "RigL", "SharpnessAware", "Sparsity"]
