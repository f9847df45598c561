"""An accelerated model is the same model to everyone who looks at it."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from zosam.kernels import accelerate, choices, choose, report, restore
from zosam.kernels import build as library
from zosam.lab.models import digits_net
from zosam.optim import SAM, ZOSAM, Pair
from zosam.sparse import RigL


def build(masks: Any, sparsity: float = 0.8) -> tuple[nn.Module, Any, Tensor]:
    torch.manual_seed(0)
    model = digits_net()
    return model, masks(model, sparsity), torch.randn(12, 1, 8, 8)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def sparse_way(model: nn.Module) -> bool:
    return "layers on the kernels" in report(model)


def test_same_parameters_keys_and_outputs(always: None, masks: Any) -> None:
    model, sparse, x = build(masks)
    before, keys = dict(model.named_parameters()), list(model.state_dict())
    buffers = [b.clone() for b in model.buffers()]
    expected = copy.deepcopy(model)(x)
    assert accelerate(model, sparse, x) is model
    assert sparse_way(model)
    assert list(model.state_dict()) == keys
    assert all(before[name] is p for name, p in model.named_parameters())
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True))
    close(model(x), expected)


@pytest.mark.parametrize("measured", [True, False])
def test_random_numbers_go_on_as_if_nothing_were_there(measured: bool, always: None, masks: Any) -> None:
    model, sparse, x = build(masks)
    before = torch.get_rng_state()
    accelerate(model, sparse, x, None if measured else {})
    assert torch.equal(torch.get_rng_state(), before)


def test_restore_gives_the_own_forward_back(always: None, masks: Any) -> None:
    model, sparse, x = build(masks)
    expected = model(x)
    restore(accelerate(model, sparse, x))
    assert "forward" not in model.__dict__
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_run_on_their_own(always: None, masks: Any, copied: Callable[[nn.Module], nn.Module]) -> None:
    model, sparse, x = build(masks)
    accelerate(model, sparse, x)
    other = copied(model)
    close(other(x), model(x))
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert not torch.equal(other(x), model(x))
    assert sparse_way(model)


@pytest.mark.parametrize("batch", [1, 3, 12, 33])
@pytest.mark.parametrize("training", [True, False])
def test_any_batch_in_train_and_eval(always: None, masks: Any, batch: int, training: bool) -> None:
    model, sparse, x = build(masks)
    accelerate(model, sparse, x)
    model.train(training)
    plain = restore(copy.deepcopy(model))
    x = torch.randn(batch, 1, 8, 8)
    close(model(x), plain(x))
    with torch.no_grad():
        close(model(x), plain(x))
    for mine, other in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, other)


def test_odd_inputs_are_taken_or_go_the_old_way(always: None, masks: Any) -> None:
    model, sparse, x = build(masks)
    accelerate(model.eval(), sparse, x)
    wide = torch.randn(12, 2, 8, 16)[:, 1:, :, ::2]
    assert not wide.is_contiguous()
    close(model(wide), model(wide.contiguous()))
    assert model(torch.randn(0, 1, 8, 8)).shape == (0, 10)
    with pytest.raises(RuntimeError):
        model(x.double())
    with pytest.raises(RuntimeError):
        model(torch.randn(12, 3, 8, 8))
    model.double()
    assert model(x.double()).dtype == torch.float64
    model.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x).dtype == torch.bfloat16


def test_hooks_still_fire(always: None, masks: Any) -> None:
    model, sparse, x = build(masks)
    accelerate(model, sparse, x)
    seen: list[nn.Module] = []
    conv = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    handle = conv.register_forward_hook(lambda m, i, o: seen.append(m))
    model(x)
    assert seen == [conv]
    handle.remove()
    model(x)
    assert seen == [conv]


def test_changed_masks_and_weights_count(always: None, masks: Any) -> None:
    """Values are read at every pass; the index follows the mask's version."""
    model, sparse, x = build(masks)
    accelerate(model.eval(), sparse, x)
    plain = restore(copy.deepcopy(model))
    with torch.no_grad():
        for name, weight in sparse.weights.items():
            mask = sparse.masks[name]
            mask.copy_(mask.roll(1, 0))
            weight.copy_(torch.randn_like(weight) * 0.3 * mask)
            plain.get_parameter(name).copy_(weight)
    close(model(x), plain(x))


