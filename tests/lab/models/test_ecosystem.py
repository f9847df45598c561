"""The same weights give the same outputs here and in transformers and timm."""

import pytest
import torch

from zosam.lab.models import build, deit_small, deit_tiny, resnet50
from zosam.lab.models.registry import Logits

VIT = {
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "layers": "blocks",
    "attention.o_proj": "attn.proj",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "layernorm": "norm",
    "classifier": "head",
}
RESNET = {
    "embedder.embedder.convolution": "conv1",
    "embedder.embedder.normalization": "bn1",
    **{f"encoder.stages.{i}.layers": f"layer{i + 1}" for i in range(4)},
    "shortcut.convolution": "downsample.0",
    "shortcut.normalization": "downsample.1",
    **{f"layer.{i}.convolution": f"conv{i + 1}" for i in range(3)},
    **{f"layer.{i}.normalization": f"bn{i + 1}" for i in range(3)},
    "classifier.1": "fc",
}


def renamed(state, table):
    """Their state under our names; queries, keys and values become one."""
    out = {}
    for key, value in state.items():
        if ".k_proj." in key or ".v_proj." in key:
            continue
        if ".q_proj." in key:
            value = torch.cat([state[key.replace("q_proj", f"{part}_proj")] for part in "qkv"])
            key = key.replace("attention.q_proj", "attn.qkv")
        key = key.removeprefix("vit.").removeprefix("resnet.")
        for theirs, ours in table.items():
            key = key.replace(theirs, ours)
        out[key] = value
    return out


def shaken(model):
    """Weights and BatchNorm statistics far from their start, so that nothing agrees by being zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                noise = torch.rand(tensor.shape, generator=generator)
                tensor.mul_(0.9 + 0.2 * noise).add_(0.1 * (noise - 0.5) if tensor.dim() == 1 else 0)
    return model.eval()


def same(ours, theirs, size=224):
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        a, b = ours.eval()(x), theirs(x)
    assert b.std() > 0.01
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize(("make", "width", "heads"), [(deit_tiny, 192, 3), (deit_small, 384, 6)])
def test_deit_equals_transformers(make, width, heads):
    # DeiT without the distillation token is transformers' ViT, and its published weights are stored as that
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=1000,
        layer_norm_eps=1e-6,
    )
    theirs = shaken(transformers.ViTForImageClassification(config))
    ours = make()
    ours.load_state_dict(renamed(theirs.state_dict(), VIT))
    same(ours, Logits(theirs))


def test_resnet50_equals_transformers():
    transformers = pytest.importorskip("transformers")
    theirs = shaken(transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000)))
    ours = resnet50()
    ours.load_state_dict(renamed(theirs.state_dict(), RESNET))
    same(ours, Logits(theirs))


@pytest.mark.parametrize(("name", "make"), [("deit_tiny_patch16_224", deit_tiny), ("resnet50", resnet50)])
def test_timm_weights_load_as_they_are(name, make):
    timm = pytest.importorskip("timm")
    theirs = shaken(timm.create_model(name))
    ours = make()
    ours.load_state_dict(theirs.state_dict())
    same(ours, theirs)


def test_timm_by_name():
    pytest.importorskip("timm")
    assert build("timm:resnet18", 7)(torch.zeros(1, 3, 64, 64)).shape == (1, 7)
    with pytest.raises(ValueError, match="no timm model is called"):
        build("timm:resnet18x", 7)


def test_transformers_by_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    config.save_pretrained(tmp_path)
    assert build(f"transformers:{tmp_path}", 7)(torch.zeros(1, 3, 224, 224)).shape == (1, 7)
    with pytest.raises(ValueError, match="transformers:"):
        build(f"transformers:{tmp_path / 'nothing'}", 7)
