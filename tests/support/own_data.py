"""Small data sets and models for tests of tasks of one's own."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import torch
from torch import nn

SMALL: dict[str, Any] = {
    "rounds": 3,
    "clients_per_round": 4,
    "num_canaries": 2,
    "canary_participations": 1,
    "unobserved": 8,
    "local_epochs": 1,
    "delta": 0.1,
}
"""Settings of a run of under a second."""


def rows(count: int = 60, classes: int = 3) -> datasets.Dataset:
    """Rows with four features that tell the class, and the user whose they are."""
    random = np.random.default_rng(0)
    labels = random.integers(0, classes, count)
    features = random.standard_normal((count, 4)).astype("float32")
    features[np.arange(count), labels % 4] += 4
    return datasets.Dataset.from_dict(
        {
            "x": features.tolist(),
            "y": labels.tolist(),
            "user": [i % 10 for i in range(count)],
            "first part": features[:, 0].tolist(),
            "word": [f"class {'cab'[label % 3]}" for label in labels],
        }
    )


def net() -> nn.Module:
    """A multilayer perceptron of four features and three classes."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def normalised() -> nn.Module:
    """The same with BatchNorm."""
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    )


class TwoInputs(nn.Module):
    """Called with two named tensors; has a parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(1, 3)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(
        self, left: torch.Tensor, right: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Logits in a mapping, as Hugging Face's models return them."""
        return {"logits": self.left(left) + self.right(right[:, None])}


class Tied(nn.Module):
    """Two layers of one weight, the first layer's bias frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (
            nn.Linear(4, 4),
            nn.Linear(4, 4),
            nn.Linear(4, 3),
        )
        self.second.weight = self.first.weight
        nn.init.constant_(self.first.bias, 0.3).requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits."""
        hidden = torch.tanh(self.second(torch.tanh(self.first(inputs))))
        logits: torch.Tensor = self.last(hidden)
        return logits


class Noisy(nn.Module):
    """Draws from torch's own generator while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.linear = nn.AlphaDropout(0.5), nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.linear(self.drop(inputs))
        return logits
