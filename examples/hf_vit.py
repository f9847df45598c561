"""transformers: a vision transformer under its Trainer, sparse by SViTE; AscendMixin climbs before each step.

python hf_vit.py --model google/vit-base-patch16-224-in21k     # any ViT of the hub, or a folder; on CIFAR-10
python hf_vit.py --small                                       # a tiny one from scratch, on the digits
"""

import argparse

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from zosam import ZOSAM, SViTE
from zosam.integrations.transformers import AscendMixin
from zosam.lab import data

TINY = ViTConfig(
    hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128, image_size=16, patch_size=4,
    num_labels=10,
)  # fmt: skip


class SharpnessAwareTrainer(AscendMixin, Trainer):
    """The Trainer, with a climb before its own forward and backward."""


class Pictures(torch.utils.data.Dataset):
    """What the Trainer takes: one picture at a time, as large as the network wants it."""

    def __init__(self, batches: data.Batches, size: int) -> None:
        self.size = size
        self.x, self.y = (torch.cat(part) for part in zip(*batches, strict=True))

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        x = F.interpolate(self.x[i : i + 1], size=self.size, mode="bilinear")[0]
        return {"pixel_values": x.expand(3, -1, -1), "labels": self.y[i]}


def main() -> None:
    ask = argparse.ArgumentParser(description="Fine-tune a sparse vision transformer.")
    ask.add_argument("--small", action="store_true", help="a tiny network on the digits")
    ask.add_argument("--model", default="google/vit-base-patch16-224-in21k")
    ask.add_argument("--sparsity", type=float, default=0.5)
    args = ask.parse_args()

    torch.manual_seed(0)
    if args.small:
        pictures, model = data.digits(), ViTForImageClassification(TINY)
    else:
        pictures, model = data.cifar10(), ViTForImageClassification.from_pretrained(args.model, num_labels=10)
    train, test = (Pictures(b, model.config.image_size) for b in (pictures.train, pictures.test))

    epochs, batch = (10, 64) if args.small else (10, 128)
    steps = epochs * -(-len(train) // batch)
    optimizer = ZOSAM(torch.optim.AdamW(model.parameters(), lr=3e-3 if args.small else 5e-5), rho=0.05)
    sparse = SViTE(model, optimizer, args.sparsity, steps=steps, every=max(10, steps // 20))
    settings = TrainingArguments(
        "vit", num_train_epochs=epochs, per_device_train_batch_size=batch, report_to=[], save_strategy="no",
        use_cpu=args.small,
    )  # fmt: skip
    trainer = SharpnessAwareTrainer(model, settings, train_dataset=train, optimizers=(optimizer, None))
    trainer.train()
    right = trainer.predict(test).predictions.argmax(1) == test.y.numpy()
    print(f"{sparse.sparsity:.2%} of the weights are zero, {right.mean():.2%} accurate")


if __name__ == "__main__":
    main()
