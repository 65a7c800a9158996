"""Handwritten digits that come with scikit-learn: a federated task that needs no download."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional

from fl_epe.models import Cnn
from fl_epe.seeding import generator
from fl_epe.tasks.contract import Task
from fl_epe.tasks.examples import ClientData
from fl_epe.tasks.losses import Classes
from fl_epe.tasks.partition import check_split, dirichlet_partition, stratified_split

_MIN_EXAMPLES = 4
_HELD_OUT = 0.2


@dataclasses.dataclass(frozen=True)
class Digits(Classes, Task):
    """UCI digits (1,797 images 8×8 of 10 classes, Alpaydin & Kaynak 1998) for the EMNIST CNN.

    A fifth of each class is held out; the rest is split over the clients with different label
    shares and sizes, at least 4 examples each. Images are scaled to 28×28 with values in [0, 1].

    Attributes:
        num_clients: how many clients share the training examples, at most 359.
        alpha: concentration of the clients' label shares (Dirichlet).
        data_seed: seed of the held-out part and of the split.
    """

    name: ClassVar[str] = "digits"
    num_clients: int = 120
    alpha: float = 0.5
    data_seed: int = 0

    def __post_init__(self) -> None:
        check_split(self.num_clients, self.alpha, self.data_seed)

    def model(self) -> torch.nn.Module:
        """A fresh EMNIST CNN."""
        return Cnn()

    def client(self, client_id: int) -> ClientData:
        """Images of shape (n, 1, 28, 28) and labels of shape (n,)."""
        self.check_client(client_id)
        return _load(self)[0][client_id]

    def sizes(self, client_ids: np.ndarray) -> np.ndarray:
        """See `Task.sizes`."""
        clients = _load(self)[0]
        return np.array([len(clients[client]) for client in client_ids], np.int64)

    def held_out(self) -> ClientData:
        """The fifth that no client has."""
        return _load(self)[1]


@functools.lru_cache(maxsize=4)
def _load(task: Digits) -> tuple[list[ClientData], ClientData]:
    """The clients' examples and the held-out ones."""
    images, labels = _images()
    random = generator(task.data_seed)
    training, held_out = stratified_split(labels, _HELD_OUT, random)
    parts = dirichlet_partition(
        labels[training], task.num_clients, alpha=task.alpha, minimum=_MIN_EXAMPLES, random=random
    )

    def select(indices: np.ndarray) -> ClientData:
        return ClientData(images[torch.from_numpy(indices)], torch.from_numpy(labels[indices]))

    return [select(training[part]) for part in parts], select(held_out)


@functools.lru_cache(maxsize=1)
def _images() -> tuple[torch.Tensor, np.ndarray]:
    """All images, float32 (1797, 1, 28, 28) in [0, 1], and their labels, int64 (1797,)."""
    bunch = load_digits()
    small = torch.from_numpy(bunch.images.astype(np.float32) / 16)[:, None]
    images = functional.interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    return images, bunch.target.astype(np.int64)
