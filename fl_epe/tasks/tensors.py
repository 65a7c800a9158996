"""Columns of a data set as tensors: the inputs of a model, and its targets.

Integers become int64, real numbers float32, and images float32 of shape (channels, height,
width) in [0, 1]. All rows must have the same shape, so sequences must be padded first.

Examples:
    >>> import datasets
    >>> rows = datasets.Dataset.from_dict({"x": [0.5, 1.5], "y": ["no", "yes"]})
    >>> read_inputs(rows, ["x"]).tolist()
    [[0.5], [1.5]]
    >>> read_targets(rows, "y", classes_of([rows], "y")).tolist()
    [0, 1]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fl_epe.checks import raise_invalid
from fl_epe.client_ids import blank_as_null
from fl_epe.models import Inputs

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset

Columns = str | Sequence[str] | Mapping[str, str]
"""One column; several that become one tensor's features; or columns by model argument."""

# The value of white by the type of an image; images of other types have 16 bits.
_WHITE = {"uint8": 255, "bool": 1, "float32": 1}
_WHITE_16_BITS = 65535

# If less than one row in this number is selected, the rows are gathered one by one, see
# `arrow_column`.
_MAX_ROWS_PER_SELECTED_ROW = 100


def check_columns(dataset: Dataset, argument: str, columns: Columns) -> None:
    """Refuse columns that a data set does not have.

    Raises:
        ValueError: if a column is missing; the message names the argument, the column and the
            columns of the data set.
    """
    if isinstance(columns, str):
        columns = [columns]
    elif isinstance(columns, Mapping):
        columns = list(columns.values())
    for name in columns:
        if name not in dataset.column_names:
            names = ", ".join(dataset.column_names)
            raise_invalid(
                argument, name, f"to be a column of the data: {names}"
            )


def read_inputs(dataset: Dataset, columns: Columns) -> Inputs:
    """The inputs of every row.

    Raises:
        ValueError: if a column has text, rows of different shapes, or missing numbers.
    """
    if isinstance(columns, str):
        return read_column(dataset, columns, "inputs")
    if isinstance(columns, Mapping):
        return {
            name: read_column(dataset, column, "inputs")
            for name, column in columns.items()
        }
    features = []
    for column in columns:
        feature = read_column(dataset, column, "inputs").float()
        features.append(feature[:, None] if feature.dim() == 1 else feature)
    return torch.cat(features, -1)


def read_targets(
    dataset: Dataset, column: str, classes: Sequence[Any] | None
) -> torch.Tensor:
    """The targets of every row.

    Args:
        dataset: the rows.
        column: the column of the targets.
        classes: the result of `classes_of`, which has every class in ascending order. The targets
            are then the indices of the rows' classes.
    """
    if classes is None:
        return read_column(dataset, column, "targets")
    labels = arrow_column(dataset, column).to_pandas()
    numbers = np.searchsorted(np.asarray(classes, object), labels)
    return torch.from_numpy(numbers.astype(np.int64))


def classes_of(parts: Sequence[Dataset], column: str) -> list[Any] | None:
    """The classes in a column of text, sorted; ``None`` if the column has numbers.

    Args:
        parts: data sets with this column, such as the clients' rows and the held-out rows.
        column: the column of the targets.

    Raises:
        ValueError: if a row has no label.
    """
    if not _is_text(parts[0], column):
        return None
    classes = set[str]()
    for part in parts:
        labels = blank_as_null(arrow_column(part, column))
        if labels.null_count:
            row = int(np.argmax(labels.is_null()))
            if part._indices is not None:
                # The number of the row in the user's data, of which ``part`` is a selection.
                row = part._indices.column(0)[row].as_py()
            missing = (
                f"{labels.null_count:,} have none, such as row {row + 1:,}"
            )
            expected = f"to have a label in every row: {missing}"
            raise_invalid("targets", column, expected)
        classes.update(labels.unique().to_pylist())
    return sorted(classes)


