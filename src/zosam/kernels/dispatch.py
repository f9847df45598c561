"""What stands in for a module's forward: the rewritten graph where it holds, the module's own code elsewhere."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .choose import Choices
from .layers import Layers
from .rewrite import Rewritten, rewrite


class Dispatcher:
    """Called as the module's forward; keeps one rewritten graph for each setting of the training flags."""

    def __init__(self, module: nn.Module, layers: Layers, example: tuple[Any, ...], choices: Choices) -> None:
        self.module, self.layers, self.choices = module, layers, choices
        self.example = tuple((x.shape, x.dtype) for x in example)
        self.own: Callable[..., Any] | None = module.__dict__.get("forward")
        self.inner = [m for m in module.modules() if m is not module]
        self.structure = [(m, dict(m._modules)) for m in module.modules() if m._modules]
        self.steered = [m for m in module.modules() if not m.__module__.startswith("torch.nn")]
        self.versions: dict[tuple[bool, ...], Rewritten | None] = {}

    def version(self) -> Rewritten | None:
        """The rewritten graph for the present training flags: a module's own code may depend on them."""
        key = tuple(m.training for m in self.steered)
        if key not in self.versions:
            self.versions[key] = rewrite(self.module, self.layers, self.example, self.choices)
        return self.versions[key]

    def gains(self) -> bool:
        """Whether the kernels are worth it in training or in evaluation; what is chosen for both is then known."""
        modes = [(m, m.training) for m in self.module.modules()]
        try:
            for training in (True, False):
                self.module.train(training)
                self.version()
        finally:
            for module, training in modes:
                module.training = training
        return any(version is not None for version in self.versions.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._plain(args):
            return self.original(*args, **kwargs)
        version = self.version()
        return self.original(*args, **kwargs) if version is None else version.graph(*args, **kwargs)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def _plain(self, args: tuple[Any, ...]) -> bool:
        """Whether something is going on that only the module's own code serves: hooks, autocast, transforms."""
        if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
            return True
        if any(isinstance(x, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x) for x in args):
            return True
        if any(parent._modules != parts for parent, parts in self.structure):
            return True  # a layer was replaced after the model was accelerated
        return any(
            m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in self.inner
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copied model has its own parameters: it runs its own code until it is accelerated itself."""
        return _bind(type(self.module).forward, memo.get(id(self.module), self.module))

    def __reduce__(self) -> tuple[Any, ...]:
        return _bind, (type(self.module).forward, self.module)


def _bind(function: Callable[..., Any], module: nn.Module) -> Any:
    """A method that pickle can make: a loaded model runs its own code, as a copied one does."""
    return types.MethodType(function, module)
