"""Real sparse compute on CPU, behind one function: accelerate(model, sparse, example)."""

from zosam.kernels.accelerate import accelerate, choices, in_use, restore
from zosam.kernels.library import doctor
from zosam.kernels.summary import report

__all__ = ["accelerate", "choices", "doctor", "in_use", "report", "restore"]
