"""Finds tasks by name: built-in tasks, and those in a user's modules.

A reference is the short name of a built-in task, or ``"module:name"``. The name in the module
is that of a subclass of `Task`, of a function that is annotated to return a task, or of a task.
Modules are found where Python finds them, and the command line looks in the current folder
first.

Examples:
    >>> digits = find_task("digits")
    >>> [field.name for field in dataclasses.fields(digits.settings)]
    ['num_clients', 'alpha', 'data_seed']
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import operator
import os
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_epe.archive import place_of
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
"""The short names of the built-in tasks, and where they are defined."""

_REFERENCE_FORM = "'module:name', e.g. mypackage.tasks:MyTask"


@dataclasses.dataclass(frozen=True)
class FoundTask:
    """The object that a reference names, before a task is made of it.

    Attributes:
        reference: the reference as the caller wrote it.
        make: a subclass of `Task`, a function that returns a task, or a task.
        settings: a dataclass whose fields are the options of ``make``; it has none for a task.
    """

    reference: str
    make: Any
    settings: type

    def task(self, **options: Any) -> Task:
        """The task with these options.

        Raises:
            ValueError: for an option that does not exist (the message lists those that do), is
                of another type, out of range or missing; or if a function returns no task.
        """
        from fl_epe.tasks.contract import Task

        values = self._checked_options(options)
        task = self.make if isinstance(self.make, Task) else self.make(**values)
        if not isinstance(task, Task):
            raise ValueError(
                f"Expected {self.reference} to make a Task, got {type(task).__name__}."
            )
        if self.reference not in BUILT_IN:
            for name, value in values.items():
                if isinstance(value, Path):
                    # `Task.options` gives JSON values.
                    values[name] = str(value)
            loader = functools.partial(load_task, self.reference, **values)
            # A task is frozen, so its attributes cannot be assigned.
            vars(task)["_loader"] = loader
        return task

    def _checked_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options, converted to the types of their fields."""
        kinds = typing.get_type_hints(self.settings)
        fields = {
            field.name: field for field in dataclasses.fields(self.settings)
        }
        task = f"of task {self.reference!r}"
        values = {}
        for name, value in options.items():
            if name not in fields:
                names = "it has none"
                if fields:
                    names = f"expected one of {', '.join(fields)}"
                text = f"Unknown option {{{name}}} {task}: {names}."
                raise ArgumentError(text, **{name: value})
            try:
                values[name] = _converted(value, kinds[name])
            except ValueError as error:
                text = f"Option {{{name}}} {task}: {error}."
                raise ArgumentError(text, **{name: value}) from error
        for name, field in fields.items():
            is_required = (
                field.default is field.default_factory is dataclasses.MISSING
            )
            if is_required and name not in values:
                text = f"Expected option {{{name}}} {task} to be given."
                raise ArgumentError(text, **{name: None})
        return values


