"""Any model: what is masked, what is left alone, and how to say so."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from zosam.lab.models import resnet32
from zosam.optim import SAM
from zosam.optim.masked import mask_of
from zosam.sparse import MEST, SET, Magnitude, Random, RigL
from zosam.sparse.prunable import prunable

from .toy import sgd


class Zoo(nn.Module):
    """Every kind of layer, one tied pair, one frozen."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.conv1d = nn.Conv1d(8, 8, 3, padding=1)
        self.conv3d = nn.Conv3d(1, 2, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, groups=4, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.cross = nn.MultiheadAttention(8, 2, kdim=4, vdim=4)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        h = self.norm(self.embed(tokens))
        h = h + self.conv1d(h.transpose(1, 2)).transpose(1, 2)
        h = self.attention(h, h, h)[0]
        return self.head(self.b(self.frozen(self.a(h)))).mean(1)


def test_all_kinds_of_layers_and_nothing_else():
    model = Zoo()
    sparse = SET(model, sgd(model, 0.1, momentum=0.9), 0.6, every=1, steps=1000)
    assert set(sparse.masks) == {
        "conv1d.weight", "conv3d.weight", "grouped.weight", "up.weight", "attention.in_proj_weight",
        "attention.out_proj.weight", "cross.q_proj_weight", "cross.k_proj_weight", "cross.v_proj_weight",
        "cross.out_proj.weight", "a.weight",
    }  # fmt: skip
    frozen, embed = model.frozen.weight.clone(), model.embed.weight.clone()
    for _ in range(4):
        sparse.optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.arange(10).view(2, 5)), torch.tensor([0, 1])).backward()
        sparse.optimizer.step()
        for name, weight in sparse.weights.items():
            assert not weight.detach()[~sparse.masks[name]].any()
    assert model.b.weight is model.a.weight
    assert torch.equal(model.frozen.weight, frozen)
    assert not torch.equal(model.embed.weight, embed)
    assert set(model.state_dict()) == set(Zoo().state_dict())


@pytest.mark.filterwarnings("ignore:Magnitude has pruned all")
@pytest.mark.parametrize(
    ("settings", "masked"),
    [
        ({"include": ["layer3"]}, 11),
        ({"include": ["layer*.conv1.weight", "fc"]}, 16),
        ({"exclude": ["layer?.0"]}, 34 - 8),
        ({"exclude": [nn.Linear]}, 33),
        ({"exclude": "Conv2d"}, 1),
        ({"dense": ["first", "last", "shortcut"]}, 30),
        ({"dense": "conv1"}, 33),
    ],
)
def test_include_exclude_and_dense(settings, masked):
    model = resnet32()
    sparse = Magnitude(model, sgd(model), 0.9, **settings)
    assert len(sparse.masks) == masked
    everything = sum(w.numel() for w in prunable(model).values())
    seen = sum(w.numel() for w in (*sparse.weights.values(), *sparse.kept_dense.values()))
    assert (seen == everything) == ("dense" in settings)  # what is kept dense counts, what is excluded does not
    assert sparse.sparsity == pytest.approx(0.9, abs=1e-4)


def test_the_table_tells_both_sparsities():
    model = resnet32()
    text = str(MEST(model, sgd(model), 0.9, steps=1000))
    assert "89.40% of all prunable weights are zero (90.00% of the masked ones)" in text
    assert len(text.splitlines()) == 2 + 34
    assert text.count("kept dense") == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"exclude": ["stem"]}, "no prunable weight is called 'stem'; there are 0.weight, 2.weight"),
        ({"budget": "earl"}, "did you mean 'er'"),
        ({"sparsity": 1.0}, "below 1"),
        ({"sparsity": -0.1}, "at least 0"),
        ({"sparsity": 0.99, "dense": ["first"]}, "cannot be reached"),
        ({"sparsity": 0.999, "budget": "uniform"}, "leave no weight in 2.weight"),
        ({"every": 0}, "every must be 1"),
        ({"until": 0.0}, "until must be"),
        ({"steps": 0}, "steps must be"),
        ({"steps": None}, "pass steps="),
        ({"drop_fraction": 1.5}, "drop_fraction"),
        ({"budget": "global"}, "needs a count for each layer"),
        ({"over": "some"}, "over"),
        ({"include": [nn.Conv2d]}, "no prunable weight"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(settings, message):
    model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 3))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=message):
        SET(model, sgd(model), **{"sparsity": 0.5, "steps": 100} | settings)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_models_that_cannot_be_masked():
    embedding, lazy = nn.Embedding(3, 4), nn.Sequential(nn.LazyLinear(5))
    with pytest.raises(ValueError, match="nothing to prune"):
        SET(embedding, sgd(embedding), steps=1000)
    with pytest.raises(ValueError, match="run one batch"):
        SET(lazy, sgd(embedding), steps=1000)
    with pytest.raises(ValueError, match="this very model"):
        SET(nn.Linear(4, 4), sgd(nn.Linear(4, 4)), steps=1000)


