"""Images of the tasks of this package, all clients together, as plain arrays."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from fl_epe.tasks import load_task

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
CLASSES = 10
"""Of both tasks."""


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
    """Images of 10 classes as rows of pixels in [0, 1].

    Attributes:
        name: of the data.
        inputs: of the training images, shape (n, pixels).
        labels: their classes, shape (n,).
        test_inputs: of the held-out images.
        test_labels: their classes.
    """

    name: str
    inputs: Floats
    labels: Labels
    test_inputs: Floats
    test_labels: Labels


def read_images(task: str, **options: object) -> Images:
    """The images of ``"digits"`` or ``"fashion-mnist"``, in an order drawn from a fixed seed.

    Args:
        task: its name.
        options: of the task, such as ``data_dir``.

    Raises:
        FileNotFoundError: if its files are missing; the message says where to get them.
        ModuleNotFoundError: if a package that the task needs is not installed.
        ValueError: if a file is broken.
    """
    loaded = load_task(task, **{"num_clients": 20, **options})
    parts = [
        _arrays(loaded.client(client)) for client in range(loaded.num_clients)
    ]
    inputs, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.random.default_rng(0).permutation(len(labels))
    return Images(
        task, inputs[order], labels[order], *_arrays(loaded.held_out())
    )


def _arrays(data: object) -> tuple[Floats, Labels]:
    inputs, targets = (
        np.asarray(getattr(data, name)) for name in ("inputs", "targets")
    )
    return inputs.reshape(len(inputs), -1).astype(np.float64), targets.astype(
        np.int64
    )
