"""A table whose rows belong to 24 owners of uneven size, as a task for `harm.py`.

    python simulations/studies/harm.py --task owners:task --seeds 20

Measurements of 569 breast tumours from scikit-learn, of which the model tells the malign ones. 457
rows are trained on; the largest owner has about ten times as many of them as the smallest.
"""

from __future__ import annotations

import datasets
import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn

from fl_epe.seeding import generator
from fl_epe.tasks import Task, from_datasets

OWNERS = 24


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 2))


def task() -> Task:
    """The task; the same rows and owners in every run."""
    values, kinds = load_breast_cancer(return_X_y=True)
    random = generator(1)
    order = random.permutation(len(values))
    values = (values - values.mean(0)) / values.std(0)
    table = datasets.Dataset.from_dict(
        {
            "x": values[order].astype(np.float32),
            "y": kinds[order],
            "owner": random.choice(
                OWNERS, len(order), p=_sizes() / _sizes().sum()
            ),
        }
    ).with_format("numpy")
    held_out, rows = (
        table.select(range(112)),
        table.select(range(112, len(table))),
    )
    settings = {"noise_multiplier": 0.5, "clients_per_round": 12}
    return from_datasets(
        _model,
        rows,
        inputs="x",
        targets="y",
        partition="by:owner",
        held_out=held_out,
        defaults=settings,
    )


def _sizes() -> np.ndarray:
    return np.geomspace(1, 10, OWNERS)
