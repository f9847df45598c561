"""A network by its name: ours, the user's own `module:function`, or one of timm's or transformers'."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from zosam.lab.models.deit import deit_small, deit_tiny
from zosam.lab.models.digits_net import digits_net
from zosam.lab.models.resnet import resnet50, resnet50_cifar
from zosam.lab.models.resnet_cifar import resnet20, resnet32, resnet32_he, resnet56
from zosam.lab.models.wide_resnet import wrn, wrn28_10
from zosam.lab.settings import Choice, Kind
from zosam.names import find

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
LARGEST_SETTING, LARGEST_PRODUCT = 4096, 1_000_000  # more than any network has


class Logits(nn.Module):
    """A transformers classifier that returns its logits as a plain tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(pixel_values=x).logits
        return out


def build(what: str | Choice, num_classes: int = 10) -> nn.Module:
    """The network called `what`, freshly initialised.

    `resnet32` or `deit_tiny:image_size=64` is ours; `package.module:function` is called as
    `function(num_classes=...)`; `timm:NAME` and `transformers:NAME` need those packages.
    """
    choice = NETWORKS.read(what) if isinstance(what, str) else what
    make = NETWORKS.thing(choice.name)
    try:
        inspect.signature(make).bind(num_classes=num_classes, **choice.settings)
    except TypeError as error:
        own = f"; write it as def {choice.name.partition(':')[2]}(num_classes, ...)" if ":" in choice.name else ""
        raise ValueError(
            f"model {choice} is called as {choice.name}(num_classes={num_classes}): {error}{own}"
        ) from error
    model = make(num_classes=num_classes, **choice.settings)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {choice} returned {type(model).__name__}, not an nn.Module")
    return model


@cache
def fits(what: Choice, num_classes: int | None) -> None:
    """Refuse settings with which there is no such network; one of the user's own is built where it has any settings,
    if it is known for how many classes."""
    try:
        if what.name in MODELS:
            sizes(what, 10)
        elif what.settings and num_classes is not None:
            with torch.random.fork_rng(devices=[]):
                build(what, num_classes)
    except (ValueError, RuntimeError, ArithmeticError, AssertionError, TypeError) as error:
        raise ValueError(f"no network is {what}: {error}") from error


def sizes(what: Choice, num_classes: int) -> dict[str, torch.Size]:
    """The shape of every tensor of a network of ours, found out without taking memory."""
    given = [v for v in what.settings.values() if isinstance(v, int) and not isinstance(v, bool)]
    if any(v < 1 for v in given):
        raise ValueError("whole numbers must be 1 or more")
    if any(v > LARGEST_SETTING for v in given) or math.prod(given) > LARGEST_PRODUCT:
        raise ValueError(f"the network {what} would be absurdly large")
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return {name: tensor.shape for name, tensor in build(what, num_classes).state_dict().items()}


def _timm(name: str) -> Model:
    timm = _package("timm", name)
    known = find({key: key for key in timm.list_models()}, name, "timm model")
    return partial(timm.create_model, known)


def _transformers(name: str) -> Model:
    """A configuration by name or folder, with fresh weights; nothing of the hub's code is run."""
    transformers = _package("transformers", name)

    def make(num_classes: int) -> nn.Module:
        try:
            config = transformers.AutoConfig.from_pretrained(name, num_labels=num_classes)
            return Logits(transformers.AutoModelForImageClassification.from_config(config))
        except (OSError, ValueError) as error:
            raise ValueError(f"model transformers:{name}: {error}") from error

    return make


def _package(package: str, name: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ValueError(f"model {package}:{name} needs {package}: pip install 'zosam[ecosystem]'") from error


NETWORKS = Kind(
    "model",
    MODELS,
    given=frozenset({"num_classes"}),
    packages={"timm": _timm, "transformers": _transformers},
)