def test_one_method_at_a_time():
    model = nn.Linear(10, 10)
    optimizer = SAM(sgd(model, 0.1))
    first = RigL(model, optimizer, 0.5, steps=1000)
    with pytest.raises(ValueError, match="release"):
        RigL(model, optimizer, 0.9, steps=1000)
    first.release()
    second = RigL(model, optimizer, 0.9, steps=1000)
    optimizer.step(lambda: model(torch.ones(1, 10)).square().sum())
    assert second.sparsity == 0.9
    assert not model.weight.detach()[~second.masks["weight"]].any()
    assert mask_of(model.weight) is second.masks["weight"]


def test_a_moving_average_can_be_masked():
    model, average = nn.Linear(10, 10), nn.Linear(10, 10)
    sparse = SET(model, sgd(model), 0.5, steps=1000)
    sparse.apply_to(average)
    assert torch.equal(average.weight != 0, sparse.masks["weight"])


# --- what can be sparse ----------------------------------------------------------------------------------------------


class Conv1D(nn.Module):
    """As transformers has it: a linear layer with the inputs first."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return x @ self.weight + self.bias


class Words(nn.Module):
    """Text: an embedding tied to the head, recurrent layers, a Conv1D, a matrix of no known layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 8)
        self.lstm = nn.LSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.cell = nn.GRUCell(16, 8)
        self.conv = Conv1D(8, 8)
        self.position = nn.Parameter(torch.randn(5, 8))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        h = self.lstm(self.embed(tokens) + self.position)[0]
        return self.head(self.conv(self.cell(h[:, -1])))


TOKENS, NEXT = torch.arange(10).view(2, 5), torch.tensor([0, 1])
WAYS = ("", "_reverse")
RECURRENT = [
    f"lstm.weight_{kind}_l{layer}{way}" for layer in (0, 1) for way in ("", "_reverse") for kind in ("ih", "hh")
]


USUAL = {*RECURRENT, "cell.weight_ih", "cell.weight_hh", "conv.weight"}


def trained(model, sparse, loss, steps=4):
    """Train, and see at every step that what is pruned is zero and that the rest learns."""
    before = {n: w.detach().clone() for n, w in sparse.weights.items()}
    for _ in range(steps):
        sparse.optimizer.zero_grad()
        loss().backward()
        sparse.optimizer.step()
        assert all(not bool(w.detach()[~sparse.masks[n]].any()) for n, w in sparse.weights.items())
    learns = [n for n, w in sparse.weights.items() if bool(w.grad.any())]  # not so what begins from a state of zeros
    assert learns
    assert not any(torch.equal(sparse.weights[n], before[n]) for n in learns)


def words_loss(model):
    return nn.functional.cross_entropy(model(TOKENS), NEXT)


def test_recurrent_layers_and_conv1d():
    model = Words()
    sparse = RigL(model, sgd(model, 0.1, momentum=0.9), 0.5, every=2, steps=100)
    assert set(sparse.masks) == USUAL
    assert {n: why for n, (_, why) in sparse.left_out.items()} == {
        "position": "no layer that is known",
        "embed.weight": "embedding",
    }
    trained(model, sparse, lambda: words_loss(model))