def test_dense_gradient_on_demand(always: None, masks: Any) -> None:
    model, sparse, x = build(masks)
    plain = copy.deepcopy(model)
    accelerate(model, sparse, x)
    plain(x).square().sum().backward()
    for wanted in (True, False):
        model.zero_grad()
        sparse.dense_next = wanted
        model(x).square().sum().backward()
        for name, p in plain.named_parameters():
            assert p.grad is not None
            ours = model.get_parameter(name).grad
            assert ours is not None
            mask = sparse.masks.get(name, torch.ones_like(p, dtype=torch.bool))
            torch.testing.assert_close(ours, p.grad if wanted else p.grad * mask, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("way", ["sgd", "sam", "zosam", "pair", "fast"])
def test_training_goes_the_same_way(always: None, way: str) -> None:
    """Some steps of RigL under each optimizer, with and without the kernels: weights agree, masks are equal."""
    ends = []
    for fast in (False, True):
        torch.manual_seed(0)
        model = digits_net()
        x, y = torch.randn(24, 1, 8, 8), torch.randint(0, 10, (24,))
        base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer = {
            "sgd": lambda base: SAM(base, rho=0.0),
            "sam": lambda base: SAM(base, rho=0.05),
            "zosam": lambda base: ZOSAM(base, rho=0.05),
            "pair": lambda base: ZOSAM(base, rho=0.05, decide=Pair()),
            "fast": lambda base: ZOSAM.fast(base, rho=0.05),
        }[way](base)
        sparse = RigL(model, optimizer, sparsity=0.8, every=2, steps=1000)
        if fast:
            accelerate(model, sparse, x)
            assert sparse_way(model)

        def closure(keep: Any = slice(None), model: nn.Module = model, x: Tensor = x, y: Tensor = y) -> Tensor:
            return F.cross_entropy(model(x[keep]), y[keep])

        losses = [float(optimizer.step(closure)) for _ in range(3)]
        ends.append((losses, [p.detach().clone() for p in model.parameters()], sparse.masks))
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-3)
    same = sum(int((a == b).sum()) for a, b in zip(ends[0][2].values(), ends[1][2].values(), strict=True))
    assert same >= 0.99 * sum(m.numel() for m in ends[0][2].values())


