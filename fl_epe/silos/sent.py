"""Finds the names of the trained tensors in a reply, so that later models can be read."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_epe.checks import Vector


def arrays_of(content: Any) -> dict[str, np.ndarray]:
    """The arrays in a Flower ``RecordDict``, by their keys."""
    return {
        key: array.numpy()
        for record in content.array_records.values()
        for key, array in record.items()
    }


def names_of_sent(
    arrays: Mapping[str, Any], model: Vector, start: Vector, sizes: np.ndarray
) -> tuple[list[str], str]:
    """The names of a model's tensors in a reply, and a text if some are missing.

    Args:
        arrays: the arrays of the reply, by name.
        model: the trained model, ``(dim,)``.
        start: the model that the silo received, ``(dim,)``.
        sizes: numbers of entries of the model's tensors, in their order.

    Returns:
        The names, which are empty if a tensor is missing, and a text, which is empty if no
        tensor is missing.
    """
    ends = np.cumsum(sizes)[:-1]
    candidates = {name: np.asarray(array) for name, array in arrays.items()}
    names: list[str] = []
    models = np.split(model, ends)
    updates = np.split(model - start, ends)
    for trained, update in zip(models, updates, strict=True):
        for name, array in candidates.items():
            if _equals(array, trained) or _equals(array, update):
                names.append(name)
                del candidates[name]
                break
    missing = len(sizes) - len(names)
    if not missing:
        return names, ""
    return [], (
        f"{missing} of {len(sizes)} trained tensors are not in what the silo sends, or not as they"
        " were trained: they stay in the silo, or something (local DP, compression) changes them"
    )


def _equals(array: np.ndarray, part: Vector) -> bool:
    """Whether an array has the entries of a vector, rounded to the array's precision."""
    if array.size != part.size or array.dtype.kind != "f":
        return False
    return bool(np.array_equal(array.reshape(-1), part.astype(array.dtype)))
