"""The model, the data, and one client's training and testing."""

from typing import TypeAlias

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

SPLIT_SEED = 2024
TEST_IMAGES = 360

Images: TypeAlias = "Subset[tuple[Tensor, ...]]"


class Net(nn.Module):
    """Two convolutions and two dense layers: 38,282 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.features(images).flatten(1))
        return logits


def _digits() -> tuple[TensorDataset, list[int]]:
    """All images (8×8, from 0 to 1) with their labels, and an order that is the same everywhere."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    return TensorDataset(pixels, torch.tensor(labels)), order.tolist()


def test_images() -> Images:
    """The images that no client holds."""
    digits, order = _digits()
    return Subset(digits, order[:TEST_IMAGES])


def client_images(partition_id: int, num_partitions: int) -> tuple[Images, Images]:
    """A client's images: four fifths to train on, the rest to evaluate on."""
    digits, order = _digits()
    mine = Subset(digits, order[TEST_IMAGES + partition_id :: num_partitions])
    training, held_out = random_split(mine, [0.8, 0.2], torch.Generator().manual_seed(partition_id))
    return training, held_out


def train(
    model: nn.Module, images: Images, epochs: int, batch_size: int, learning_rate: float
) -> float:
    """Train in place with SGD; returns the mean loss per image."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    loader = DataLoader(images, batch_size, shuffle=True)
    model.train()
    total = 0.0
    for _ in range(epochs):
        for pixels, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(labels)
    return total / (epochs * len(images))


@torch.no_grad()
def test(model: nn.Module, images: Images) -> tuple[float, float]:
    """Mean loss and accuracy."""
    model.eval()
    total, right = 0.0, 0
    for pixels, labels in DataLoader(images, batch_size=128):
        logits = model(pixels)
        total += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        right += int((logits.argmax(1) == labels).sum())
    return total / len(images), right / len(images)
