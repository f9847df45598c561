"""What measuring must leave as it was, and the active weights that are measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from zosam.optim.passes import Closure, NoBackward
from zosam.optim.snapshot import Snapshot
from zosam.optim.vector import ActiveWeights
from zosam.random_stream import Draw

# by the name of the weight, or by the weight
Masks = Mapping[str, Tensor] | Mapping[Tensor, Tensor] | Mapping[nn.Parameter, Tensor]


@contextmanager
def untouched(model: nn.Module, training: bool | None = False) -> Iterator[None]:
    """The model in eval mode (or training mode; None: as it is); its modes, gradients and buffers and the random
    streams are afterwards as before."""
    params = list(model.parameters())
    before = Snapshot(list(model.modules()), params[0].device if params else torch.device("cpu"))
    modes, grads = [(m, m.training) for m in model.modules()], [p.grad for p in params]
    try:
        for p in params:
            p.grad = None
        if training is not None:
            model.train(training)
        yield
    finally:
        before.restore()
        for module, mode in modes:
            module.training = mode
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad


@contextmanager
def away_from_home(space: ActiveWeights) -> Iterator[Tensor]:
    """Gives a copy of the weights; whatever is written in here, they come back exactly."""
    home = space.read()
    try:
        yield home
    finally:
        with torch.no_grad():
            space.write(home)


def bound(model: nn.Module, masks: Masks | None) -> dict[Tensor, Tensor]:
    """The masks by the parameter that they belong to."""
    names = dict(model.named_parameters(remove_duplicate=False))
    found: dict[Tensor, Tensor] = {}
    for key, mask in (masks or {}).items():
        if isinstance(key, str) and key not in names:
            raise ValueError(f"the model has no parameter {key!r} to mask; it has {', '.join(names)}")
        weight = names[key] if isinstance(key, str) else key
        if weight.shape != mask.shape:
            raise ValueError(f"a mask of shape {tuple(mask.shape)} does not fit a weight of {tuple(weight.shape)}")
        found[weight] = mask.to(weight.device, torch.bool)
    return found


def active(model: nn.Module, masks: Masks | None = None) -> ActiveWeights:
    """The trainable weights that the masks leave, as one vector."""
    space = ActiveWeights([p for p in model.parameters() if p.requires_grad], bound(model, masks))
    if not len(space):
        raise ValueError("there is no active weight to measure: all are masked, or none is trainable")
    return space


def noise(space: ActiveWeights, *key: object) -> Tensor:
    """Normal random numbers over the active weights, from the private stream of that key."""
    return Draw(*key).normal(len(space), dtype=space.dtype, device=space.device)


def value(loss: Closure) -> float:
    """The loss, forward only."""
    with torch.no_grad(), NoBackward():
        return float(loss())
