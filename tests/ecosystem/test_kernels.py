"""transformers' own BERT and ViT on the sparse kernels: inputs by name, losses and gradients as without."""

from __future__ import annotations

import copy

import pytest
import torch

from zosam.kernels import accelerate, build, choose, report

transformers = pytest.importorskip("transformers")


def networks():
    small = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    bert = transformers.BertConfig(**small, vocab_size=50, max_position_embeddings=16)
    words = {"input_ids": torch.randint(0, 50, (3, 7)), "attention_mask": torch.ones(3, 7, dtype=torch.long)}
    words["attention_mask"][1, 4:] = 0
    yield transformers.BertForSequenceClassification(bert), words
    vit = transformers.ViTConfig(**small, image_size=8, patch_size=4)
    yield transformers.ViTForImageClassification(vit), {"pixel_values": torch.randn(3, 3, 8, 8)}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("training", [True, False])
def test_losses_and_gradients(which, training, monkeypatch):
    if build.load() is None:
        pytest.skip("no sparse kernels on this machine")
    monkeypatch.setattr(choose, "remember", lambda key, measure: 2.0)
    torch.manual_seed(0)
    model, inputs = list(networks())[which]
    model.train(training)
    masks = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2 and "embeddings" not in name:
                masks[name] = torch.rand(p.shape) < 0.5
                p.mul_(masks[name])
    plain = copy.deepcopy(model)
    accelerate(model, masks, inputs)
    assert report(model).count("layers on the kernels") >= 2 * 4
    results = []
    for net in (plain, model):
        torch.manual_seed(1)  # of dropout
        loss = net(**inputs, labels=torch.tensor([0, 1, 0])).loss
        loss.backward()
        gradients = [p.grad * masks.get(n, 1) for n, p in net.named_parameters() if p.grad is not None]
        results.append([loss.detach(), *gradients])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
