"""A small real task for fast tests: linear softmax regression on synthetic clusters."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional

from fl_epe.tasks import ClientData, LossSum, Task

CLASSES = 5


@dataclasses.dataclass(frozen=True)
class Tiny(Task):
    """Ten examples a client; some clients can be told to fail."""

    name: ClassVar[str] = "tiny"
    clients: int = 20
    inputs: int = 400
    raising: tuple[int, ...] = ()
    poisoned: tuple[int, ...] = ()

    @property
    def num_clients(self) -> int:
        return self.clients

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(self.inputs, CLASSES)

    def client(self, client_id: int) -> ClientData:
        self.check_client(client_id)
        if client_id in self.raising:
            raise OSError(f"disk of client {client_id} is gone")
        data = _examples(self.inputs, client_id)
        if client_id in self.poisoned:
            data.inputs[0, 0] = torch.nan
        return data

    def held_out(self) -> ClientData:
        return _examples(self.inputs, 10**6)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:
        return LossSum(
            loss=functional.cross_entropy(outputs, targets, reduction="sum"),
            correct=int((outputs.argmax(1) == targets).sum()),
            examples=len(targets),
        )


@functools.cache
def _centres(inputs: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((CLASSES, inputs))


def _examples(inputs: int, number: int) -> ClientData:
    rng = np.random.default_rng((17, number))
    targets = rng.integers(0, CLASSES, 10)
    values = _centres(inputs)[targets] + rng.standard_normal((10, inputs))
    return ClientData(
        torch.tensor(values, dtype=torch.float32), torch.tensor(targets)
    )
