"""fully_shard: every rank holds a part of each weight, and the training is that of DistributedDataParallel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from zosam.distributed import sharded_files
from zosam.distributed.fsdp import full_like, local, shared_like, whole
from zosam.distributed.ranks import current
from zosam.lab import models
from zosam.names import fitting
from zosam.optim import ASAM, ESAM, OPTIMIZERS, RWP, ZOSAM, Gaussian, Momentum, Pair, Rademacher, Subspace
from zosam.sparse import METHODS, RigL

from . import even, trials

VARIANTS = {
    **{name: (cls, {}) for name, cls in OPTIMIZERS.items() if name != "esam"},
    "esam": (ESAM, {"gamma": 1.0}),
    "three": (ZOSAM, {"probe": Gaussian(3)}),
    "rademacher": (ZOSAM, {"probe": Rademacher()}),
    "momentum": (ZOSAM, {"probe": Momentum()}),
    "subspace": (ZOSAM, {"probe": Subspace()}),
    "every": (ZOSAM, {"every": 3}),
    "filter": (ZOSAM, {"scale": "filter"}),
    "element": (ASAM, {"eta": 0.1}),
    "arwp": (RWP, {"eta": 1e4}),  # so large that the noise is all but divided by what is summed over filters
}


def sharded(model: nn.Module, by_parts: bool = True) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in model.children() if by_parts else ():
        if any(True for _ in part.parameters()):
            fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def build(name, method=None, settings=None, lr=0.05, base=torch.optim.SGD):
    """A sharded model, its optimizer and masks; the plain ones where there is one process."""
    model = trials.net()
    model = sharded(model) if dist.is_initialized() else model
    cls, own = VARIANTS[name]
    momentum = {"momentum": 0.9} if base is torch.optim.SGD else {}
    optimizer = cls(base(model.parameters(), lr=lr, **momentum), **fitting(cls, rho=0.1), **own)
    sparse = (
        None
        if method is None
        else METHODS[method](model, optimizer, 0.5, **fitting(METHODS[method], steps=1000) | (settings or {}))
    )
    return model, optimizer, sparse


def steps(model, optimizer, first, last):
    for step in range(first, last):
        optimizer.step(trials.closure(model, *trials.shard(*trials.batch(step)), optimizer.per_sample))


def numbers(model):
    return {n: whole(t.detach()).clone().numpy() for n, t in model.state_dict().items()}


def train(names, method, settings):
    found = {}
    for name in names:
        model, optimizer, _ = build(name, method, settings)
        steps(model, optimizer, 0, 4)
        found[name] = numbers(model)
    return found


def agree(per_rank, alone, atol=1e-5):
    for name, state in alone.items():
        for key, value in state.items():
            for rank in per_rank:
                np.testing.assert_allclose(rank[name][key], value, rtol=0, atol=atol, err_msg=f"{name}: {key}")


def test_every_optimizer_takes_the_steps_of_one_process(two):
    agree(two(train, list(VARIANTS), "rigl", {"every": 2}), train(list(VARIANTS), "rigl", {"every": 2}))


def test_and_without_masks(two):
    agree(two(train, ["zosam", "sam", "filter"], None, {}), train(["zosam", "sam", "filter"], None, {}))


SHARDED = sorted(name for name, cls in METHODS.items() if cls.sharded)
SETTINGS = {
    "lth": {"steps": 3, "rewind": 1, "levels": 1},
    "gmp": {"steps": 4, "until": 1.0, "every": 2},
    "random": {},
    "magnitude": {},
}
SETTINGS["mest"] = {"every": 2, "soft": True, "steps": 4, "until": 1.0, "dense": ()}


def test_every_method_that_says_so_keeps_the_masks_of_one_process(two):
    for name in SHARDED:
        settings = SETTINGS.get(name, {"every": 2, "steps": 1000})
        agree(two(train, ["zosam"], name, settings), train(["zosam"], name, settings))


def refusals():
    messages = []
    for name in sorted(set(METHODS) - set(SHARDED)):
        model = sharded(trials.net())
        optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        settings = {"loss": torch.zeros} if name in {"snip", "grasp", "synflow"} else {"steps": 9, "every": 2}
        with pytest.raises(ValueError, match="fully_shard") as caught:
            METHODS[name](model, optimizer, 0.5, **settings)
        messages.append(str(caught.value))
    for name, settings in (("zosam", {"decide": Pair()}), ("sam", {"per_rank": True})):
        model = sharded(trials.net())
        optimizer = OPTIMIZERS[name](torch.optim.SGD(model.parameters(), lr=0.1), **settings)
        with pytest.raises(ValueError, match="all weights on every rank"):
            optimizer.step(trials.closure(model, *trials.shard(*trials.batch()), False))
    return messages


def test_what_needs_whole_weights_is_refused(two):
    for messages in two(refusals):
        assert len(messages) == len(METHODS) - len(SHARDED)


def parts():
    """Parts and wholes of a tensor whose rows do not divide among the ranks, and of one with too few."""
    for rows in (5, 1):
        model = sharded(nn.Linear(3, rows, bias=False))
        weight = model.weight
        full = whole(weight.detach())
        assert full.shape == (rows, 3)
        again = shared_like(full, weight)
        assert torch.equal(local(again), local(weight))
        assert torch.equal(whole(again), full)
        optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.1))
        space = optimizer.active
        assert torch.equal(full_like(space.dense(space.read())[0], weight), full)
        assert float(space.norm(space.read())) == pytest.approx(float(full.norm()))
    return current().rank


def test_parts_make_the_whole(two, four):
    assert two(parts) == [0, 1]
    assert four(parts) == [0, 1, 2, 3]


def epoch(how):
    """One epoch of ZO-SAM and RigL on the digits."""
    torch.manual_seed(0)
    model = models.build("calm", 10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
            module.num_batches_tracked = None
    network = sharded(model) if how == "fsdp" else DistributedDataParallel(model)
    optimizer = ZOSAM(torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9), rho=0.1)
    sparse = RigL(network, optimizer, 0.8, every=3, steps=1000)
    source = even.even(32, rank=current().rank, world=current().world)
    for x, y in source.train.epoch(0):
        optimizer.step(lambda x=x, y=y: F.cross_entropy(network(x), y))
    assert sparse.sparsity == pytest.approx(0.8, abs=1e-3)
    return {n: whole(m).numpy() for n, m in sparse.masks.items()}, numbers(model)


def test_an_epoch_of_zosam_and_rigl_is_that_of_ddp(two):
    (ddp_masks, ddp), _ = two(epoch, "ddp")
    for masks, weights in two(epoch, "fsdp"):
        for name, mask in ddp_masks.items():
            np.testing.assert_array_equal(masks[name], mask)
        for name, value in ddp.items():
            np.testing.assert_allclose(weights[name], value, rtol=0, atol=1e-5, err_msg=name)


def after_eval():
    """A forward without backward leaves whole weights standing; the next pass must not see the old ones."""
    model = sharded(trials.net(), by_parts=False)  # torch lets go of parts by itself, but not of the root's weights
    optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.05), rho=0.1)
    x, y = trials.shard(*trials.batch())
    with torch.no_grad():
        model(x)
    optimizer.ascend(lambda: F.cross_entropy(model(x), y))
    loss = F.cross_entropy(model(x), y)
    space = optimizer.active

    def weights():
        parts = zip(space.dense(space.read()), space.params, strict=True)
        return torch.cat([full_like(t, p).flatten() for t, p in parts])

    displaced = weights()
    loss.backward()
    optimizer.restore()
    plain = trials.net()
    torch.nn.utils.vector_to_parameters(displaced, plain.parameters())
    assert float(loss.detach()) == pytest.approx(float(F.cross_entropy(plain(x), y).detach()), abs=1e-6)
    home = torch.nn.utils.parameters_to_vector(trials.net().parameters()).detach()
    assert torch.equal(weights(), home)


def test_every_pass_sees_the_weights_of_now(two):
    two(after_eval)


RIGL, LTH = ("rigl", {"every": 2}), ("lth", {"steps": 4, "rewind": 1, "levels": 1})  # this one rewinds after the resume
CHECKPOINTED = [
    ("momentum", torch.optim.SGD, RIGL),
    ("looksam", torch.optim.SGD, RIGL),
    ("zosam", torch.optim.AdamW, RIGL),
    ("sam", torch.optim.SGD, LTH),
]


def save(folder, which=CHECKPOINTED):
    for name, base, method in which:
        model, optimizer, _ = build(name, *method, lr=0.02, base=base)
        steps(model, optimizer, 0, 3)
        sharded_files.save(folder / name, model, optimizer)
        with pytest.raises((FileExistsError, SystemExit)):
            sharded_files.save(folder / name, model, optimizer)


def go_on(folder, which=CHECKPOINTED):
    found = {}
    for name, base, method in which:
        model, optimizer, sparse = build(name, *method, lr=0.5, base=base)
        steps(model, optimizer, 20, 21)  # a state of its own, to be overwritten
        sharded_files.load(folder / name, model, optimizer)
        assert optimizer.param_groups[0]["lr"] == 0.02
        steps(model, optimizer, 3, 6)
        assert optimizer.steps == sparse.steps == 6
        found[name] = numbers(model)
    return found


def straight():
    found = {}
    for name, base, method in CHECKPOINTED:
        model, optimizer, _ = build(name, *method, lr=0.02, base=base)
        steps(model, optimizer, 0, 6)
        found[name] = numbers(model)
    return found


def test_a_checkpoint_of_two_ranks_goes_on_with_two_four_and_one(two, four, tmp_path):
    two(save, tmp_path)
    undisturbed = two(straight)
    for resumed, rank in zip(two(go_on, tmp_path), undisturbed, strict=True):  # as many ranks: to the bit
        for name, state in rank.items():
            for key, value in state.items():
                np.testing.assert_array_equal(resumed[name][key], value, err_msg=f"{name}: {key}")
    some = CHECKPOINTED if trials.LONG else CHECKPOINTED[1:3]
    expected = {name: undisturbed[0][name] for name, *_ in some}
    agree(four(go_on, tmp_path, some), expected, atol=2e-5)
    agree([go_on(tmp_path)], undisturbed[0], atol=2e-5)


def test_a_checkpoint_of_another_network_is_refused(two, tmp_path):
    two(save, tmp_path, CHECKPOINTED[:1])
    wider = trials.net()
    first = next(m for m in wider.modules() if isinstance(m, nn.Linear))
    first.weight = nn.Parameter(torch.zeros(first.out_features, first.in_features + 1))
    for model in (nn.Linear(2, 2), wider):
        before = numbers(model)
        with pytest.raises(ValueError, match="another network"):
            sharded_files.load(tmp_path / "momentum", model, ZOSAM(torch.optim.SGD(model.parameters(), lr=0.1)))
        assert all(np.array_equal(before[n], v) for n, v in numbers(model).items())


def test_a_damaged_checkpoint_is_refused_and_none_is_pickle(two, tmp_path):
    two(save, tmp_path, CHECKPOINTED[:1])
    folder = tmp_path / "momentum"
    assert {f.suffix for f in folder.iterdir()} == {".safetensors", ".json"}
    (part, *_) = sorted(folder.glob("*.safetensors"))
    whole_part = part.read_bytes()
    numbers_file = folder / sharded_files.NUMBERS
    right = numbers_file.read_text()
    model, optimizer, _ = build("momentum", *RIGL)
    before = numbers(model)
    for content in (b"", whole_part[:100], whole_part[:-50], b"\xff" * 8 + whole_part[8:]):
        part.write_bytes(content)
        with pytest.raises(ValueError, match="damaged"):
            sharded_files.load(folder, model, optimizer)
    part.unlink()
    with pytest.raises(ValueError, match="parts are missing"):
        sharded_files.load(folder, model, optimizer)
    part.write_bytes(whole_part)
    for text in ("", "[]", "{}", '{"dict": 3}', right.replace('"tensor"', '"tonsor"')):
        numbers_file.write_text(text)
        with pytest.raises(ValueError, match=r"damaged|not"):
            sharded_files.load(folder, model, optimizer)
    assert all(np.array_equal(before[n], v) for n, v in numbers(model).items())
    numbers_file.write_text(right)
    sharded_files.load(folder, model, optimizer)
    assert any(not np.array_equal(before[n], v) for n, v in numbers(model).items())
