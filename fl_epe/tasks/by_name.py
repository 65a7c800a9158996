"""Finds tasks by name: the built-in ones, and those of your own modules.

A reference is a short name, or where a task stands: ``"module:name"``, where the name is a subclass
of `Task`, a function that is annotated to return one, or a task. Modules are found where Python
finds them, and the command line looks in the current folder first.

Examples:
    >>> found = find_task("digits")
    >>> [field.name for field in dataclasses.fields(found.settings)]
    ['num_clients', 'alpha', 'data_seed']
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import json
import operator
import os
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_epe.checks import ArgumentError, did_you_mean, raise_invalid

if TYPE_CHECKING:
    from fl_epe.tasks.contract import Task

BUILT_IN = {
    "digits": "fl_epe.tasks.images:Digits",
    "emnist": "fl_epe.tasks.stored:Emnist",
    "fashion-mnist": "fl_epe.tasks.images:FashionMnist",
    "stackoverflow": "fl_epe.tasks.stored:StackOverflow",
    "synthetic-emnist": "fl_epe.tasks.stored:SyntheticEmnist",
    "synthetic-stackoverflow": "fl_epe.tasks.stored:SyntheticStackOverflow",
}
"""Short names, and where those tasks stand."""

_HOW = "'module:name', e.g. mypackage.tasks:MyTask"


@dataclasses.dataclass(frozen=True)
class FoundTask:
    """What a reference stands for, before a task is made of it.

    Attributes:
        reference: as it was given.
        make: a subclass of `Task`, a function that returns a task, or a task.
        settings: a dataclass whose fields are the options of ``make``; none for a task.
    """

    reference: str
    make: Any
    settings: type

    def task(self, **options: Any) -> Task:
        """The task with these options.

        Raises:
            ValueError: for an option that does not exist (the message lists those that do), one of
                another type or out of range, or a missing one; if a function returns no task.
        """
        from fl_epe.tasks.contract import Task

        values = self._checked(options)
        made = self.make if isinstance(self.make, Task) else self.make(**values)
        if not isinstance(made, Task):
            raise ValueError(
                f"Expected {self.reference} to make a Task, got {type(made).__name__}."
            )
        if self.reference not in BUILT_IN:
            plain = {
                name: str(v) if isinstance(v, Path) else v for name, v in values.items()
            }
            made.__dict__["_found_by"] = (self.reference, plain)
        return made

    def _checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        kinds, values = typing.get_type_hints(self.settings), dict[str, Any]()
        fields = {field.name: field for field in dataclasses.fields(self.settings)}
        task, nothing = f"of task {self.reference!r}", dataclasses.MISSING
        for name, value in options.items():
            if name not in fields:
                known = (
                    f"expected one of {', '.join(fields)}" if fields else "it has none"
                )
                raise ArgumentError(
                    f"Unknown option {{{name}}} {task}: {known}.", **{name: value}
                )
            try:
                values[name] = _converted(value, kinds[name])
            except ValueError as error:
                text = f"Option {{{name}}} {task}: {error}."
                raise ArgumentError(text, **{name: value}) from error
        for name, field in fields.items():
            if name not in values and field.default is field.default_factory is nothing:
                text = f"Expected option {{{name}}} {task} to be given."
                raise ArgumentError(text, **{name: None})
        return values


def _converted(value: Any, kind: Any) -> Any:
    """The value in its type, strictly; from a file come texts for paths and lists for tuples."""
    import pydantic

    try:
        option = pydantic.TypeAdapter(kind)
    except pydantic.errors.PydanticSchemaGenerationError:  # another class
        return value
    try:
        return option.validate_json(json.dumps(value, default=str), strict=True)
    except pydantic.ValidationError as error:
        text = error.errors()[0]["msg"]
        raise ValueError(f"{text[0].lower()}{text[1:]}") from error


def is_reference(text: str) -> bool:
    """Whether this is the name of a built-in task, or ``"module:name"``."""
    return text in BUILT_IN or ":" in text


def load_task(name: str, **options: object) -> Task:
    """The task called ``name`` with its options, e.g. ``load_task("digits", num_clients=60)``.

    Args:
        name: a key of `BUILT_IN`, or ``"module:name"``: a subclass of `Task`, a function that is
            annotated to return one, or a task.
        options: the fields of the class, or the arguments of the function.

    Raises:
        ValueError: for a name or an option that does not exist (the message lists those that
            do), or an option of another type or out of range.
        ModuleNotFoundError: if a module or a package that the task needs cannot be found.
        ImportError: if the module fails when it is imported.
    """
    return find_task(name).task(**options)


def find_task(reference: str) -> FoundTask:
    """What ``reference`` stands for; see `load_task`, also for the errors."""
    if not is_reference(reference):
        known = ", ".join(sorted(BUILT_IN))
        here = (
            [f"{reference}:task"]
            if Path(f"{reference}.py").is_file()
            else list(BUILT_IN)
        )
        hint = did_you_mean(reference, here)
        raise_invalid("task name", reference, f"to be one of {known}, or {_HOW}{hint}")
    module, _, name = BUILT_IN.get(reference, reference).partition(":")
    place = _import(module, reference)
    try:
        found = operator.attrgetter(name)(place)
    except AttributeError:
        values = vars(place).items()
        tasks = [
            key
            for key, value in values
            if _fits(value) and not inspect.isabstract(value)
        ]
        has = (
            f"it has {', '.join(tasks)}{did_you_mean(name, tasks)}"
            if tasks
            else "it has no task"
        )
        raise_invalid(
            "task name",
            reference,
            f"to name something in {module}: there is no {name!r}, {has}",
        )
    if not _fits(found):
        text = "to be a subclass of fl_epe.tasks.Task, a function that is annotated to return one"
        kind = type(found).__name__
        if inspect.isfunction(found):
            kind = f"def {found.__name__}(...) without '-> fl_epe.tasks.Task'"
        raise_invalid("task name", reference, f"{text}, or a task, got {kind}")
    if inspect.isfunction(found):
        return FoundTask(reference, found, _settings_of(found, reference))
    if not inspect.isclass(found):
        return FoundTask(reference, found, dataclasses.make_dataclass("_NoOptions", []))
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise_invalid(
            "task name",
            reference,
            f"to define {', '.join(missing)}: see fl_epe.tasks.Task",
        )
    return FoundTask(reference, found, found)


def _fits(value: Any) -> bool:
    from fl_epe.tasks.contract import Task

    if inspect.isfunction(value):
        try:
            value = typing.get_type_hints(value).get("return")
        except (NameError, TypeError):  # names that only a type checker sees
            return False
    return (
        issubclass(value, Task) if inspect.isclass(value) else isinstance(value, Task)
    )


def _import(module: str, reference: str) -> Any:
    if not all(part.isidentifier() for part in module.split(".")) or module.endswith(
        ".py"
    ):
        raise_invalid(
            "task name", reference, f"to be {_HOW}, with dots and without .py"
        )
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # something that the module needs
        raise ModuleNotFoundError(
            f"No module {error.name!r} for task name={reference!r}: run from the folder that "
            f"{error.name.partition('.')[0]}.py is in, or put that folder into PYTHONPATH.",
            name=error.name,
        ) from error
    except (Exception, SystemExit) as error:  # anything that somebody's module may do
        raise ImportError(
            f"Importing {module} for task name={reference!r} failed with "
            f"{type(error).__name__}: {error}{place_of(error)}",
            name=module,
        ) from error


def place_of(error: BaseException) -> str:
    """File and line where an error was raised, in brackets after a space."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:  # the text of the former has them
        return ""
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"


def _settings_of(function: Callable[..., Any], reference: str) -> type:
    hints, fields = typing.get_type_hints(function), list[Any]()
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name not in hints and default in (parameter.empty, None):
            raise_invalid(
                "task name", reference, f"to take the argument {name!r} with a type"
            )
        kind = hints.get(name, type(default))
        if default is parameter.empty:
            fields.append((name, kind))
        elif not isinstance(default, list | dict | set):
            fields.append((name, kind, dataclasses.field(default=default)))
    made = dataclasses.make_dataclass(function.__name__, fields, kw_only=True)
    made.__doc__ = inspect.getdoc(function)
    return made


def look_in_current_folder() -> None:
    """Let modules of the current folder be found, as ``python -m`` does."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
