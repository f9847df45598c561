"""CIFAR-10 in a plain torch loop: a ResNet-20 with a tenth of its weights, by RigL and RWP, on the sparse kernels.

zosam data get cifar10          # once
python cifar10.py               # stopped at any moment, the same command goes on
python cifar10.py --small       # the digits, in seconds
"""

import argparse
from pathlib import Path

import torch
from torch.nn import functional as F

import zosam
from zosam import RWP, ZOSAM, RigL
from zosam.lab import data, models


def main() -> None:
    ask = argparse.ArgumentParser(description="Train a sparse network on CIFAR-10.")
    ask.add_argument("--small", action="store_true", help="a small network on the digits")
    ask.add_argument("--optimizer", choices=["rwp", "zosam"], default="rwp")
    ask.add_argument("--sparsity", type=float, default=0.9)
    ask.add_argument("--epochs", type=int)
    ask.add_argument("--checkpoint", type=Path, default=Path("cifar10.pt"))
    args = ask.parse_args()
    epochs = args.epochs or (5 if args.small else 160)

    torch.manual_seed(0)
    if args.small:
        pictures, model = data.digits(batch_size=64), models.digits_net()
    else:
        pictures, model = data.cifar10(batch_size=128), models.resnet20(num_classes=10)
    steps = epochs * len(pictures.train)

    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    optimizer = RWP(base, rho=0.2) if args.optimizer == "rwp" else ZOSAM(base, rho=0.05)
    sparse = RigL(model, optimizer, sparsity=args.sparsity, steps=steps)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    print(sparse)

    done = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # the masks are in there
        schedule.load_state_dict(saved["schedule"])
        done = saved["epochs"]

    example, _ = next(iter(pictures.train.epoch(0)))
    zosam.accelerate(model, sparse, example=example)
    for epoch in range(done, epochs):
        model.train()
        for x, y in pictures.train.epoch(epoch):
            loss = optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))
            schedule.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        torch.save(state | {"epochs": epoch + 1}, args.checkpoint.with_suffix(".new"))
        args.checkpoint.with_suffix(".new").replace(args.checkpoint)  # a kill leaves the old one or the new one
        print(f"epoch {epoch + 1}: loss {loss:.3f}, test accuracy {accuracy(model, pictures.test):.2%}")
    print(f"{sparse.sparsity:.2%} of the weights are zero, {accuracy(model, pictures.test):.2%} accurate")


@torch.no_grad()
def accuracy(model: torch.nn.Module, batches: data.Batches) -> float:
    model.eval()
    right = [(model(x).argmax(1) == y).float() for x, y in batches]
    return torch.cat(right).mean().item()


if __name__ == "__main__":
    main()
