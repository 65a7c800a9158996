"""Columns of a `datasets.Dataset` as the tensors that a model is called with.

Whole numbers become int64, real numbers float32, and images float32 of shape (channels, height,
width) in [0, 1]. Rows must be alike: what differs in length has to be padded first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fl_epe.models import Inputs
from fl_epe.tasks.sources import no_progress_bars

if TYPE_CHECKING:
    from datasets import Dataset

Columns = str | Sequence[str] | Mapping[str, str]
"""One column; several that are features of one tensor; or columns by the model's arguments."""


def column_names(columns: Columns) -> list[str]:
    """The names of the columns."""
    if isinstance(columns, str):
        return [columns]
    return list(columns.values() if isinstance(columns, Mapping) else columns)


def check_columns(dataset: Dataset, argument: str, columns: Columns) -> None:
    """Refuse columns that a data set does not have.

    Raises:
        ValueError: names the argument, the column and those that there are.
    """
    for name in column_names(columns):
        if name not in dataset.column_names:
            known = ", ".join(dataset.column_names)
            raise ValueError(f"Expected {argument}={name!r} to be a column of the data: {known}.")


def number_columns(dataset: Dataset) -> list[str]:
    """The columns with a name that hold one number a row; row numbers of pandas are left out."""
    kinds = {name: getattr(feature, "dtype", "") for name, feature in dataset.features.items()}
    return [
        name
        for name, kind in kinds.items()
        if kind.startswith(("int", "uint", "float", "bool"))
        and name
        and not name.startswith(("Unnamed: ", "__index_level_"))
    ]


def read_inputs(dataset: Dataset, columns: Columns) -> Inputs:
    """The inputs of every row.

    Raises:
        ValueError: if a column holds text, rows of different lengths, or numbers that are missing.
    """
    if isinstance(columns, str):
        return read_column(dataset, columns, "inputs")
    if isinstance(columns, Mapping):
        return {name: read_column(dataset, column, "inputs") for name, column in columns.items()}
    features = [read_column(dataset, column, "inputs").float() for column in columns]
    return torch.cat([part[:, None] if part.dim() == 1 else part for part in features], -1)


def read_targets(dataset: Dataset, column: str, classes: Sequence[Any] | None) -> torch.Tensor:
    """The targets of every row; if ``classes`` are given, as the numbers of the classes."""
    if classes is None:
        return read_column(dataset, column, "targets")
    numbers = {value: number for number, value in enumerate(classes)}
    return torch.tensor([numbers[value] for value in dataset[column]], dtype=torch.int64)


def classes_of(parts: Sequence[Dataset], column: str) -> list[Any] | None:
    """The classes of a column of text, sorted; ``None`` if it holds numbers."""
    if getattr(parts[0].features[column], "dtype", "") not in ("string", "large_string"):
        return None
    with no_progress_bars():
        found = {value for part in parts for value in part.unique(column)}
    if None in found:
        raise ValueError(f"Expected targets={column!r} to have a value in every row.")
    return sorted(found)


def class_count(parts: Sequence[Dataset], column: str) -> int | None:
    """How many outputs a classifier of a column needs; ``None`` for real numbers.

    Raises:
        ValueError: if the column holds numbers below 0, or neither numbers nor text.
    """
    if (classes := classes_of(parts, column)) is not None:
        return len(classes)
    values = [read_column(part, column, "targets") for part in parts]
    if values[0].is_floating_point():
        return None
    least = min(int(part.min()) for part in values)
    if least < 0:
        raise ValueError(
            f"Expected targets={column!r} to count classes from 0, got {least}: make it text, or "
            "real numbers to predict them."
        )
    return 1 + max(int(part.max()) for part in values)


def read_column(dataset: Dataset, name: str, argument: str) -> torch.Tensor:
    """One column as a tensor, first axis the rows."""
    from datasets import Image

    feature = dataset.features[name]
    if isinstance(feature, Image):
        return _read_images(dataset, name, argument)
    if getattr(feature, "dtype", "") in ("string", "large_string"):
        raise ValueError(
            f"Expected {argument}={name!r} to hold numbers, got text such as "
            f"{dataset[0][name]!r:.40}: turn it into numbers first, e.g. with a tokenizer and "
            "datasets.Dataset.map."
        )
    values = dataset.with_format("numpy", columns=[name])[:][name] if len(dataset) else np.empty(0)
    values = _alike(values, name, argument)
    if values.dtype.kind in "iub":
        return torch.from_numpy(values.astype(np.int64))
    if values.dtype.kind != "f":
        raise ValueError(f"Expected {argument}={name!r} to hold numbers, got {values.dtype}.")
    if bad := int(np.count_nonzero(~np.isfinite(values).reshape(len(values), -1).all(1))):
        raise ValueError(
            f"Expected {argument}={name!r} to be finite: {bad} of {len(values)} rows have a missing"
            " or infinite value. Fill them in, or leave these rows out."
        )
    return torch.from_numpy(values.astype(np.float32))


def _alike(values: Any, name: str, argument: str) -> np.ndarray:
    if not isinstance(values, np.ndarray) or values.dtype == object:
        shapes = sorted({np.shape(row) for row in values})
        if len(shapes) != 1:
            raise ValueError(
                f"Expected the rows of {argument}={name!r} to have one shape, got {shapes[0]} and "
                f"{shapes[-1]}: pad or cut them, e.g. with datasets.Dataset.map."
            )
        return np.stack([np.asarray(row) for row in values])
    return values


def _read_images(dataset: Dataset, name: str, argument: str) -> torch.Tensor:
    rows = [np.asarray(image) for image in dataset[name]]
    images = _alike(np.empty(0) if not rows else _stacked(rows), name, argument)
    if images.ndim == 3:
        images = images[..., None]
    scaled = np.moveaxis(images, -1, 1).astype(np.float32) / np.float32(255)
    return torch.from_numpy(np.ascontiguousarray(scaled))


def _stacked(rows: list[np.ndarray]) -> Any:
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else rows
