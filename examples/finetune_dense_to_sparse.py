"""A trained dense network becomes a sparse one: GMP prunes it little by little while RWP trains it on.

python finetune_dense_to_sparse.py --weights dense.pt     # a state_dict of a ResNet-20 trained on CIFAR-10
python finetune_dense_to_sparse.py --small                # trains a dense network on the digits first
"""

import argparse
from pathlib import Path

import torch
from torch.nn import functional as F

import zosam
from zosam import GMP, RWP, SharpnessAware, Unperturbed
from zosam.lab import data, models


def main() -> None:
    ask = argparse.ArgumentParser(description="Prune a trained network while it trains on.")
    ask.add_argument("--small", action="store_true", help="a small network on the digits")
    ask.add_argument("--weights", type=Path, default=Path("dense.pt"))
    ask.add_argument("--sparsity", type=float, default=0.9)
    ask.add_argument("--epochs", type=int)
    ask.add_argument("--out", type=Path, default=Path("sparse.safetensors"))
    args = ask.parse_args()
    epochs = args.epochs or (6 if args.small else 40)

    torch.manual_seed(0)
    if args.small:
        pictures, model = data.digits(batch_size=64), models.digits_net()
        train(model, Unperturbed(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)), pictures, 3)
        model.zero_grad()
    else:
        pictures, model = data.cifar10(batch_size=128), models.resnet20(num_classes=10)
        model.load_state_dict(torch.load(args.weights, weights_only=True))
    print(f"dense: {accuracy(model, pictures.test):.2%} accurate")

    # A tenth of the learning rate that trained it: the weights are good, and should stay near.
    optimizer = RWP(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4), rho=0.1)
    steps = epochs * len(pictures.train)
    sparse = GMP(model, optimizer, args.sparsity, steps=steps, every=max(1, steps // 50), dense="last")
    train(model, optimizer, pictures, epochs)
    zosam.save(model, args.out)  # without its zeros; zosam.load(path, model) takes it back
    print(f"{sparse.sparsity:.2%} of the weights are zero, {accuracy(model, pictures.test):.2%} accurate")
    print(f"{args.out}: {args.out.stat().st_size:,} bytes of {sum(p.nbytes for p in model.parameters()):,}")


def train(model: torch.nn.Module, optimizer: SharpnessAware, pictures: data.Data, epochs: int) -> None:
    for epoch in range(epochs):
        model.train()
        for x, y in pictures.train.epoch(epoch):
            optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))


@torch.no_grad()
def accuracy(model: torch.nn.Module, batches: data.Batches) -> float:
    model.eval()
    right = [(model(x).argmax(1) == y).float() for x, y in batches]
    return torch.cat(right).mean().item()


if __name__ == "__main__":
    main()
