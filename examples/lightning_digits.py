"""Lightning: automatic optimization calls step(closure), which is all that a sharpness-aware optimizer needs.

python lightning_digits.py
python lightning_digits.py --small     # two epochs
"""

import sys

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

from zosam import RWP, RigL


class Digits(lightning.LightningModule):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> RWP:
        optimizer = RWP(torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9), rho=0.2)
        self.sparse = RigL(
            self.net, optimizer, sparsity=0.9, steps=self.steps
        )  # Lightning's checkpoints hold the masks
        return optimizer


def main() -> None:
    epochs = 2 if "--small" in sys.argv else 15
    lightning.seed_everything(0)
    pictures, labels = load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    train, test = random_split(TensorDataset(x, torch.tensor(labels)), [1437, 360])
    loader = DataLoader(train, batch_size=64, shuffle=True)

    module = Digits(steps=epochs * len(loader))
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_model_summary=False)
    trainer.fit(module, loader)
    found = trainer.test(module, DataLoader(test, batch_size=360))
    print(f"{module.sparse.sparsity:.2%} of the weights are zero, {found[0]['accuracy']:.2%} accurate")


if __name__ == "__main__":
    main()
