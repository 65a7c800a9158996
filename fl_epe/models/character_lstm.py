"""The Shakespeare LSTM of the federated-learning literature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch

from fl_epe.models.parameters import glorot_values


class CharacterLstm(torch.nn.Module):
    """Predicts the character after 80: 819,920 parameters (McMahan 2017, Caldas et al. 2018).

    Embedding of 8, two LSTM layers of 256 units (each with torch's two bias vectors), dense 80.

    Args:
        characters: size of the alphabet.
    """

    def __init__(self, characters: int = 80) -> None:
        super().__init__()
        with torch.device("meta"):
            self.embedding = torch.nn.Embedding(characters, 8)
            self.lstm = torch.nn.LSTM(8, 256, num_layers=2, batch_first=True)
            self.dense = torch.nn.Linear(256, characters)
        self.to_empty(device="cpu")

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of shape (n, characters) for ids of shape (n, 80)."""
        states, _ = self.lstm(self.embedding(inputs))
        return cast(torch.Tensor, self.dense(states[:, -1]))

    def initial_values(self, random: np.random.Generator) -> Iterator[np.ndarray]:
        """Glorot uniform weights and zero biases, in the order of `parameters`."""
        return glorot_values(self, random)
