"""The model, the data, and one client's training, in NumPy: a message starts a process.

So the table of digits is read from where scikit-learn has it, which is not imported.
"""

import importlib.util
from pathlib import Path
from typing import TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

Weights: TypeAlias = dict[str, NDArray[np.float32]]
Images: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64]]

TEST_IMAGES = 360


def new_model() -> Weights:
    """Weights (64, 10) and bias (10,), all zero."""
    return {
        "weight": np.zeros((64, 10), np.float32),
        "bias": np.zeros(10, np.float32),
    }


def as_weights(arrays: ArrayRecord) -> Weights:
    """The arrays of a message."""
    return {
        name: array.numpy().astype(np.float32) for name, array in arrays.items()
    }


def as_arrays(weights: Weights) -> ArrayRecord:
    """The inverse of `as_weights`."""
    return ArrayRecord({name: Array(value) for name, value in weights.items()})


def _digits() -> Images:
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "Expected scikit-learn to be installed, which has the digits."
        )
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    return table[:, :-1] / np.float32(16), table[:, -1].astype(np.int64)


def test_images() -> Images:
    """The images that no client holds, (n, 64) from 0 to 1, and their labels."""
    images, labels = _digits()
    return images[:TEST_IMAGES], labels[:TEST_IMAGES]


def client_images(partition_id: int, num_partitions: int) -> Images:
    """A client's images and labels."""
    images, labels = _digits()
    mine = slice(TEST_IMAGES + partition_id, None, num_partitions)
    return images[mine], labels[mine]


def _log_chances(
    weights: Weights, images: NDArray[np.float32]
) -> NDArray[np.float32]:
    scores = images @ weights["weight"] + weights["bias"]
    scores -= scores.max(axis=1, keepdims=True)
    chances: NDArray[np.float32] = scores - np.log(
        np.exp(scores).sum(axis=1, keepdims=True)
    )
    return chances


def train(
    weights: Weights, data: Images, epochs: int, learning_rate: float
) -> Weights:
    """Descend along the gradient of all images so many times."""
    (images, labels), weights = data, dict(weights)
    for _ in range(epochs):
        error = np.exp(_log_chances(weights, images))
        error[np.arange(len(labels)), labels] -= 1
        error *= learning_rate / len(labels)
        weights["weight"] = weights["weight"] - images.T @ error
        weights["bias"] = weights["bias"] - error.sum(axis=0)
    return weights


def test(weights: Weights, data: Images) -> dict[str, float]:
    """Mean loss and accuracy."""
    images, labels = data
    chances = _log_chances(weights, images)
    loss = -float(np.mean(chances[np.arange(len(labels)), labels]))
    return {
        "loss": loss,
        "accuracy": float(np.mean(chances.argmax(axis=1) == labels)),
    }
