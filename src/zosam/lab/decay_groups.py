"""Parameter groups: weights are decayed, but not norms, biases, class tokens and positions; norms alone may climb."""

from __future__ import annotations

from typing import Any

from torch import nn

NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)
TOKENS = ("cls_token", "dist_token", "class_token", "pos_embed", "pos_embedding")  # as timm and torchvision name them


def without_decay(model: nn.Module) -> list[str]:
    """The names of the parameters that are not decayed.

    They are those of norm layers, all biases, vectors and scalars, tokens and positions, and what the model itself
    says in `no_weight_decay()`, as models of timm do.
    """
    norms = _norms(model)
    said = getattr(model, "no_weight_decay", None)
    own = set(said()) if callable(said) else set()
    return [
        name
        for name, p in model.named_parameters()
        if p.dim() <= 1 or id(p) in norms or name in own or name.rpartition(".")[2] in TOKENS or name.endswith("bias")
    ]


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimizer: those that are decayed, then the others; frozen ones are left out."""
    spared = set(without_decay(model))
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in trained if name not in spared], "weight_decay": weight_decay},
        {"params": [p for name, p in trained if name in spared], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def norms_climb(model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups, each split in two: its norms are perturbed, all else is not (SAM-ON)."""
    norms = _norms(model)
    if not norms:
        raise ValueError("perturb_on=norms needs norm layers, and this network has none: leave it out")
    split = [
        {**group, "params": [p for p in group["params"] if (id(p) in norms) == climbs], "perturb": climbs}
        for group in groups
        for climbs in (True, False)
    ]
    return [group for group in split if group["params"]]


def _norms(model: nn.Module) -> set[int]:
    """The identities of the parameters of norm layers."""
    return {id(p) for module in model.modules() if isinstance(module, NORMS) for p in module.parameters()}
