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
import math
import os
import re
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fl_epe.checks import check_not_negative, raise_invalid
from fl_epe.data import absolute
from fl_epe.models import call_model, prepared
from fl_epe.tasks import losses, tables
from fl_epe.tasks.contract import Task

if TYPE_CHECKING:
    from datasets import Dataset
    from flwr_datasets.partitioner import Partitioner

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of a batch's outputs and targets, with the mean over the batch as its result."""

# Clients' tensors of up to so many bytes stay in memory; larger data is read client by client.
_MEMORY = 2 << 30

_PARTITIONS = (
    "to be 'by:COLUMN' (a client for each value of a column), 'iid:CLIENTS', 'dirichlet:ALPHA' "
    "(ALPHA > 0) with num_clients, or a flwr_datasets.partitioner.Partitioner"
)


def from_datasets(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    dataset: tables.Source,
    *,
    inputs: tables.Columns,
    targets: str,
    partition: str | Partitioner,
    num_clients: int | None = None,
    held_out: str | float | Dataset | None = None,
    loss: Loss | None = None,
    metric: Loss | None = None,
    data_seed: int = 0,
    unit: str | None = None,
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
        data_seed: seed of the partition and of the held-out rows.
        unit: a word for one client in reports, such as "hospital". By default the name of the
            column of clients' ids, without "_id" at its end, else "client".
        defaults: settings of `RunConfig` that suit this task.

    Raises:
        ValueError: for an invalid ``partition``, ``held_out`` or ``data_seed``. A column or
            value that the data lack is reported when they are read.
    """
    arguments = types.SimpleNamespace(**locals())
    # A mapping proxy cannot be pickled.
    arguments.defaults = dict(defaults)
    check_partition(partition, num_clients)
    if isinstance(held_out, float | int) and not 0 < held_out < 1:
        raise_invalid(
            "held_out", held_out, "in (0, 1), a split's name or a data set"
        )
    check_not_negative("data_seed", data_seed)
    if not isinstance(model, torch.nn.Module) and not callable(model):
        raise_invalid("model", model, "to be a torch.nn.Module, or to make one")
    if isinstance(dataset, str | os.PathLike):
        arguments.dataset = absolute(dataset)
    return DatasetTask(arguments)


def check_partition(
    partition: str | Partitioner, num_clients: int | None
) -> None:
    """Refuse an invalid partition, without reading data or importing packages.

    Raises:
        ValueError: if it is invalid; the message names the argument and its valid forms.
    """
    kind = ""
    is_valid = hasattr(partition, "load_partition")
    if isinstance(partition, str):
        kind, _, value = partition.partition(":")
        match kind:
            case "by":
                is_valid = value != ""
            case "iid":
                is_valid = value.isdecimal() and int(value) >= 1
            case "dirichlet":
                is_valid = _is_positive(value)
    if not is_valid:
        raise_invalid("partition", partition, _PARTITIONS)
    if kind == "dirichlet" and (num_clients is None or num_clients < 1):
        raise_invalid(
            "num_clients", num_clients, f">= 1 beside partition={partition!r}"
        )
    if kind != "dirichlet" and num_clients is not None:
        raise_invalid(
            "num_clients", num_clients, "only beside 'dirichlet:ALPHA'"
        )


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


class DatasetTask(Task):
    """The task that `from_datasets` makes of its arguments."""

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
        """See `Task.unit`."""
        column = tables.owner_column(self.arguments.partition)
        return self.arguments.unit or _unit_of(column)

    @functools.cached_property
    def _parts(self) -> tuple[Dataset, Dataset]:
        arguments = self.arguments
        parts = tables.open_source(
            arguments.dataset,
            arguments.held_out,
            arguments.data_seed,
            tables.owner_column(arguments.partition),
        )
        for rows in parts:
            tables.check_columns(rows, "inputs", arguments.inputs)
            tables.check_columns(rows, "targets", arguments.targets)
        return parts

    @functools.cached_property
    def _rows(self) -> list[np.ndarray]:
        arguments = self.arguments
        return tables.client_rows(
            self._parts[0],
            arguments.partition,
            targets=arguments.targets,
            seed=arguments.data_seed,
            num_clients=arguments.num_clients,
        )

    @functools.cached_property
    def _classes(self) -> list[Any] | None:
        return tables.classes_of(self._parts, self.arguments.targets)

    @functools.cached_property
    def _tensors(self) -> losses.ClientData | None:
        """All rows of the clients as tensors; ``None`` if they are too large for the memory."""
        rows = self._parts[0]
        row = self._read(rows.select([0]))
        row_size = sum(part.nbytes for part in row.tensors().values())
        if row_size * len(rows) <= _MEMORY:
            return self._read(rows)
        return None

    def _read(self, rows: Dataset) -> losses.ClientData:
        return losses.ClientData(
            tables.read_inputs(rows, self.arguments.inputs),
            tables.read_targets(rows, self.arguments.targets, self._classes),
        )

    @property
    def num_clients(self) -> int:
        """The number of clients of the partition, which is known after reading the data."""
        return len(self._rows)

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
        rows = self._rows[client_id]
        if self._tensors is None:
            return self._read(self._parts[0].select(rows))
        index = torch.from_numpy(rows)
        return self._tensors.map(lambda part: part[index])

    def sizes(self, client_ids: np.ndarray) -> np.ndarray:
        """See `Task.sizes`."""
        return np.array(
            [len(self._rows[client]) for client in client_ids], np.int64
        )

    def held_out(self) -> losses.ClientData:
        """The rows that no client has."""
        return self._held_out

    @functools.cached_property
    def _held_out(self) -> losses.ClientData:
        return self._read(self._parts[1])

    def notes(self) -> list[str]:
        """See `Task.notes`; missing values, and classes without an output, are refused."""
        # If memory allows, this reads every row, and so finds missing values.
        _ = self._tensors
        notes = super().notes()
        column = self.arguments.targets
        targets = [
            tables.read_targets(rows, column, self._classes).flatten()
            for rows in self._parts
        ]
        classes = torch.cat(targets)
        if self.arguments.loss is None and not classes.is_floating_point():
            with torch.no_grad():
                example = self.held_out().map(lambda part: part[:1])
                outputs = call_model(
                    prepared(self.model).eval(), example.inputs
                )
            logits, _ = losses.by_class(outputs, example.targets)
            losses.check_classes(classes, logits.shape[-1], column)
        return notes

    def loss(
        self, outputs: torch.Tensor, targets: torch.Tensor
    ) -> losses.LossSum:
        """The user's or the default loss and metric, as sums over the predictions."""
        mean_loss = self.arguments.loss
        mean_metric = self.arguments.metric
        correct: float | torch.Tensor = 0
        count: int | torch.Tensor = len(targets)
        if mean_loss is None:
            parts = losses.default_by_example(outputs, targets)
            loss, correct, count = (part.sum() for part in parts)
        else:
            loss = _one_number("loss", mean_loss(outputs, targets)) * len(
                targets
            )
        if mean_metric is not None:
            with torch.no_grad():
                mean = _one_number("metric", mean_metric(outputs, targets))
            correct = float(mean) * int(count)
        elif mean_loss is not None and self.metric:
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
    """A model's output as one tensor: its ``logits``, or the first of several."""
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
    shape = tuple(getattr(value, "shape", ()))
    if shape not in ((), (1,)):
        raise ValueError(
            f"Expected the {name} to be one number, the mean of the batch, got shape {shape}"
        )
    if shape:
        return value.reshape(())
    return value


def _unit_of(column: str) -> str:
    """A word for the values of a column, such as "hospital" for "hospital_id"."""
    name = re.sub(r"(?<=.)([ _-]id|Id|ID)$", "", column)
    return name.replace("_", " ").strip() or "client"


def _words(value: Any) -> str | float | None:
    """A short text for a model, data set, function or partitioner; plain values stay."""
    if value is None or isinstance(value, str | float | int):
        return value
    if type(value) in (list, tuple, dict):
        return str(value)
    name = getattr(value, "__qualname__", type(value).__name__)
    rows = f" of {len(value):,} rows" if hasattr(value, "column_names") else ""
    return f"{name}{rows}"
