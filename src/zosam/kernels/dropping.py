"""Layers that drop something at random: each multiplies its input by noise, which torch draws as ever.

Dropout of ones is that noise. So a region asks the layer itself to drop from ones, in the shape and layout that its
input would have, and multiplies: the same seed drops the same entries with the kernels and without.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)
PATHS = ("DropPath", "StochasticDepth")  # as timm, torchvision and transformers call it, alone or behind a prefix


def is_drop_path(module: nn.Module) -> bool:
    """Whether a layer of this name is one by what it does, too."""
    return type(module).__name__.endswith(PATHS) and _multiplies(module)


def drops(module: nn.Module) -> bool | None:
    """Whether a layer multiplies with noise now, or lets all pass; None if it is another kind of layer."""
    if type(module) in DROPOUT:
        rate: Any = module.p
        return bool(module.training and rate > 0)
    if not is_drop_path(module):
        return None
    rates = [getattr(module, name) for name in ("drop_prob", "p", "rate") if hasattr(module, name)]
    return module.training and rates not in ([0], [0.0], [None])


def _multiplies(module: nn.Module) -> bool:
    """Whether a layer without weights gives its input times what it gives of ones."""
    if next(module.parameters(), None) is not None:
        return False
    for shape in ((16, 3, 2), (16, 3, 2, 2)):
        x = torch.linspace(1, 2, torch.Size(shape).numel()).view(shape)
        results = []
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                for given in (x, torch.ones_like(x)):
                    torch.manual_seed(0)
                    results.append(module.forward(given))
        except Exception:  # whatever a stranger's layer does with such inputs
            return False
        if not torch.allclose(results[0], x * results[1]):
            return False
    return True
