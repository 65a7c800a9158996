"""`from_datasets`: a task from any torch module and any `datasets.Dataset`.

Examples:
    >>> import datasets, torch
    >>> rows = {"x": [[0.0], [1.0], [2.0]] * 4, "y": [0, 1, 1] * 4, "user": list("aabbcc") * 2}
    >>> task = from_datasets(
    ...     model=lambda: torch.nn.Linear(1, 2),
    ...     dataset=datasets.Dataset.from_dict(rows),
    ...     inputs="x",
    ...     targets="y",
    ...     partition="by:user",
    ...     held_out=0.25,
    ... )
    >>> task.num_clients, task.dim, len(task.held_out())
    (3, 4, 3)
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import re
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fl_epe.checks import raise_invalid
from fl_epe.data import absolute
from fl_epe.models import call_model, prepared
from fl_epe.tasks import losses, partitions, tables, tensors
from fl_epe.tasks.contract import Task

if TYPE_CHECKING:
    from datasets import Dataset
    from flwr_datasets.partitioner import Partitioner

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of a batch's outputs and targets, with the mean over the batch as its result."""

# Largest size of the clients' tensors, in bytes, for which all stay in memory. Larger data is read
# client by client.
_MAX_IN_MEMORY = 2 << 30


def from_datasets(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    dataset: tables.Source,
    *,
    inputs: tensors.Columns,
    targets: str,
    partition: str | Partitioner,
    num_clients: int | None = None,
    held_out: str | float | Dataset | None = None,
    loss: Loss | None = None,
    metric: Loss | None = None,
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> DatasetTask:
    """A task from your model and your data, to train and audit.

    Data is read when it is first needed.

    Args:
        model: a module, whose values are those of the initial model (a trained one, for
            example), or a class or function without arguments that makes one, whose values are
            drawn from the run's seed. Parameters with ``requires_grad=False`` are not trained.
            Outputs may be a tensor, an object or mapping with ``logits``, or a tuple whose
            first entry is used.
        dataset: a `datasets.Dataset` or `datasets.DatasetDict`, a function without arguments
            that returns one, the id of a hub's data set, or a local file (CSV, TSV, JSON lines,
            LEAF's JSON, Parquet) or folder (of such files, of images, or saved by
            ``save_to_disk``).
        inputs: the column that is the model's input; a list of columns that become the features
            of one tensor; or a mapping from the model's arguments to columns. Integers become
            int64 and real numbers float32, also if they are stored as text. Images become
            float32 of shape (channels, height, width) in [0, 1].
        targets: the column of the targets. Text becomes classes in alphabetical order, and no
            label may be blank.
        partition: how rows are partitioned among clients: "by:COLUMN" (a client for each value
            of a column, which has text or integers), "iid:CLIENTS", "dirichlet:ALPHA" (clients
            of equal size whose shares of the targets are drawn from a Dirichlet distribution,
            as by Hsu et al. 2019), or a partitioner of flwr-datasets that has no data yet.
            Random partitions always have the same seed.
        num_clients: number of clients, only for "dirichlet".
        held_out: rows that no client has: the name of a split, a share in (0, 1) that is drawn
            from all rows, or a data set. By default the split "test" or "validation", or a
            tenth.
        loss: mean loss of a batch, ``loss(outputs, targets)``. By default cross-entropy for
            integer targets (the classes are the last axis of the outputs, or the second as in
            torch's own losses; targets of −100 are ignored), and the mean squared error for
            real ones.
        metric: mean of a batch, ``metric(outputs, targets)``, reported under the function's
            name. By default accuracy for integer targets, and none for real ones.
        defaults: settings of `RunConfig` that suit this task.

    Raises:
        ValueError: for an invalid ``partition``, ``held_out`` or ``model``. A column or value
            that the data lack is reported when they are read.
    """
    # At this point, `locals` has the arguments and nothing else.
    arguments = types.SimpleNamespace(**locals())
    # A mapping proxy, the default, cannot be pickled.
    arguments.defaults = dict(defaults)
    partitions.check_partition(partition, num_clients)
    if isinstance(held_out, float | int) and not 0 < held_out < 1:
        raise_invalid(
            "held_out", held_out, "in (0, 1), a split's name or a data set"
        )
    if not isinstance(model, torch.nn.Module) and not callable(model):
        raise_invalid("model", model, "to be a torch.nn.Module, or to make one")
    if isinstance(dataset, str | os.PathLike):
        arguments.dataset = absolute(dataset)
    return DatasetTask(arguments)


class DatasetTask(Task):
    """The task that `from_datasets` makes of its arguments.

    Attributes:
        arguments: the arguments by their names. They are not attributes of the task, as ``model``,
            ``loss`` and ``held_out`` are its methods, and ``metric`` is the name of its metric.
    """

    def __init__(self, arguments: types.SimpleNamespace) -> None:
        self.arguments = arguments
        self.defaults = arguments.defaults  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        """The state without the data, which another process reads again."""
        return {"arguments": self.arguments, "defaults": self.defaults}

    def options(self) -> dict[str, Any]:
        """The arguments in words, or the options with which `load_task` made the task."""
        if self._loader is not None:
            return super().options()
        values = {
            name: _words(value) for name, value in vars(self.arguments).items()
        }
        del values["defaults"]
        return values

    @functools.cached_property
    def metric(self) -> str:  # type: ignore[override]
        """See `Task.metric`."""
        metric = self.arguments.metric
        if metric is not None:
            return str(getattr(metric, "__name__", type(metric).__name__))
        if self.held_out().targets.is_floating_point():
            return ""
        return "accuracy"

    @functools.cached_property
    def unit(self) -> str:  # type: ignore[override]
        """The name of the column of clients' ids, without "_id", "Id" or the like at its end.

        Without such a column it is "client".
        """
        column = partitions.owner_column(self.arguments.partition)
        name = re.sub(r"(?<=.)([ _-]id|Id|ID)$", "", column)
        return name.replace("_", " ").strip() or "client"

    @functools.cached_property
    def _datasets(self) -> tuple[Dataset, Dataset]:
        """The clients' rows, and the held-out rows."""
        arguments = self.arguments
        column = partitions.owner_column(arguments.partition)
        parts = tables.open_source(
            arguments.dataset, arguments.held_out, column
        )
        for rows in parts:
            tensors.check_columns(rows, "inputs", arguments.inputs)
            tensors.check_columns(rows, "targets", arguments.targets)
        return parts

    @functools.cached_property
    def _row_numbers(self) -> list[np.ndarray]:
        """For each client the indices of its rows among the clients' rows."""
        arguments = self.arguments
        clients_rows, _ = self._datasets
        return partitions.client_rows(
            clients_rows,
            arguments.partition,
            targets=arguments.targets,
            num_clients=arguments.num_clients,
        )

    @functools.cached_property
    def _classes(self) -> list[Any] | None:
        return tensors.classes_of(self._datasets, self.arguments.targets)

    @functools.cached_property
    def _all_clients(self) -> losses.ClientData | None:
        """All clients' rows as tensors; ``None`` if they are larger than `_MAX_IN_MEMORY`."""
        rows, _ = self._datasets
        first_row = self._read(rows.select([0]))
        row_size = sum(part.nbytes for part in first_row.tensors().values())
        if row_size * len(rows) <= _MAX_IN_MEMORY:
            return self._read(rows)
        return None

    def _read(self, rows: Dataset) -> losses.ClientData:
        return losses.ClientData(
            tensors.read_inputs(rows, self.arguments.inputs),
            tensors.read_targets(rows, self.arguments.targets, self._classes),
        )

    @property
    def num_clients(self) -> int:
        """The number of clients of the partition, which is known after reading the data."""
        return len(self._row_numbers)

    def model(self) -> torch.nn.Module:
        """A copy of the user's module, or a fresh one, whose output is one tensor."""
        source: Any = self.arguments.model
        model: Any = source if isinstance(source, torch.nn.Module) else source()
        # A function may return the same module each time.
        if not inspect.isclass(source):
            model = copy.deepcopy(model)
        if not isinstance(model, torch.nn.Module):
            kind = type(model).__name__
            raise TypeError(
                f"Expected model to make a torch.nn.Module, got {kind}."
            )
        model.register_forward_hook(_one_tensor)
        return model

    def client(self, client_id: int) -> losses.ClientData:
        """The rows of one client."""
        self.check_client(client_id)
        numbers = self._row_numbers[client_id]
        if self._all_clients is None:
            clients_rows, _ = self._datasets
            return self._read(clients_rows.select(numbers))
        index = torch.from_numpy(numbers)
        return self._all_clients.map(lambda part: part[index])

    def sizes(self, client_ids: np.ndarray) -> np.ndarray:
        """See `Task.sizes`."""
        sizes = [len(self._row_numbers[client]) for client in client_ids]
        return np.array(sizes, np.int64)

    def held_out(self) -> losses.ClientData:
        """The rows that no client has."""
        return self._held_out

    @functools.cached_property
    def _held_out(self) -> losses.ClientData:
        _, held_out_rows = self._datasets
        return self._read(held_out_rows)

    def notes(self) -> list[str]:
        """See `Task.notes`; missing values, and classes without an output, are refused."""
        # If memory allows, this property reads every row, and so finds missing values.
        _ = self._all_clients
        notes = super().notes()
        column = self.arguments.targets
        targets = [
            tensors.read_targets(rows, column, self._classes).flatten()
            for rows in self._datasets
        ]
        all_targets = torch.cat(targets)
        if self.arguments.loss is None and not all_targets.is_floating_point():
            example = self.held_out().map(lambda part: part[:1])
            model = prepared(self.model).eval()
            with torch.no_grad():
                outputs = call_model(model, example.inputs)
            logits = losses.with_classes_last(outputs, example.targets)
            losses.check_classes(all_targets, logits.shape[-1], column)
        return notes

    def loss(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> losses.LossSum:
        """The user's or the default loss and metric, as sums over the predictions.

        With the default loss, ``examples`` of the result is the number of predictions that are not
        ignored. With a user's loss, it is the number of examples. A user's loss or metric is a
        mean, and is multiplied by this number. Without a metric, ``correct`` is 0.
        """
        mean_loss = self.arguments.loss
        mean_metric = self.arguments.metric
        correct: float | torch.Tensor = 0
        count: int | torch.Tensor = len(targets)
        if mean_loss is None:
            parts = losses.default_by_example(outputs, targets)
            loss, correct, count = (part.sum() for part in parts)
        else:
            loss = count * _one_number("loss", mean_loss(outputs, targets))
        if mean_metric is not None:
            with torch.no_grad():
                mean = _one_number("metric", mean_metric(outputs, targets))
            correct = float(mean) * int(count)
        elif mean_loss is not None and self.metric:
            # The user's loss, with the default metric.
            _, correct_by_example, _ = losses.default_by_example(
                outputs.detach(), targets
            )
            correct = correct_by_example.sum()
        return losses.LossSum(loss, correct, count)

    def by_example(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> losses.ByExample | None:
        """See `Task.by_example`; ``None`` if the user defines a loss or a metric."""
        if self.arguments.loss is not None or self.arguments.metric is not None:
            return None
        return losses.default_by_example(outputs, targets)


def _one_tensor(
    _model: torch.nn.Module, _inputs: Any, outputs: Any
) -> torch.Tensor:
    """A forward hook: the model's output as one tensor, its ``logits`` or the first of several."""
    if hasattr(outputs, "logits"):
        outputs = outputs.logits
    elif isinstance(outputs, Mapping) and "logits" in outputs:
        outputs = outputs["logits"]
    elif isinstance(outputs, tuple | list):
        outputs = outputs[0]
    if not isinstance(outputs, torch.Tensor):
        kind = type(outputs).__name__
        raise TypeError(
            f"Expected the model to return a tensor, or something with logits, got {kind}."
        )
    return outputs


def _one_number(name: str, value: torch.Tensor) -> torch.Tensor:
    """The value of a user's loss or metric, as a tensor without axes.

    A plain number, which has no shape, is returned as it is.
    """
    shape = tuple(getattr(value, "shape", ()))
    if shape not in ((), (1,)):
        raise ValueError(
            f"Expected the {name} to be one number, the mean of the batch, got shape {shape}"
        )
    if shape:
        return value.reshape(())
    return value


def _words(value: Any) -> str | float | None:
    """A short text for a model, data set, function or partitioner; plain values stay."""
    if value is None or isinstance(value, str | float | int):
        return value
    if type(value) in (list, tuple, dict):
        return str(value)
    name = getattr(value, "__qualname__", type(value).__name__)
    rows = f" of {len(value):,} rows" if hasattr(value, "column_names") else ""
    return f"{name}{rows}"
