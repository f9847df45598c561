"""Real Lightning: windows, clipping, checkpoints and what it logs, against a loop by hand."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional as F

from zosam.optim import OPTIMIZERS, SAM, ZOSAM

L = pytest.importorskip("lightning")
torchmetrics = pytest.importorskip("torchmetrics")
from zosam.integrations.lightning import Ascend  # noqa: E402

NAMES = ["bare", "sgd", "sam", "zosam", "rwp"]
PURE = sorted(n for n in OPTIMIZERS if n != "esam")  # ESAM's closure must know the samples; a trainer's cannot


class Module(L.LightningModule):
    def __init__(self, training, early=False):
        super().__init__()
        self.training_of, self.net, self.calls = training, training.net(), 0
        self.seen, self.optimizer = torchmetrics.MeanMetric(), None
        if early:
            self.configure_optimizers()

    def training_step(self, batch, batch_idx):
        self.calls += 1
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.seen.update(float(len(batch[1])))
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[1]))
        return loss

    def configure_optimizers(self):  # Lightning calls it after the weights of a checkpoint are loaded
        if self.optimizer is None:
            self.optimizer = self.training_of.optimizer(self.net)
            self.sparse = self.training_of.sparse(self.net, self.optimizer)
        return self.optimizer

    def ends_with(self):
        return self.training_of.ends_with(self.net, self.sparse)


def trainer(training, folder, epochs=None, ascend=True, **settings):
    callbacks = [Ascend()] if ascend else []
    return L.Trainer(
        max_epochs=epochs or training.epochs,
        accelerator="cpu",
        accumulate_grad_batches=training.accumulate,
        gradient_clip_val=training.clip,
        default_root_dir=folder,
        **{
            "callbacks": callbacks,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        | settings,
    )


def fit(training, folder, early=False, **settings):
    module = Module(training, early)
    path = settings.pop("ckpt_path", None)
    made = trainer(training, folder, **settings)
    made.fit(module, training.loader, ckpt_path=path)
    return module, made


@pytest.mark.parametrize("name", PURE)
def test_without_the_callback_one_batch_at_a_time_is_a_step_with_a_closure(Training, same, tmp_path, name):
    training = Training(name)
    module, _ = fit(training, tmp_path, ascend=False)
    model = training.net()
    optimizer = training.optimizer(model)
    sparse = training.sparse(model, optimizer)
    for _ in range(training.epochs):
        for x, y in training.loader:
            optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))
    same(module.ends_with(), training.ends_with(model, sparse))
    assert module.calls == pytest.approx(module.optimizer.passes["forward"])


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_it_ends_in_the_bits_of_a_loop_by_hand(Training, same, tmp_path, name, accumulate, clip):
    training = Training(name, accumulate, clip)
    same(fit(training, tmp_path)[0].ends_with(), training.by_hand())


def test_it_is_sam_as_a_page_of_plain_torch_has_it(Training, tmp_path):
    training = Training("sam", 2, 0.3, epochs=1)
    found, expected = fit(training, tmp_path)[0].ends_with(), training.sam_in_plain_torch()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_resumed_in_fresh_objects_it_ends_in_the_bits_of_the_undisturbed_run(Training, same, tmp_path, name, early):
    """Whether the method is made before Lightning loads the weights, or in `configure_optimizers`, after it."""
    training = Training(name, 2, 0.3, epochs=3)
    keep = L.pytorch.callbacks.ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1)
    whole, _ = fit(training, tmp_path, enable_checkpointing=True, callbacks=[Ascend(), keep])
    resumed, _ = fit(training, tmp_path, early, ckpt_path=str(tmp_path / "epoch=0.ckpt"))
    same(whole.ends_with(), resumed.ends_with())
    same(whole.ends_with(), training.by_hand())


def test_the_climb_is_not_logged_and_no_metric_counts_it(Training, tmp_path):
    plain, _ = fit(Training("bare", 2), tmp_path)
    module, made = fit(Training("sam", 2), tmp_path)
    assert module.calls == plain.calls + 6  # three windows in each of two epochs
    assert module.seen.update_count == plain.seen.update_count == plain.calls
    assert module.seen.compute() == plain.seen.compute()
    model, total = Training("sam", 2), []
    net = model.net()
    optimizer = model.optimizer(net)
    model.sparse(net, optimizer)
    for epoch in range(2):
        batches = list(model.loader)
        for i in range(0, len(batches), 2):
            optimizer.ascend(lambda i=i, b=batches: F.cross_entropy(net(b[i][0]), b[i][1]), stay=False)
            optimizer.zero_grad()
            for x, y in batches[i : i + 2]:
                with optimizer.perturbed():
                    loss = F.cross_entropy(net(x), y)
                    (loss / 2).backward()
                total += [float(loss) * len(y)] * epoch
            optimizer.step()
    assert float(made.callback_metrics["loss"]) == pytest.approx(sum(total) / 72, rel=1e-5)


class Between(L.Callback):
    """Looks at the weights wherever Lightning lets others look, in the middle of windows too."""

    def __init__(self):
        self.displaced = []

    def look(self, trainer, module, *_):
        self.displaced.append(module.optimizer.is_displaced)

    on_after_backward = on_before_optimizer_step = on_train_batch_end = on_validation_start = look

    def on_validation_end(self, trainer, module):
        module.optimizer.state_dict()  # as a checkpoint does


@pytest.mark.parametrize("ours_first", [True, False])
def test_whoever_looks_between_micro_batches_sees_clean_weights(Training, same, tmp_path, ours_first):
    training, seen = Training("sam", 2), Between()
    callbacks = [Ascend(), seen] if ours_first else [seen, Ascend()]
    module = Module(training)
    module.validation_step = lambda batch, batch_idx: None
    made = trainer(training, tmp_path, callbacks=callbacks, val_check_interval=1, num_sanity_val_steps=0)
    made.fit(module, training.loader, training.loader)
    after = [d for d in seen.displaced if d]
    # a callback in front of ours still finds the weights where backward has left them
    assert not after if ours_first else len(after) == 10
    same(module.ends_with(), training.by_hand())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_middle_of_a_window_leaves_clean_weights(Training, tmp_path, error):
    module, weights = Module(Training("sam", 2)), []

    class Fail(L.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            weights.append([p.detach().clone() for p in module.net.parameters()])

        def on_before_backward(self, trainer, module, loss):
            if len(weights) == 3:
                assert module.optimizer.is_displaced
                raise error

    made = trainer(module.training_of, tmp_path, callbacks=[Fail(), Ascend()])
    with pytest.raises(SystemExit if error is KeyboardInterrupt else error):
        made.fit(module, module.training_of.loader)
    assert not module.optimizer.is_displaced
    assert not module.optimizer.ascended
    assert all(torch.equal(p, w) for p, w in zip(module.net.parameters(), weights[2], strict=True))


@pytest.mark.parametrize("name", ["sam", "gsam", "zosam"])
def test_half_precision_with_a_scaler_and_clipping(Training, tmp_path, name):
    """In float32 a scaler changes nothing but rounding, and a step that overflows is skipped."""
    training = Training(name, 2, 0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    plugin = L.pytorch.plugins.MixedPrecision("16-mixed", "cpu", scaler=scaler)
    plugin.autocast_context_manager = lambda: torch.autocast("cpu", enabled=False)
    module, _ = fit(training, tmp_path, plugins=[plugin])
    expected = training.by_hand()
    for key, value in module.ends_with().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-3, atol=1e-4)

    class Overflow(L.Callback):
        def on_after_backward(self, trainer, module):
            if trainer.global_step == 1:
                next(module.net.parameters()).grad.fill_(torch.inf)

    training = Training(name, 2, 0.3)
    module, _ = fit(training, tmp_path, plugins=[plugin], callbacks=[Ascend(), Overflow()])
    assert module.optimizer.steps == 5  # of six
    assert all(t.isfinite().all() for t in module.ends_with().values() if t.is_floating_point())


def test_accumulation_without_the_callback_is_refused_with_the_way_out(Training, tmp_path):
    with pytest.raises(RuntimeError, match=r"zosam\.integrations"):
        fit(Training("sam", 2), tmp_path, ascend=False)


@pytest.mark.parametrize("name", ["bare", "sam"])
def test_an_epoch_without_backward_is_refused_before_it_comes(Training, tmp_path, name):
    averaging = L.pytorch.callbacks.StochasticWeightAveraging(1e-2)
    refused = nullcontext() if name == "bare" else pytest.raises(ValueError, match="EMAWeightAveraging")
    with refused:
        fit(Training(name), tmp_path, callbacks=[averaging, Ascend()])
    module, _ = fit(Training(name), tmp_path, callbacks=[L.pytorch.callbacks.EMAWeightAveraging(), Ascend()])
    assert all(t.isfinite().all() for t in module.ends_with().values())


def test_manual_optimization_needs_no_callback(Training, tmp_path):
    module = Module(Training("sam"))
    module.automatic_optimization = False
    with pytest.raises(ValueError, match="leave Ascend"):
        trainer(module.training_of, tmp_path).fit(module, module.training_of.loader)


def test_probes_on_part_of_the_batch(Training, tmp_path):
    """ZOSAM.fast probes an eighth of each batch: the callback takes it."""
    training = Training("zosam", 2)
    module = Module(training)
    made = []

    def configure():
        module.optimizer = ZOSAM.fast(torch.optim.SGD(module.net.parameters(), lr=0.1), rho=0.2)
        made.append(module.optimizer)
        return module.optimizer

    module.configure_optimizers = configure
    loader = torch.utils.data.DataLoader(training.loader.dataset, batch_size=24)
    trainer(training, tmp_path).fit(module, loader)
    assert made[0].steps == 4  # in windows of two and one, twice
    assert made[0].passes["forward"] == 4 + 2 * 2 / 8  # the last of each window; two probes in every second step


def test_a_training_step_without_a_batch_index_that_returns_a_dictionary(Training, same, tmp_path):
    class Other(Module):
        def training_step(self, batch):
            return {"loss": F.cross_entropy(self.net(batch[0]), batch[1])}

    training = Training("sam", 2)
    module = Other(training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(training, tmp_path).fit(module, training.loader)
    same(module.ends_with(), training.by_hand())
    assert isinstance(module.optimizer, SAM)