def _converted(value: Any, kind: Any) -> Any:
    """The value as a ``kind``; of other types, only texts become paths, and lists tuples.

    Raises:
        ValueError: if the value is of another type; the message is a clause.
    """
    import pydantic

    try:
        option = pydantic.TypeAdapter(kind)
    except pydantic.errors.PydanticSchemaGenerationError:
        # Pydantic cannot check values of other classes.
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
        name: a key of `BUILT_IN`, or ``"module:name"``: a subclass of `Task`, a function that
            is annotated to return one, or a task.
        options: the fields of the class, or the arguments of the function.

    Raises:
        ValueError: for a name or an option that does not exist (the message lists those that
            do), or an option of another type or out of range.
        ModuleNotFoundError: if a module or a package that the task needs cannot be found.
        ImportError: if the module fails when it is imported.
    """
    return find_task(name).task(**options)


def find_task(reference: str) -> FoundTask:
    """The object that ``reference`` names; it raises the errors of `load_task`."""
    if not is_reference(reference):
        choices = list(BUILT_IN)
        if Path(f"{reference}.py").is_file():
            # `fl-epe new` calls the task in its file "task".
            choices = [f"{reference}:task"]
        hint = did_you_mean(reference, choices)
        names = ", ".join(sorted(BUILT_IN))
        _refuse(reference, f"to be one of {names}, or {_REFERENCE_FORM}{hint}")
    module, _, name = BUILT_IN.get(reference, reference).partition(":")
    make = _attribute(_import(module, reference), name, reference)
    missing = ", ".join(sorted(getattr(make, "__abstractmethods__", ())))
    if missing:
        _refuse(reference, f"to define {missing}: see fl_epe.tasks.Task")
    settings = make
    if inspect.isfunction(make):
        settings = _settings_of(make, reference)
    elif not inspect.isclass(make):
        settings = dataclasses.make_dataclass("_NoOptions", [])
    return FoundTask(reference, make, settings)


def _refuse(reference: str, expected: str) -> typing.NoReturn:
    raise_invalid("task name", reference, expected)


def _attribute(module: Any, name: str, reference: str) -> Any:
    """The task, class or function of this name in a module; refused if it makes no task."""
    try:
        value = operator.attrgetter(name)(module)
    except AttributeError:
        tasks = [
            key
            for key, value in vars(module).items()
            if _makes_task(value) and not inspect.isabstract(value)
        ]
        content = "it has no task"
        if tasks:
            content = f"it has {', '.join(tasks)}{did_you_mean(name, tasks)}"
        expected = f"to name something in {module.__name__}"
        _refuse(reference, f"{expected}: there is no {name!r}, {content}")
    if not _makes_task(value):
        kind = type(value).__name__
        if inspect.isfunction(value):
            kind = f"def {value.__name__}(...) without '-> fl_epe.tasks.Task'"
        text = "to be a subclass of fl_epe.tasks.Task, a function that is annotated to return one"
        _refuse(reference, f"{text}, or a task, got {kind}")
    return value


def _makes_task(value: Any) -> bool:
    """Whether this is a task, a subclass of `Task`, or a function annotated to return one."""
    from fl_epe.tasks.contract import Task

    if inspect.isfunction(value):
        try:
            value = typing.get_type_hints(value).get("return")
        except (NameError, TypeError):
            # The annotations have names that only a type checker can resolve.
            return False
    if inspect.isclass(value):
        return issubclass(value, Task)
    return isinstance(value, Task)


def _import(module: str, reference: str) -> Any:
    """The module of a reference; errors name the reference."""
    has_names = all(part.isidentifier() for part in module.split("."))
    if not has_names or module.endswith(".py"):
        _refuse(
            reference, f"to be {_REFERENCE_FORM}, with dots and without .py"
        )
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            # The missing module is one that this module imports.
            raise
        raise ModuleNotFoundError(
            f"No module {error.name!r} for task name={reference!r}: run from the folder that "
            f"{error.name.partition('.')[0]}.py is in, or put that folder into PYTHONPATH.",
            name=error.name,
        ) from error
    # A user's module may raise any exception, or exit.
    except (Exception, SystemExit) as error:
        raise ImportError(
            f"Importing {module} for task name={reference!r} failed with "
            f"{type(error).__name__}: {error}{place_of(error)}",
            name=module,
        ) from error


def _settings_of(function: Callable[..., Any], reference: str) -> type:
    """A dataclass whose fields are the arguments of a function.

    Arguments with a mutable default are no options.
    """
    hints = typing.get_type_hints(function)
    fields: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name not in hints and default in (parameter.empty, None):
            _refuse(reference, f"to take the argument {name!r} with a type")
        kind = hints.get(name, type(default))
        if default is parameter.empty:
            fields.append((name, kind))
        elif not isinstance(default, list | dict | set):
            fields.append((name, kind, dataclasses.field(default=default)))
    settings = dataclasses.make_dataclass(
        function.__name__, fields, kw_only=True
    )
    settings.__doc__ = inspect.getdoc(function)
    return settings


def look_in_current_folder() -> None:
    """Let Python find modules in the current folder, as ``python -m`` does."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
