"""GraSP: keep the weights that the flow of the gradient rests on."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from zosam.sparse.static import ByLoss


class GraSP(ByLoss):
    """Static: keep the smallest -θ·Hg of all layers (gradient signal preservation), from one batch.

    H is the Hessian of the loss and g its gradient. Wang, Zhang, Grosse, "Picking winning tickets before training by
    preserving gradient flow", ICLR 2020. The published code divides the logits by 200 and takes 10 pictures of each
    class: both are up to `loss` (the command line does so). It also scores with a fresh classifier; here the network
    is scored as it is trained.
    """

    temperature: ClassVar[float] = 200.0

    def score(self) -> dict[str, Tensor]:
        with self.scoring(), sdpa_kernel(SDPBackend.MATH):  # fused attention cannot be differentiated twice
            gradients = self.gradients(self.loss().mean(), create_graph=True)
            mean = self.averaged(gradients)
            inner = sum((mean[n] * g).sum() for n, g in gradients.items() if g.requires_grad)
            hessian_gradient = self.gradients(inner) if isinstance(inner, Tensor) else gradients
        return {n: self.weights[n].detach() * hg for n, hg in self.averaged(hessian_gradient).items()}