def read_column(dataset: Dataset, name: str, argument: str) -> torch.Tensor:
    """One column as a tensor whose first axis is the rows.

    Args:
        dataset: the rows.
        name: name of the column.
        argument: the argument of `from_datasets` that has this name, for messages.

    Raises:
        ValueError: if the column has text, rows of different shapes, or missing numbers.
    """
    from datasets import Image

    if isinstance(dataset.features[name], Image):
        return _read_images(dataset, name, argument)
    if _is_text(dataset, name):
        values = _numbers_in_text(dataset, name, argument)
    else:
        values = _array(dataset, name)
    values = _stacked(values, name, argument)
    is_integer_or_bool = values.dtype.kind in "iub"
    if is_integer_or_bool:
        return torch.from_numpy(values.astype(np.int64))
    is_real = values.dtype.kind == "f"
    if not is_real:
        raise_invalid(argument, name, f"to hold numbers, got {values.dtype}")
    is_finite = np.isfinite(values).reshape(len(values), -1).all(1)
    if not is_finite.all():
        count = int(np.count_nonzero(~is_finite))
        rows = f"{count} of {len(values)} rows have a missing or infinite value"
        expected = f"to be finite: {rows}. Fill them in, or leave them out"
        raise_invalid(argument, name, expected)
    return torch.from_numpy(values.astype(np.float32))


def _read_images(dataset: Dataset, name: str, argument: str) -> torch.Tensor:
    """Images as float32 of shape (rows, channels, height, width) in [0, 1]."""
    arrays = [np.asarray(image) for image in dataset[name]]
    images = _stacked(arrays, name, argument)
    has_no_channels = images.ndim == 3
    if has_no_channels:
        images = images[..., None]
    white = _WHITE.get(str(images.dtype), _WHITE_16_BITS)
    scaled = np.moveaxis(images, -1, 1).astype(np.float32) / np.float32(white)
    return torch.from_numpy(np.ascontiguousarray(scaled))


def _is_text(dataset: Dataset, column: str) -> bool:
    kind = getattr(dataset.features[column], "dtype", "")
    return kind in ("string", "large_string")


def _numbers_in_text(dataset: Dataset, name: str, argument: str) -> np.ndarray:
    """The numbers in a column of text, such as a column of clients' ids."""
    import pandas

    values = arrow_column(dataset, name).to_pandas()
    try:
        return np.asarray(pandas.to_numeric(values))
    except ValueError as error:
        remedy = "For text, use a tokenizer and Dataset.map"
        raise_invalid(
            argument, name, f"to hold numbers, got text ({error}). {remedy}"
        )


def arrow_column(dataset: Dataset, name: str) -> pyarrow.ChunkedArray:
    """The values of a column, in the order of the rows.

    `datasets` gathers selected rows one by one, which takes seconds for a million rows. So the
    selection is taken from the whole column, unless it has less than 1% of its rows.
    """
    column = dataset.data.column(name)
    if dataset._indices is None:
        return column
    if len(dataset) < len(column) / _MAX_ROWS_PER_SELECTED_ROW:
        return dataset.with_format("arrow", columns=[name])[:].column(name)
    return column.take(dataset._indices.column(0))


def _array(dataset: Dataset, name: str) -> Any:
    """A column as one array if it has numbers, or lists of equal length.

    Otherwise it is what `datasets` returns in NumPy's format, which may be an array of objects.
    """
    from pyarrow import ExtensionType, compute, types

    values = arrow_column(dataset, name).combine_chunks()
    shape = [len(values)]
    # Each pass removes one level of nested lists, if all lists of this level are equally long.
    while types.is_list(values.type) or types.is_fixed_size_list(values.type):
        lengths = compute.list_value_length(values).unique().to_pylist()
        if len(lengths) != 1 or lengths[0] is None:
            break
        shape += lengths
        values = values.flatten()
    if types.is_nested(values.type) or isinstance(values.type, ExtensionType):
        return dataset.with_format("numpy", columns=[name])[:][name]
    return values.to_numpy(zero_copy_only=False).reshape(shape)


def _stacked(rows: Any, name: str, argument: str) -> np.ndarray:
    """The values of all rows, which must have the same shape, as one array."""
    if isinstance(rows, np.ndarray) and rows.dtype != object:
        return rows
    shapes = sorted({np.shape(row) for row in rows})
    if len(shapes) > 1:
        remedy = "pad or cut them, e.g. with datasets.Dataset.map"
        raise_invalid(
            argument,
            name,
            f"to have rows of one shape, got {shapes[0]} and {shapes[-1]}: {remedy}",
        )
    return np.stack([np.asarray(row) for row in rows])
