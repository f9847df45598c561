"""transformers' real Trainer: windows, clipping, checkpoints, against a loop by hand."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from zosam.integrations.transformers import AscendMixin
from zosam.optim import GSAM, SAM, ZOSAM

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from accelerate.state import AcceleratorState, GradientState  # noqa: E402

NAMES = ["bare", "sgd", "sam", "zosam", "rwp"]


@pytest.fixture(autouse=True)
def _afresh():
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


class Trainer(AscendMixin, transformers.Trainer):
    def _get_train_sampler(self, *_):
        return None  # in order, as the loop by hand


class Classifier(nn.Module):
    """What transformers' Trainer wants: a model that returns its loss."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Rows(torch.utils.data.Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x, y = self.data[i]
        return {"x": x, "labels": y}


def arguments(folder, **settings):
    return transformers.TrainingArguments(
        output_dir=str(folder),
        **{
            "per_device_train_batch_size": 16,
            "lr_scheduler_type": "constant",
            "report_to": [],
            "save_strategy": "no",
            "use_cpu": True,
            "max_grad_norm": 0.0,
            "disable_tqdm": True,
            "logging_steps": 1000,
        }
        | settings,
    )


class Made:
    """A Trainer around one training."""

    def __init__(self, training, folder, kind=Trainer, **settings):
        self.training, self.model = training, Classifier(training.net())
        self.optimizer = training.optimizer(self.model)
        self.sparse = training.sparse(self.model, self.optimizer)
        self.trainer = kind(
            model=self.model,
            args=arguments(
                folder,
                num_train_epochs=training.epochs,
                gradient_accumulation_steps=training.accumulate,
                max_grad_norm=training.clip or 0.0,
                **settings,
            ),
            train_dataset=Rows(training.loader.dataset),
            optimizers=(self.optimizer, None),
        )

    def train(self, **where):
        self.trainer.train(**where)
        assert not getattr(self.optimizer, "ascended", False)
        return self.training.ends_with(self.model, self.sparse)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_it_ends_in_the_bits_of_a_loop_by_hand(Training, same, tmp_path, name, accumulate, clip):
    training = Training(name, accumulate, clip)
    found = Made(training, tmp_path).train()
    same(found, training.by_hand(divide_by_length=True, model=Classifier(training.net())))


@pytest.mark.parametrize("at", [3, 4])  # the end of an epoch, and the middle of one
@pytest.mark.parametrize("name", NAMES)
def test_resumed_in_fresh_objects_it_ends_in_the_bits_of_the_undisturbed_run(Training, same, tmp_path, name, at):
    training = Training(name, 2, 0.3, epochs=3)
    whole = Made(training, tmp_path, save_strategy="steps", save_steps=1).train()
    resumed = Made(training, tmp_path).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    same(whole, resumed)
    same(whole, training.by_hand(divide_by_length=True, model=Classifier(training.net())))


@pytest.mark.parametrize("name", ["sam", "gsam", "zosam"])
def test_a_scaler_changes_nothing_but_rounding_and_skips_what_overflows(Training, tmp_path, name):
    class Scaled(Trainer):
        spoil = False

        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            if self.spoil and self.state.global_step == 1:
                self.model.net[0].weight.grad.fill_(torch.inf)
            return loss

    training = Training(name, 2)
    found = Made(training, tmp_path, Scaled).train()
    expected = training.by_hand(divide_by_length=True, model=Classifier(training.net()))
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-3, atol=1e-4)
    made = Made(training, tmp_path, Scaled)
    made.trainer.spoil = True
    found = made.train()
    assert made.optimizer.steps == 5  # of six
    assert all(t.isfinite().all() for t in found.values() if t.is_floating_point())


def tiny(seed=0):
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
    )
    return transformers.BertForTokenClassification(config)


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        words = torch.randint(20, (8,), generator=torch.Generator().manual_seed(i))
        labels = words % 2
        labels[: i % 5] = -100  # so that micro-batches differ in how many labels they have
        return {"input_ids": words, "attention_mask": torch.ones(8, dtype=torch.long), "labels": labels}


@pytest.mark.parametrize("make", [SAM, GSAM, ZOSAM, ZOSAM.fast], ids=["sam", "gsam", "zosam", "zosam.fast"])
def test_a_real_model_with_dropout_resumes_bit_for_bit(Training, same, tmp_path, make):
    """Windows of two micro-batches, divided by the number of labels in both, with half a batch at the end."""

    def start(**settings):
        model = tiny()
        optimizer = make(torch.optim.AdamW(model.parameters(), lr=1e-2), rho=0.1)
        sparse = Training("sam").sparse(model, optimizer)
        more = arguments(tmp_path, gradient_accumulation_steps=2, num_train_epochs=2, **settings)
        return model, sparse, Trainer(model=model, args=more, train_dataset=Sentences(), optimizers=(optimizer, None))

    def found(model, sparse):
        return {**model.state_dict(), **{f"mask of {n}": m for n, m in sparse.masks.items()}}

    model, sparse, trainer = start(save_strategy="steps", save_steps=1)
    trainer.train()
    first = {n: t.clone() for n, t in found(model, sparse).items()}
    model, sparse, trainer = start()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    same(first, found(model, sparse))


def test_the_mean_over_all_labels_of_a_window_is_what_sam_descends_on(tmp_path):
    """By hand: climb along the gradient of the first micro-batch, then the mean over all labels of the window."""
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    torch.manual_seed(0)
    model, plain = (transformers.LlamaForCausalLM(config) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.5), rho=0.2)
    more = arguments(tmp_path, gradient_accumulation_steps=2, max_steps=1)
    Trainer(model=model, args=more, train_dataset=Sentences(), optimizers=(optimizer, None)).train()

    rows = [Sentences()[i] for i in range(32)]
    batches = [{k: torch.stack([r[k] for r in rows[i : i + 16]]) for k in rows[0]} for i in (0, 16)]

    def total(batch):
        logits = plain(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")

    labels = sum(int((b["labels"][:, 1:] != -100).sum()) for b in batches)
    params = list(plain.parameters())
    grads = torch.autograd.grad(total(batches[0]), params)
    length = torch.stack([g.norm() for g in grads]).norm()
    home = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, g in zip(params, grads, strict=True):
            p += 0.2 / length * g
    grads = torch.autograd.grad((total(batches[0]) + total(batches[1])) / labels, params)
    with torch.no_grad():
        for p, h, g in zip(params, home, grads, strict=True):
            p.copy_(h - 0.5 * g)
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_without_the_mixin_it_is_said_once_that_nothing_climbs(Training, tmp_path):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Made(Training("sam"), tmp_path, transformers.Trainer).train()
    assert sum("zosam.integrations.transformers" in str(w.message) for w in said) == 1


def test_an_exception_in_a_micro_batch_leaves_clean_weights(Training, tmp_path):
    made = Made(Training("sam", 2), tmp_path)
    weights = []

    def fail(module, inputs):
        if made.optimizer.is_displaced:
            raise KeyboardInterrupt

    made.model.register_forward_pre_hook(fail)
    weights = [p.detach().clone() for p in made.model.parameters()]
    with pytest.raises(KeyboardInterrupt):
        made.trainer.train()
    assert all(torch.equal(p, w) for p, w in zip(made.model.parameters(), weights, strict=True))
