"""Tasks: a task has the clients' data, the model, the loss and the metric.

A new task is a subclass of `Task`, or the result of `from_datasets` for a model and a data set;
the command line finds it as ``fl-epe run module:name``. ``by_name.py`` has the short names of the
built-in tasks. PyTorch is imported when something that needs it is first used.

Examples:
    >>> from fl_epe.tasks import load_task
    >>> task = load_task("synthetic-emnist", num_clients=60, max_examples=8)
    >>> len(task.client(7)) <= 8
    True
"""

from typing import TYPE_CHECKING

from fl_epe.lazy import lazy_names
from fl_epe.tasks.by_name import (
    find_task,
    is_reference,
    load_task,
    look_in_current_folder,
)
from fl_epe.tasks.columns import (
    CLEAR_CLASSES,
    ColumnKinds,
    classes_to_predict,
    sort_columns,
)

if TYPE_CHECKING:
    from fl_epe.tasks.contract import Task
    from fl_epe.tasks.dataset_task import from_datasets
    from fl_epe.tasks.losses import ByExample, ClientData, LossSum
    from fl_epe.tasks.tables import read_tables

__all__ = [
    "CLEAR_CLASSES",
    "ByExample",
    "ClientData",
    "ColumnKinds",
    "LossSum",
    "Task",
    "classes_to_predict",
    "find_task",
    "from_datasets",
    "is_reference",
    "load_task",
    "look_in_current_folder",
    "read_tables",
    "sort_columns",
]

__getattr__, __dir__ = lazy_names(  # what needs PyTorch
    __name__,
    {
        "fl_epe.tasks.contract": ("Task",),
        "fl_epe.tasks.dataset_task": ("from_datasets",),
        "fl_epe.tasks.losses": ("ByExample", "ClientData", "LossSum"),
        "fl_epe.tasks.tables": ("read_tables",),
    },
)
