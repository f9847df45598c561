"""Modules that train on several ranks: who averages gradients, and BatchNorm over the batches of all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed.nn.functional  # imported after a group is made, its default arguments keep the group for ever
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from zosam.distributed.fsdp import any_sharded, is_sharded
from zosam.distributed.ranks import Ranks, current

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def parallel(model: nn.Module, example: Tensor) -> nn.Module:
    """The model as all ranks train it together: as one process would on their joined batch.

    The module handed in is part of the one returned, and keeps its parameters and the keys of its state.
    `example` is one batch of inputs.
    """
    if current().world == 1:
        return model
    for module in model.modules():
        if type(module) in PLAIN:
            on_cpu = next(model.parameters()).device.type == "cpu"
            module.__class__ = SyncedNorm if on_cpu else nn.SyncBatchNorm
            module.process_group = None  # type: ignore[assignment]
        elif isinstance(module, _BatchNorm) and type(module) is not SyncedNorm:
            warnings.warn(f"{type(module).__name__} keeps statistics of each rank's own batch", stacklevel=2)
    network = DistributedDataParallel(model)
    network.broadcast_buffers = False  # they are the same on all ranks
    # after its first pass DDP lays gradients out anew: let it, so that sums are the same to the bit, resumed or not
    modes = [(module, module.training) for module in network.modules()]
    kind = example.device
    with torch.random.fork_rng([] if kind.type == "cpu" else [kind.index], device_type=kind.type):
        network.eval()(example).sum().backward()
    for module, training in modes:
        module.training = training
    network.zero_grad(set_to_none=True)
    return network


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside of a DistributedDataParallel, or the model itself."""
    inside: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inside


class Averaging:
    """The modules in closures that average gradients: those around the parameters, as `modules` finds them.

    DistributedDataParallel is told what to send in a pass. fully_shard may keep whole weights after a pass without
    backward: it is told to let go of them, since the next pass is at other weights.
    """

    def __init__(
        self,
        params: Callable[[], Sequence[Tensor]],
        ranks: Callable[[], Ranks],
        modules: Callable[[], Sequence[nn.Module]],
    ) -> None:
        self.params, self.ranks, self.modules = params, ranks, modules
        # sizes of the groups that averaged in the last pass; a reference to a module would keep it, its reducer keeps
        # the parameters in C++, and their hooks keep the optimizer: a cycle that Python cannot collect
        self._averaged_over: set[int] = set()

    @contextmanager
    def sending(self, gradients: bool, buffers: bool) -> Iterator[None]:
        """In a pass in here, whether backward averages gradients and forward takes over the buffers of rank 0."""
        if self.ranks().world == 1 and not any_sharded(self.params()):
            yield
            return
        before = {module: module.require_backward_grad_sync for module in self._ddp()}
        for module, sends in before.items():
            module.require_backward_grad_sync = gradients and sends
            module.require_forward_param_sync = int(buffers)  # type: ignore[assignment]  # a pass makes it True
        self._let_go()
        try:
            yield
        except BaseException:
            for module in before:
                module.reducer._reset_state()  # else it waits for the backward of this pass, and takes the next for it
            raise
        finally:
            self._let_go()
            if gradients:
                called = [module for module in before if module.require_forward_param_sync is True]
                self._averaged_over = {module.process_group.size() for module in called}
            for module, sends in before.items():
                module.require_backward_grad_sync = sends
                module.require_forward_param_sync = True

    def _ddp(self) -> list[DistributedDataParallel]:
        return [module for module in self.modules() if isinstance(module, DistributedDataParallel)]

    def _let_go(self) -> None:
        for module in self.modules():
            reshard: Any = getattr(module, "reshard", None)
            if reshard is not None:
                reshard()

    def require(self) -> None:
        """Refuse gradients that nobody has averaged: the ranks would part without a word."""
        world = self.ranks().world
        if world == 1 or all(is_sharded(p) for p in self.params()):
            return
        if not self._averaged_over:
            raise RuntimeError(
                f"{world} processes train together, but the closure calls no DistributedDataParallel and the parameters"
                " are not those of fully_shard, so nobody averages gradients: wrap the model, or, if each process"
                " trains a model of its own, say optimizer.ranks = zosam.distributed.ranks.ALONE"
            )
        other = self._averaged_over - {world}
        if other:
            raise RuntimeError(
                f"the model is averaged over {other.pop()} ranks, the optimizer's numbers over {world}:"
                " say optimizer.ranks = zosam.distributed.ranks.Ranks(model.process_group)"
            )


class Total(torch.autograd.Function):
    """The sum over all ranks, through which gradients of any order flow."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return current().sum(values, "statistics")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return total(gradients[0])


def total(values: Tensor) -> Tensor:
    summed: Tensor = Total.apply(values)  # type: ignore[no-untyped-call]
    return summed


class SyncedNorm(_BatchNorm):
    """BatchNorm over the batches of all ranks, on a CPU: torch's own, `nn.SyncBatchNorm`, wants a GPU."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"BatchNorm takes two dimensions or more, not {input.dim()}")

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or current().world == 1:
            return super().forward(x)
        over, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
        wide = x if x.dtype == torch.float64 else x.float()
        sums = total(torch.cat([wide.sum(over), wide.new_tensor([x.numel() // x.shape[1]])]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = wide - mean.view(shape)
        variance = total(centred.square().sum(over)) / count
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.detach().to(self.running_mean), share)
            self.running_var.lerp_((variance.detach() * count / (count - 1)).to(self.running_var), share)
        out = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            out = out * self.weight.view(shape)
        return (out if self.bias is None else out + self.bias.view(shape)).to(x.dtype)
