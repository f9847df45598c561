"""Several processes train one sparse network: wrap it in DistributedDataParallel, and change nothing else.

torchrun --nproc-per-node 4 ddp.py              # one GPU for each, or CPUs
torchrun --nproc-per-node 2 ddp.py --small      # the digits, in seconds
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from zosam import ZOSAM, RigL
from zosam.distributed.ranks import leave
from zosam.lab import data, models


def main() -> None:
    ask = argparse.ArgumentParser(description="Train a sparse network on several processes.")
    ask.add_argument("--small", action="store_true", help="a small network on the digits, on CPUs")
    ask.add_argument("--epochs", type=int)
    args = ask.parse_args()
    epochs = args.epochs or (5 if args.small else 160)

    gpu = torch.cuda.is_available() and not args.small
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if gpu else torch.device("cpu")

    torch.manual_seed(0)  # the same weights everywhere
    if args.small:
        pictures, network = data.digits(64 // world, rank=rank, world=world), models.digits_net()
    else:
        pictures, network = data.cifar10(128 // world, device=device, rank=rank, world=world), models.resnet32(10)
    model = DistributedDataParallel(network.to(device))

    optimizer = ZOSAM(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4), rho=0.05)
    steps = epochs * len(pictures.train)
    sparse = RigL(model, optimizer, sparsity=0.9, steps=steps)  # every rank decides the same masks
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    for epoch in range(epochs):
        model.train()
        for x, y in pictures.train.epoch(epoch):
            optimizer.step(lambda x=x, y=y: F.cross_entropy(model(x), y))
            schedule.step()

    network.eval()
    with torch.no_grad():
        right = sum((network(x).argmax(1) == y).sum() for x, y in pictures.test)
        found = torch.tensor([float(right), float(sum(len(y) for _, y in pictures.test))], device=device)
    dist.all_reduce(found)  # every rank has tested its share
    if rank == 0:
        accuracy = found[0] / found[1]
        print(f"{world} ranks, {sparse.sparsity:.2%} of the weights are zero, {accuracy:.2%} accurate")


if __name__ == "__main__":
    main()
    leave()  # when no model is left: a thread of gloo's that outlives Python may abort at exit
