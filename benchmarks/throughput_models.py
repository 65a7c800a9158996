"""What `throughput.py` trains: four models with torch's own layers, and synthetic data for them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

BATCH = 16
_WORDS, _CLASSES, _VOCABULARY = 20, 62, 10_004
_TOKENS, _TOKEN_KINDS, _FEATURES, _FEW_CLASSES = 32, 4_000, 64, 10


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is trained, and on how much.

    Attributes:
        model: "cnn", "lstm", "transformer" or "tabular".
        batches: number of batches of 16 examples on each client.
        clients: number of clients.
        cohort: number of clients in a round.
        shortest: fewest words of a sentence; lengths are uniform from there to 20, then padded.
    """

    model: str
    batches: int
    clients: int
    cohort: int
    shortest: int = _WORDS

    def net(self) -> torch.nn.Module:
        """A new model."""
        return _MODELS[self.model]()

    @property
    def own(self) -> bool:
        """Whether it stands for a user's own model: fl_epe has no task of its own for it."""
        return self.model in ("transformer", "tabular")


class Images(torch.nn.Module):
    """The EMNIST CNN with torch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            torch.nn.Conv2d(1, 32, 3),
            torch.nn.Conv2d(32, 64, 3),
        )
        self.dense1, self.dense2 = (
            torch.nn.Linear(9216, 128),
            torch.nn.Linear(128, _CLASSES),
        )
        self.dropout1, self.dropout2 = (
            torch.nn.Dropout(0.25),
            torch.nn.Dropout(0.5),
        )

    def forward(self, x: torch.Tensor) -> Any:
        """Logits."""
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = self.dropout1(functional.max_pool2d(x, 2).flatten(1))
        return self.dense2(self.dropout2(functional.relu(self.dense1(x))))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy; pfl asks for it by this name, and for `metrics`."""
        return functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        """No metrics."""
        return {}


class Words(torch.nn.Module):
    """The StackOverflow LSTM with torch's own layers; one of the two bias vectors is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(_VOCABULARY, 96)
        self.lstm = torch.nn.LSTM(96, 670, batch_first=True)
        self.dense1, self.dense2 = (
            torch.nn.Linear(670, 96),
            torch.nn.Linear(96, _VOCABULARY),
        )
        frozen: Any = self.lstm.bias_hh_l0
        frozen.requires_grad_(False).zero_()

    def forward(self, x: torch.Tensor) -> Any:
        """Logits."""
        return self.dense2(self.dense1(self.lstm(self.embedding(x))[0]))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy; pfl asks for it by this name, and for `metrics`."""
        return functional.cross_entropy(
            self(x).flatten(0, 1), y.flatten(), ignore_index=0
        )

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        """No metrics."""
        return {}


class Tokens(torch.nn.Module):
    """A small transformer that sorts texts into classes: 782,346 parameters, dropout 0.1."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(_TOKEN_KINDS, 128)
        self.positions = torch.nn.Embedding(_TOKENS, 128)
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2)
        self.output = torch.nn.Linear(128, _FEW_CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        """Logits."""
        places = torch.arange(x.shape[1], device=x.device)
        return self.output(
            self.encoder(self.embedding(x) + self.positions(places)).mean(1)
        )

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy; pfl asks for it by this name, and for `metrics`."""
        return functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        """No metrics."""
        return {}


class Table(torch.nn.Module):
    """Two hidden layers of 128 for 64 features: 26,122 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(_FEATURES, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, _FEW_CLASSES),
        )

    def forward(self, x: torch.Tensor) -> Any:
        """Logits."""
        return self.layers(x)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy; pfl asks for it by this name, and for `metrics`."""
        return functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        """No metrics."""
        return {}


_MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "cnn": Images,
    "lstm": Words,
    "transformer": Tokens,
    "tabular": Table,
}


def examples(
    setting: Setting, client: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's inputs and targets."""
    if setting.own:
        return _rows(setting, client)
    random, n = np.random.default_rng((7, client)), setting.batches * BATCH
    if setting.model == "cnn":
        images = torch.from_numpy(random.random((n, 1, 28, 28), np.float32))
        return images, torch.from_numpy(random.integers(0, _CLASSES, n))
    words = random.integers(1, _VOCABULARY, (n, _WORDS + 1))
    words[
        np.arange(_WORDS + 1)
        > random.integers(setting.shortest, _WORDS + 1, n)[:, None]
    ] = 0
    return torch.from_numpy(words[:, :-1].copy()), torch.from_numpy(
        words[:, 1:].copy()
    )


@functools.cache  # a user's data is in memory
def _rows(setting: Setting, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    random, n = np.random.default_rng((7, client)), setting.batches * BATCH
    targets = torch.from_numpy(random.integers(0, _FEW_CLASSES, n))
    if setting.model == "transformer":
        return torch.from_numpy(
            random.integers(0, _TOKEN_KINDS, (n, _TOKENS))
        ), targets
    return torch.from_numpy(
        random.standard_normal((n, _FEATURES), np.float32)
    ), targets
