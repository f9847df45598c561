"""Networks small enough to check by eye: layers with given weights, masks and gradients."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


def layers(*values, bias=False):
    """A stack of linear layers that hold these weights."""
    stack = nn.Sequential(*(nn.Linear(len(v[0]), len(v), bias=bias) for v in values))
    with torch.no_grad():
        for layer, v in zip(stack, values, strict=True):
            layer.weight.copy_(torch.tensor(v))
    return stack


def sgd(model, lr=0.0, **settings):
    return torch.optim.SGD(model.parameters(), lr=lr, **settings)


def put(sparse, masks, weights=None, steps=0):
    """Give a method these masks, weights and step count."""
    named = {n: torch.tensor(np.array(m), dtype=torch.bool) for n, m in zip(sparse.masks, masks, strict=True)}
    sparse.load_state_dict({**sparse.state_dict(), "masks": named, "steps": steps})
    if weights is not None:
        with torch.no_grad():
            for w, v in zip(sparse.weights.values(), weights, strict=True):
                w.copy_(torch.tensor(np.array(v), dtype=w.dtype))
                w.mul_(named[next(n for n, x in sparse.weights.items() if x is w)])


def step(sparse, grads):
    """One step of the optimizer with these gradients."""
    for w, g in zip(sparse.weights.values(), grads, strict=True):
        w.grad = torch.as_tensor(g, dtype=w.dtype).clone()
    sparse.optimizer.step()


def masks(sparse):
    return [m.numpy() for m in sparse.masks.values()]


def largest(score, k):
    """The oracle: k highest scores as a mask, by a full sort."""
    score = np.asarray(score, dtype=float)
    chosen = np.zeros(score.size, dtype=bool)
    chosen[np.argsort(-score.ravel(), kind="stable")[:k]] = True
    return chosen.reshape(score.shape)
