"""The 1,797 handwritten 8 x 8 digits that scikit-learn ships: real data with nothing to download."""

from __future__ import annotations

import torch

from zosam.lab.data.batches import Data, Size, Tensors

SIZE = Size(1437, 360, 10, (1, 8, 8))


def digits(
    batch_size: int = 64, seed: int = 0, device: torch.device | str = "cpu", rank: int = 0, world: int = 1
) -> Data:
    """Handwritten digits, 8 x 8, 10 classes; 1,437 to train on and 360 to test, embedded."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    x = torch.as_tensor(pictures, dtype=torch.float32).view(-1, 1, 8, 8)
    x = ((x - x.mean()) / x.std()).to(device)
    y = torch.as_tensor(labels, dtype=torch.long).to(device)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(device)  # the split never changes
    train, test = order[: SIZE.train], order[SIZE.train :]
    return Data(
        train=Tensors(x[train], y[train], batch_size, shuffle=True, seed=seed, rank=rank, world=world),
        test=Tensors(x[test], y[test], batch_size=SIZE.test, rank=rank, world=world),
        classes=SIZE.classes,
        shape=SIZE.shape,
    )