def test_gradients_of_candidates_without_a_dense_one(always: None, masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a method wants it the gradient is torch's, elsewhere zero; and torch computes no weight gradient."""
    model, sparse, x = build(masks)
    plain = copy.deepcopy(model)
    plain(x).square().sum().backward()
    accelerate(model, sparse, x)
    wanted = {n: m | (torch.rand(m.shape) < 0.3) for n, m in sparse.masks.items()}
    sparse.gradient_wanted = wanted.__getitem__
    monkeypatch.setattr("zosam.kernels.operations.dense.torch_backward", lambda *_: pytest.fail("a dense gradient"))
    for dense in (True, False, True):
        model.zero_grad()
        sparse.dense_next = dense
        model(x).square().sum().backward()
        for name, p in plain.named_parameters():
            where = (wanted if dense else sparse.masks).get(name, torch.ones_like(p, dtype=torch.bool))
            assert p.grad is not None
            torch.testing.assert_close(model.get_parameter(name).grad, p.grad * where, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_growing_among_candidates_on_the_kernels(always: None, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """RigL with candidates: on the kernels and in torch the same masks; with all of them those of the dense rule."""
    found = []
    for fast, candidates in ((True, share), (False, share), (False, None if share == 1 else share)):
        torch.manual_seed(0)
        model, x, y = digits_net(), torch.randn(24, 1, 8, 8), torch.randint(0, 10, (24,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        sparse = RigL(model, optimizer, sparsity=0.8, every=2, steps=1000, candidates=candidates)
        if fast:
            accelerate(model, sparse, x)
            assert sparse_way(model)
            monkeypatch.setattr(
                "zosam.kernels.operations.dense.torch_backward", lambda *_: pytest.fail("a dense gradient")
            )
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        found.append(torch.cat([m.flatten() for m in sparse.masks.values()]))
    assert (found[0] == found[1]).float().mean() >= 0.99
    assert torch.equal(found[1], found[2])


def test_weights_edited_before_the_backward_are_refused(always: None, masks: Any) -> None:
    model, sparse, x = build(masks)
    accelerate(model, sparse, x)
    loss = model(x).sum()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_same_bits_for_the_same_threads(always: None, masks: Any) -> None:
    lib = library.load()
    assert lib is not None
    model, sparse, _ = build(masks)
    x = torch.randn(40, 1, 8, 8)
    accelerate(model, sparse, x)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            runs = []
            for team in [lib.team, (None, None)] * 10:  # torch's threads, and our own
                lib.c.zk_use_team(*team)
                model.zero_grad()
                model(x).square().sum().backward()
                runs.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
            assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))
    finally:
        torch.set_num_threads(before)
        lib.c.zk_use_team(*lib.team)


FORK = """
import os, torch
from zosam.kernels import build as library

lib, x = library.load(), torch.randn(64, 3, 4, 4)

def moved():
    out = torch.empty(64 // lib.lanes, 3, 16 * lib.lanes)
    lib.call(library.MOVE, x.data_ptr(), out.data_ptr(), 64, 3, 4, 4, 16 * lib.lanes, *x.stride(), 1, 2)
    return out

before = moved()
child = os.fork()
if not child:  # without the threads of its parent
    os._exit(0 if torch.equal(moved(), before) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_can_use_the_kernels(forked: Any) -> None:
    parent = forked(FORK)
    assert parent.ends() == 0, parent.says()
    assert parent.says().strip() == "0"


class Branching(nn.Module):
    """Code that torch.fx cannot follow around a part that it can."""

    def __init__(self) -> None:
        super().__init__()
        self.net = digits_net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) if x.sum() > -1e9 else self.net(-x)


def test_parts_of_a_model_that_cannot_be_traced(always: None, masks: Any) -> None:
    torch.manual_seed(0)
    model = Branching()
    sparse, x = masks(model, 0.8), torch.randn(12, 1, 8, 8)
    expected = copy.deepcopy(model)(x)
    accelerate(model, sparse, x)
    assert report(model).startswith("net: ")
    close(model(x), expected)


def test_the_report_says_where_torch_runs_all_of_it(always: None, masks: Any) -> None:
    model, sparse, x = build(masks)
    found = choices(accelerate(model, sparse, x))
    without = {part: {t: d if "forward of" in t else None for t, d in r.items()} for part, r in found.items()}
    told = report(accelerate(model, sparse, x, without))
    assert "model: torch runs all of it (training of " in told
    assert "layers on the kernels" in told  # in evaluation


def test_without_kernels_everything_runs_dense_and_says_so(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sparse, x = build(masks)
    monkeypatch.setattr(library, "find", lambda: (None, ["no C compiler"]))
    library.load.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="everything runs dense"):
            accelerate(model, sparse, x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            accelerate(model, sparse, x)  # once is enough
    finally:
        library.load.cache_clear()
    assert report(model) == "not accelerated"
    assert model(x).shape == (12, 10)


def test_distributed(always: None, masks: Any, tmp_path: Path) -> None:
    """DDP finds its gradients through the one autograd function of a region."""
    model, sparse, x = build(masks)
    plain = copy.deepcopy(model)
    accelerate(model, sparse, x)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        nn.parallel.DistributedDataParallel(model)(x).square().sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    plain(x).square().sum().backward()
    for name, p in plain.named_parameters():
        if name not in sparse.masks:
            torch.testing.assert_close(model.get_parameter(name).grad, p.grad, rtol=1e-3, atol=1e-3)


class Twice(nn.Module):
    """One layer at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.relu(self.conv(x)))


def test_a_layer_used_twice_runs_as_before(always: None, masks: Any) -> None:
    model = Twice()
    sparse, x = masks(model, 0.5), torch.randn(4, 3, 6, 6)
    expected = copy.deepcopy(model)(x)
    accelerate(model, sparse, x)
    assert not sparse_way(model)
    close(model(x), expected)


class Baked(nn.Module):
    """A number that a trace fixes for good."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.conv(x) * self.calls


def test_a_trace_that_misses_something_is_not_used(always: None, masks: Any) -> None:
    model = Baked()
    with pytest.warns(RuntimeWarning, match="runs as before"):
        accelerate(model, masks(model, 0.5), torch.randn(4, 3, 6, 6))
    assert not sparse_way(model)


def test_a_replaced_layer_counts(always: None, masks: Any) -> None:
    model, sparse, x = build(masks)
    accelerate(model.eval(), sparse, x)
    assert isinstance(model.head, nn.Linear)
    model.head = nn.Linear(64, 3)
    assert model(x).shape == (12, 3)


def test_weights_that_are_views_with_gaps(always: None, masks: Any) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3))
    sparse, x = masks(model, 0.5), torch.randn(9, 4, 8, 8)
    expected = model(x)
    roomy = torch.zeros(6, 8, 3, 3)
    roomy[:, ::2] = model[0].weight.detach()
    model[0].weight.data = roomy[:, ::2]
    accelerate(model, sparse, x)
    assert sparse_way(model)
    close(model(x), expected)
    model(x).sum().backward()
    assert model[0].weight.grad is not None


def test_tensors_that_stand_for_others_run_as_before(always: None, masks: Any) -> None:
    """Sharded parameters, for one, have no memory of their own to read."""
    from torch.testing._internal.two_tensor import TwoTensor

    model = nn.Sequential(nn.Linear(4, 6))
    sparse, x = masks(model, 0.5), torch.randn(9, 4)
    accelerate(model, sparse, x)
    expected = model(x)
    weight = model[0].weight.detach()
    model[0].weight = nn.Parameter(TwoTensor(weight, weight.clone()))
    out = model(x)
    assert isinstance(out, TwoTensor)
    close(out.a, expected)
    del model[0].weight
    model[0].register_parameter("weight", nn.Parameter(weight))
    close(model(x), expected)


class Layouts(TorchDispatchMode):
    """Notes whether a convolution of torch is given channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default):
            for x in args:
                if isinstance(x, Tensor) and x.dim() == 4 and not x.is_contiguous():
                    self.last.append(tuple(x.shape))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "delicate",
    [
        [nn.Conv2d(6, 10, 1, 2)],
        [nn.Conv2d(6, 6, 3, padding=2, dilation=2)],
        [nn.Conv2d(6, 8, 1), nn.ReLU(), nn.Conv2d(8, 16, 1, 2)],
        [nn.Conv2d(6, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=2, dilation=2)],
    ],
)
@pytest.mark.parametrize("dense", [False, True])
def test_torch_is_handed_the_layout_that_the_user_gave(
    always: None, masks: Any, monkeypatch: pytest.MonkeyPatch, delicate: list[nn.Module], dense: bool
) -> None:
    """Some convolutions write past their memory in channels_last: 1 x 1 with stride 2 and few channels; dilated."""
    if dense:  # layers that torch computes inside a region
        monkeypatch.setattr(choose, "remember", lambda key, measure: 0.5 if " layer " in key else 2.0)
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 1, 2)]
    model = nn.Sequential(*first, nn.Tanh(), *delicate, nn.Tanh(), nn.LazyConv2d(6, 3), nn.ReLU())
    x = torch.randn(9, 3, 16, 16, requires_grad=True)
    model(x)
    sparse = masks(model, 0.5)
    with Layouts() as seen:
        accelerate(model, sparse, x)
        assert sparse_way(model) or dense
        model(x).square().sum().backward()
    assert not seen.last
