"""A network by its name: ours, the user's own `module:function`, or one of timm's or transformers'."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from zosam.lab.models.deit import deit_small, deit_tiny
from zosam.lab.models.digits_net import digits_net
from zosam.lab.models.resnet import resnet50, resnet50_cifar
from zosam.lab.models.resnet_cifar import resnet20, resnet32, resnet32_he, resnet56
from zosam.lab.models.wide_resnet import wrn, wrn28_10
from zosam.names import check_settings, find, parse

Model = Callable[..., nn.Module]
OURS: tuple[Model, ...] = (
    resnet20,
    resnet32_he,
    resnet32,
    resnet56,
    resnet50_cifar,
    resnet50,
    wrn28_10,
    wrn,
    deit_tiny,
    deit_small,
    digits_net,
)
MODELS: dict[str, Model] = {f.__name__: f for f in OURS}


class Logits(nn.Module):
    """A transformers classifier that returns its logits as a plain tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(pixel_values=x).logits
        return out


def build(name: str, num_classes: int = 10) -> nn.Module:
    """The network called `name`, freshly initialised.

    `resnet32` or `deit_tiny:image_size=64` is ours; `package.module:function` is called as
    `function(num_classes=...)`; `timm:NAME` and `transformers:NAME` need those packages.
    """
    head, colon, rest = name.partition(":")
    if not colon or "=" in rest or head in MODELS:
        key, settings = parse(name)
        function = find(MODELS, key, "model")
        check_settings(function, settings, key, taken=("num_classes",))
        return function(num_classes=num_classes, **settings)
    if head == "timm":
        return _timm(rest, num_classes)
    if head == "transformers":
        return _transformers(rest, num_classes)
    return _own(head, rest, num_classes)


def _own(module: str, function: str, num_classes: int) -> nn.Module:
    try:
        make = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, but something that it imports is not
        raise ValueError(f"model {module}:{function}: there is no module {error.name!r} to import") from error
    except AttributeError as error:
        raise ValueError(f"model {module}:{function}: {module} has no {function!r}") from error
    model = make(num_classes=num_classes)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {module}:{function} returned {type(model).__name__}, not an nn.Module")
    return model


def _timm(name: str, num_classes: int) -> nn.Module:
    timm = _package("timm", name)
    near = {key: key for key in timm.list_models()}
    model: nn.Module = timm.create_model(find(near, name, "timm model"), num_classes=num_classes)
    return model


def _transformers(name: str, num_classes: int) -> nn.Module:
    """A configuration by name or folder, with fresh weights; nothing of the hub's code is run."""
    transformers = _package("transformers", name)
    try:
        config = transformers.AutoConfig.from_pretrained(name, num_labels=num_classes)
        return Logits(transformers.AutoModelForImageClassification.from_config(config))
    except (OSError, ValueError) as error:
        raise ValueError(f"model transformers:{name}: {error}") from error


def _package(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ValueError(f"model {package}:{name} needs {package}: pip install 'zosam[ecosystem]'") from error
