"""The EMNIST CNN of the federated-learning literature."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import functional

from fl_epe.models.dropout import SeededDropout
from fl_epe.models.parameters import glorot_values


class Cnn(torch.nn.Module):
    """Images of 28×28 to 62 classes: 1,206,590 parameters (Reddi et al. 2021, Andrew et al. 2024).

    conv 3×3×32, relu, conv 3×3×64, relu, max-pool 2, dropout ¼, dense 128, relu, dropout ½,
    dense 62; no padding. It has 62 outputs also for data with fewer classes, such as digits.
    """

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.conv1 = torch.nn.Conv2d(1, 32, 3)
            self.conv2 = torch.nn.Conv2d(32, 64, 3)
            self.dense1 = torch.nn.Linear(9216, 128)
            self.dense2 = torch.nn.Linear(128, 62)
        self.dropout1 = SeededDropout(0.25)
        self.dropout2 = SeededDropout(0.5)
        self.to_empty(device="cpu")

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of shape (n, 62) for images of shape (n, 1, 28, 28)."""
        # With channels last, max-pooling is ten times as fast and the convolutions a fifth faster.
        x = inputs.reshape(-1, 28, 28, 1).permute(0, 3, 1, 2)
        x = functional.relu_(self.conv1(x))
        # relu and max-pool commute, and relu is cheaper after the pooling.
        x = functional.relu_(functional.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.flatten(1))
        x = self.dropout2(functional.relu_(self.dense1(x)))
        return self.dense2(x)  # type: ignore[no-any-return]

    def initial_values(self, random: np.random.Generator) -> Iterator[np.ndarray]:
        """Glorot uniform weights and zero biases, in the order of `parameters`."""
        return glorot_values(self, random)