@pytest.mark.parametrize(
    ("include", "masked"),
    [
        ("embed", {"embed.weight"}),
        ("head", {"embed.weight"}),  # the same weight by another name
        ([nn.Embedding], {"embed.weight"}),
        ("position", {"position"}),
        (["*", "Embedding", "position"], {*USUAL, "embed.weight", "position"}),
        (nn.LSTM, set(RECURRENT)),
        ("Conv1D", {"conv.weight"}),
    ],
)  # fmt: skip
def test_any_matrix_by_include(include, masked):
    model = Words()
    sparse = SET(model, sgd(model, 0.5, momentum=0.9), 0.5, every=2, steps=100, include=include)
    assert set(sparse.masks) == masked
    trained(model, sparse, lambda: words_loss(model))
    assert model.head.weight is model.embed.weight


def test_the_real_conv1d():
    layers = pytest.importorskip("transformers.pytorch_utils")
    model = nn.Sequential(layers.Conv1D(6, 8), nn.ReLU(), layers.Conv1D(4, 6))
    sparse = SET(model, sgd(model, 0.1), 0.5, every=2, steps=100)
    assert list(sparse.masks) == ["0.weight", "2.weight"]
    trained(model, sparse, lambda: model(torch.ones(3, 8)).square().sum())


def test_structure_lies_along_the_inputs_and_all_misfits_are_named_at_once():
    model = nn.Sequential(nn.Linear(8, 6), Conv1D(4, 6), nn.Linear(4, 3), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"fit 1\.weight, which keeps its inputs first; 3\.weight \(3 inputs"):
        Magnitude(model, sgd(model), 0.5, pattern="2:4")
    sparse = Magnitude(model, sgd(model), 0.5, pattern="2:4", exclude=["1", "3"])
    assert list(sparse.masks) == ["0.weight", "2.weight"]


def normed(kind):
    torch.manual_seed(0)
    layer = nn.Linear(20, 10)
    if kind == "old spectral_norm":
        layer = torch.nn.utils.spectral_norm(layer)
    elif kind == "old weight_norm":
        with pytest.warns(FutureWarning):
            layer = torch.nn.utils.weight_norm(layer)
    else:
        layer = getattr(torch.nn.utils.parametrizations, kind)(layer)
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(10, 3))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("weight_norm", "0.parametrizations.weight.original1"),
        ("spectral_norm", "0.parametrizations.weight.original"),
        ("old weight_norm", "0.weight_v"),
        ("old spectral_norm", "0.weight_orig"),
    ],
)
def test_a_parametrized_weight_is_zero_where_what_it_is_made_of_is(kind, name):
    model = normed(kind)
    sparse = RigL(model, sgd(model, 0.1, momentum=0.9), 0.6, every=2, steps=100)
    assert list(sparse.masks) == [name, "2.weight"]
    for _ in range(4):
        sparse.optimizer.zero_grad()
        model(torch.ones(4, 20)).square().sum().backward()
        sparse.optimizer.step()
        model(torch.ones(4, 20))
        assert not bool(model[0].weight.detach()[~sparse.masks[name]].any())
    assert bool(model[0].weight.detach()[sparse.masks[name]].any())


def test_what_cannot_be_pruned_as_it_is_comes_with_the_way_out():
    orthogonal = normed("orthogonal")
    with pytest.raises(ValueError, match=r"0\.parametrizations\.weight\.original: its _Orthogonal does not"):
        SET(orthogonal, sgd(orthogonal), 0.5, steps=10)
    assert list(SET(orthogonal, sgd(orthogonal), 0.5, steps=10, exclude="0").masks) == ["2.weight"]

    pruned = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    prune.random_unstructured(pruned[0], "weight", 0.5)
    with pytest.raises(ValueError, match=r"0\.weight_orig: torch prunes it already: .*remove\(module, 'weight'\)"):
        SET(pruned, sgd(pruned), 0.5, steps=10)
    prune.remove(pruned[0], "weight")
    SET(pruned, sgd(pruned), 0.5, steps=10)

    sparse_gradients = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 4))
    with pytest.raises(ValueError, match="its gradient is sparse: make it with sparse=False"):
        SET(sparse_gradients, sgd(sparse_gradients), 0.5, steps=10, include="Embedding")
    SET(sparse_gradients, sgd(sparse_gradients), 0.5, steps=10)


