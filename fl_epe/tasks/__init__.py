"""Tasks: the clients' data, the model, the loss and the metric, one file each.

A new task is a subclass of `Task` in a file of its own and a line in ``_TASKS``. PyTorch is
imported when something that needs it is first used.

Examples:
    >>> from fl_epe.tasks import load_task
    >>> task = load_task("emnist-twin", num_clients=60, max_examples=8)
    >>> len(task.client(7)) <= 8
    True
"""

from __future__ import annotations

import dataclasses
import importlib
import typing
from typing import TYPE_CHECKING, cast

from fl_epe.checks import ArgumentError
from fl_epe.lazy import lazy_names

if TYPE_CHECKING:
    from fl_epe.models import bind_parameters, glorot_uniform, one_thread
    from fl_epe.tasks.contract import ClientData, LossSum, Task

__all__ = [
    "ClientData",
    "LossSum",
    "Task",
    "bind_parameters",
    "glorot_uniform",
    "load_task",
    "one_thread",
    "task_names",
]

_TASKS = {
    "digits": "digits.Digits",
    "emnist": "emnist.Emnist",
    "emnist-twin": "emnist.EmnistTwin",
    "fashion-mnist": "fashion_mnist.FashionMnist",
    "shakespeare": "shakespeare.Shakespeare",
    "stackoverflow": "stackoverflow.StackOverflow",
    "stackoverflow-twin": "stackoverflow.StackOverflowTwin",
}


def task_names() -> list[str]:
    """The names that `load_task` knows."""
    return sorted(_TASKS)


def load_task(name: str, **options: object) -> Task:
    """The task called ``name`` with its options, e.g. ``load_task("digits", num_clients=60)``.

    Raises:
        ValueError: for a name or an option that does not exist (the message lists those that
            do), or an option of another type or out of range.
        ModuleNotFoundError: if a package that the task needs is not installed.
    """
    if name not in _TASKS:
        raise ValueError(f"Expected task name={name!r} to be one of {', '.join(task_names())}.")
    module, class_name = _TASKS[name].split(".")
    task_class = getattr(importlib.import_module(f"fl_epe.tasks.{module}"), class_name)
    hints = typing.get_type_hints(task_class)
    types = {field.name: hints[field.name] for field in dataclasses.fields(task_class)}
    for option, value in options.items():
        _check_option(name, option, value, types)
    return cast("Task", task_class(**options))


def _check_option(task: str, option: str, value: object, types: dict[str, type]) -> None:
    if option not in types:
        raise ArgumentError(
            f"Unknown option {{{option}}} of task {task!r}: expected one of {', '.join(types)}.",
            **{option: value},
        )
    expected = types[option]
    allowed = (int, float) if expected is float else expected
    if not isinstance(value, allowed) or isinstance(value, bool) is not (expected is bool):
        raise ArgumentError(
            f"Expected {{{option}}} of task {task!r} to be {expected.__name__}.", **{option: value}
        )


__getattr__, __dir__ = lazy_names(  # what needs PyTorch
    __name__,
    {
        "fl_epe.models": ("bind_parameters", "glorot_uniform", "one_thread"),
        "fl_epe.tasks.contract": ("ClientData", "LossSum", "Task"),
    },
)
