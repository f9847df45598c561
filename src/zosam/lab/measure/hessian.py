"""The largest eigenvalues of the Hessian of the loss: the steepest curvature at the weights, with no radius to choose.

Lanczos with full re-orthogonalisation; the Hessian is never formed, only its products with vectors, each the cost of
a few backward passes. One vector as long as the active weights is kept for every step. scipy's eigsh restarts to keep
fewer of them, for which it needs more products, and brings every vector to the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from zosam.lab.measure.untouched import Masks, active, noise, untouched
from zosam.optim.passes import Closure, NoBackward
from zosam.optim.vector import ActiveWeights


def top_eigenvalue(
    model: nn.Module,
    loss: Closure,
    steps: int = 50,
    seed: int = 0,
    masks: Masks | None = None,
) -> float:
    """The largest eigenvalue of the Hessian over the active weights."""
    return top_eigenvalues(model, loss, 1, steps, seed, masks)[0]


def top_eigenvalues(
    model: nn.Module,
    loss: Closure,
    count: int = 5,
    steps: int = 50,
    seed: int = 0,
    masks: Masks | None = None,
    tolerance: float = 1e-3,
) -> list[float]:
    """The largest `count` eigenvalues, largest first; one that occurs several times is given once.

    `loss` returns the loss of the model as it stands, without random parts; the model is put in eval mode. It ends
    once all of them are within `tolerance`, relative to the largest in size, of an eigenvalue, or after `steps`.
    """
    if not 1 <= count <= steps:
        raise ValueError(f"count must be from 1 to steps = {steps}, not {count}")
    space = active(model, masks)
    # fused attention has no second derivative
    with untouched(model), sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        with NoBackward():
            found = loss()
        values = lanczos(hessian_product(space, found), noise(space, "hessian", seed), count, steps, tolerance)
    return [float(v) for v in values.flip(0)]


def hessian_product(space: ActiveWeights, loss: Tensor) -> Callable[[Tensor], Tensor]:
    """v -> Hv over the active weights, by a second backward through the graph of `loss`."""
    gradients = torch.autograd.grad(loss, space.params, create_graph=True, allow_unused=True)

    def product(vector: Tensor) -> Tensor:
        parts = [torch.zeros_like(p) for p in space.params]
        space.scatter(vector, parts)
        curved = [(g, v) for g, v in zip(gradients, parts, strict=True) if g is not None and g.requires_grad]
        if not curved:  # linear in every weight
            return torch.zeros_like(vector)
        outputs, along = zip(*curved, strict=True)
        return space.gather(torch.autograd.grad(outputs, space.params, along, retain_graph=True, allow_unused=True))

    return product


@torch.no_grad()
def lanczos(
    product: Callable[[Tensor], Tensor], start: Tensor, count: int, steps: int, tolerance: float = 1e-3
) -> Tensor:
    """The largest `count` eigenvalues of a symmetric operator, in rising order."""
    steps = min(steps, len(start))
    basis = start.new_empty(steps, len(start))
    basis[0] = start / start.norm()
    small = torch.zeros(steps, steps, dtype=torch.float64)  # the operator within the basis: tridiagonal
    for i in range(steps):
        image = product(basis[i])
        small[i, i] = float(image @ basis[i])
        for _ in range(2):  # against the whole basis, and twice: else found eigenvalues come back as ghosts
            image = image - basis[: i + 1].T @ (basis[: i + 1] @ image)
        length = float(image.norm())
        values, vectors = torch.linalg.eigh(small[: i + 1, : i + 1])
        error = length * vectors[-1, -count:].abs().max()  # how far these can be from an eigenvalue
        if error <= tolerance * values.abs().max() or i + 1 == steps:
            break
        small[i, i + 1] = small[i + 1, i] = length
        basis[i + 1] = image / length
    largest: Tensor = values[-count:]
    return largest
