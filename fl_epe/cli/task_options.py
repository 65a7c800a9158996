"""The options of a task on the command line: the fields of its class, or a function's arguments."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fl_epe.cli.options import add_options, given, readable
from fl_epe.tasks import find_task, is_reference, look_in_current_folder, place_of

if TYPE_CHECKING:
    from fl_epe.tasks import FoundTask, Task

_PREFIX = "task "  # no option's attribute has a space


def add_task_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Add the options of the task that somebody typed, if it can be found.

    What is wrong with it is said when the command is carried out, see `asked_task`.

    Args:
        parser: of the command, with all its other options.
        words: what was typed after the name of the command.
    """
    parser.set_defaults(found_task=None, task_error=None)
    reference = next(_references(parser, words), None)
    if reference is None:
        return
    if ":" in reference:  # a file here must not stand in for a package of a built-in task
        look_in_current_folder()
    try:
        found = find_task(reference)
        _check_names(parser, found)
    except (ImportError, ValueError) as error:
        parser.set_defaults(task_error=error)
        return
    parser.set_defaults(found_task=found)
    fields = typing.get_type_hints(found.settings)
    typed = [name for name, kind in fields.items() if readable(kind)]
    if typed:
        group = parser.add_argument_group(f"options of {reference}")
        left_out = fields.keys() - set(typed)
        add_options(group, found.settings, left_out, required=False, prefix=_PREFIX)
    spelled = {name: "--" + name.replace("_", "-") for name in typed}
    if "num_clients" in spelled:
        spelled["clients"] = spelled["num_clients"]
    parser.set_defaults(spell=spelled.get)


def asked_task(arguments: argparse.Namespace) -> Task:
    """The task that was asked for, with its options.

    Raises:
        ImportError: if its module cannot be imported.
        ValueError: if there is none, or an option is missing or out of range.
    """
    if arguments.task_error is not None:
        raise arguments.task_error
    found: FoundTask = arguments.found_task or find_task(arguments.task)
    with blaming(found.reference):
        return found.task(**given(arguments, found.settings, _PREFIX))


@contextlib.contextmanager
def blaming(reference: str, *but: Any) -> Iterator[None]:
    """Errors of somebody's own task as errors of that task, with their place.

    Args:
        reference: of the task.
        but: errors that are no task's.

    Raises:
        ValueError: for whatever is no `ValueError`, `OSError` or `ImportError`, which speak for
            themselves.
    """
    try:
        yield
    except (ValueError, OSError, ImportError, MemoryError, *but):
        raise
    except (Exception, SystemExit) as error:
        if ":" not in reference:
            raise
        raise ValueError(
            f"The task {reference!r} failed with {type(error).__name__}: {error}{place_of(error)}"
        ) from error


def _references(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """The words that may be a task, and are no option and no option's value."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            if is_reference(word):
                yield word
            continue
        action = parser._option_string_actions.get(word)
        if action is not None and action.nargs is None:
            next(rest, None)


def _check_names(parser: argparse.ArgumentParser, found: FoundTask) -> None:
    for field in dataclasses.fields(found.settings):
        option = "--" + field.name.replace("_", "-")
        if option in parser._option_string_actions:
            raise ValueError(
                f"Expected the option {field.name!r} of task {found.reference!r} to have another "
                f"name: fl-epe run has an option {option} of its own."
            )
