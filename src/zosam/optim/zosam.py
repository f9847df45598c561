"""ZO-SAM: climb along a zero-order estimate of the gradient, so that a step needs one backward only."""

from __future__ import annotations

import torch
from torch import Tensor

from zosam.optim.base import SharpnessAware
from zosam.optim.passes import Closure


class ZOSAM(SharpnessAware):
    """Zero-order SAM."""

    def climb(self, closure: Closure) -> Tensor:
        space = self.coordinates
        u = torch.randn(len(space), generator=self.generator(), dtype=space.dtype, device=space.device)
        by = max(self._rho()) / u.norm()
        with self.displaced(u, by=by):
            up = self.evaluate(closure)
        with self.displaced(u, by=-by):
            down = self.evaluate(closure)
        return u * (up - down).sign()

    def passes_per_step(self) -> dict[str, float]:
        return {"forward": 3.0, "backward": 1.0}