def test_print_names_what_is_left_out_and_the_share_of_the_whole():
    model = Words()
    model.conv.requires_grad_(False)
    model.waves = nn.Parameter(torch.zeros(3, 4, dtype=torch.complex64))
    sparse = SET(model, sgd(model), 0.5, steps=10, exclude="cell", dense="lstm.weight_ih_l0")
    text = str(sparse)
    everything, zeros = sum(p.numel() for p in model.parameters()), sum(int((~m).sum()) for m in sparse.masks.values())
    assert f"{zeros / everything:.2%} of the model's {everything:,} parameters" in text
    assert sparse.model_sparsity == zeros / everything
    for name, why in {
        "embed.weight": "left out: embedding",
        "position": "left out: no layer that is known",
        "conv.weight": "left out: frozen",
        "waves": "left out: not of real numbers",
        "cell.weight_ih": "left out: excluded",
        "lstm.weight_ih_l0": "kept dense",
    }.items():
        assert any(line.split()[0] == name and line.endswith(why) for line in text.splitlines()), name
    with pytest.raises(ValueError, match="waves: masks are for real numbers"):
        SET(model, sgd(model), 0.5, steps=10, include=["*", "waves"])


def test_print_has_the_shares_one_below_the_other():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 100))
    sparse = Random(model, sgd(model), 0.5, budget=lambda _, active: {"0.weight": 16, "1.weight": active - 16})
    shares = [line for line in str(sparse).splitlines() if line.endswith("%")]
    assert [line.split()[-1] for line in shares] == ["100.0%", "48.0%"]
    assert len({len(line) for line in shares}) == 1


@pytest.mark.parametrize("wrap", [lambda m: m, torch.optim.swa_utils.AveragedModel, torch.compile])
def test_masks_apply_to_averages_and_compiled_copies(wrap):
    model, other = Words(), Words()
    sparse = SET(model, sgd(model), 0.5, steps=10)
    copied = wrap(other)
    sparse.apply_to(copied)
    inside = copied.module if hasattr(copied, "module") else other
    for name, mask in sparse.masks.items():
        assert torch.equal(inside.get_parameter(name) != 0, mask), name


def test_masks_do_not_apply_to_another_model_and_nothing_changes():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    sparse = SET(model, sgd(model), 0.5, steps=10)
    for other in (nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))):
        before = [p.clone() for p in other.parameters()]
        with pytest.raises(ValueError, match=r"no copy of the sparse model: .*1\.weight"):
            sparse.apply_to(other)
        assert all(torch.equal(p, b) for p, b in zip(other.parameters(), before, strict=True))


def test_a_weight_that_a_layer_shares_with_another_module_is_masked_in_copies():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.layer = nn.ParameterList([torch.randn(6, 6)]), nn.Linear(6, 6)
            self.layer.weight = self.table[0]

    model = Shared()
    sparse = SET(model, sgd(model), 0.5, steps=1000)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.layer.weight.fill_(1)
    sparse.apply_to(other)
    assert torch.equal(other.table[0] != 0, sparse.masks["layer.weight"])


def test_names_inside_data_parallel_are_plain():
    model = nn.Sequential(nn.Linear(6, 6))
    sparse = SET(nn.DataParallel(model), sgd(model), 0.5, steps=1000)
    assert list(sparse.masks) == ["0.weight"]
    sparse.apply_to(nn.DataParallel(copy.deepcopy(model)))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weight_norm_does_not_divide_by_zero(norm, dim):
    model = nn.Sequential(norm(nn.Linear(12, 12), dim=dim))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="weight_norm divides each slice by its norm"):
        SET(model, sgd(model), 0.95, steps=1000)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    optimizer = sgd(model)
    sparse = SET(model, optimizer, 0.25, steps=100, every=1)
    for _ in range(3):
        model(torch.randn(4, 12)).square().mean().backward()
        optimizer.step()
    assert sparse.sparsity == 0.25
    assert bool(model(torch.randn(4, 12)).isfinite().all())
