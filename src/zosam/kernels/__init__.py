"""Real sparse compute on CPU, behind one function: accelerate(model, sparse, example)."""

from zosam.kernels.accelerate import accelerate, choices, in_use, report, restore
from zosam.kernels.library import doctor

__all__ = ["accelerate", "choices", "doctor", "in_use", "report", "restore"]
