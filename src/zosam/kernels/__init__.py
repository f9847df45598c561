"""Real sparse compute on CPU, behind one function: accelerate(model, sparse, example)."""

from zosam.kernels.accelerate import accelerate, report, restore
from zosam.kernels.doctor import doctor

__all__ = ["accelerate", "doctor", "report", "restore"]
