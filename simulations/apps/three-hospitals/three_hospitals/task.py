"""The data of the three hospitals, the model, and its accuracy."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.utils.data import TensorDataset

SPLIT_SEED = 569  # who is where: no secret, and not the seed of any noise
HOSPITALS = {"north": 60, "east": 150, "south": 245}  # records of each; the other 114 are public


class Net(nn.Module):
    """Two dense layers: 2,114 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, measurements: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.layers(measurements)
        return logits


def _parts() -> dict[str, TensorDataset]:
    """The records of each hospital, and those that are public.

    All are standardized by the public ones: what DP-SGD does not see may not depend on a
    hospital's records.
    """
    measurements, diagnoses = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(diagnoses))
    rows = np.split(order, np.cumsum(list(HOSPITALS.values())))
    public = measurements[rows[-1]]
    standardized = (measurements - public.mean(0)) / public.std(0)
    inputs = torch.as_tensor(standardized, dtype=torch.float32)
    targets = torch.as_tensor(diagnoses)
    parts = [TensorDataset(inputs[part], targets[part]) for part in rows]
    return dict(zip([*HOSPITALS, "public"], parts, strict=True))


def hospital_records(name: str) -> TensorDataset:
    """The records of a hospital."""
    return _parts()[name]


@torch.no_grad()
def public_accuracy(model: nn.Module) -> tuple[float, float]:
    """Mean loss and accuracy on the records that no hospital has."""
    measurements, diagnoses = _parts()["public"].tensors
    logits = model(measurements)
    loss = nn.functional.cross_entropy(logits, diagnoses)
    right = logits.argmax(1) == diagnoses
    return loss.item(), right.float().mean().item()
