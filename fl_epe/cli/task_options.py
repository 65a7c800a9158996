"""The options of a task on the command line: the fields of its class, or a function's arguments."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from fl_epe.cli.options import Parser
from fl_epe.tasks import find_task, is_reference, look_in_current_folder, place_of


def settings_of_task(parser: Parser, words: Sequence[str]) -> type:
    """The dataclass of the options of the task that somebody typed; an empty one without a task.

    Args:
        parser: of the command, with all its other options.
        words: what was typed.

    Raises:
        ImportError: if the task's module cannot be imported.
        ValueError: if there is no such task, or it has an option of the command's name.
    """
    if (reference := _reference(parser, words)) is None:
        return dataclasses.make_dataclass("NoOptions", [])
    if ":" in reference:  # a file here must not stand in for a package of a built-in task
        look_in_current_folder()
    settings = find_task(reference).settings
    for field in dataclasses.fields(settings):
        option = "--" + field.name.replace("_", "-")
        if option in parser._option_string_actions:
            raise ValueError(
                f"Expected the option {field.name!r} of task {reference!r} to have another name: "
                f"fl-epe run has an option {option} of its own."
            )
        if field.name == "num_clients":
            parser.names["clients"] = option
    return settings


@contextlib.contextmanager
def task_errors(reference: str, *but: Any) -> Iterator[None]:
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


def _reference(parser: Parser, words: Sequence[str]) -> str | None:
    """The first word that may be a task, and is no option and no option's value."""
    value = False
    for word in words:
        if not value and not word.startswith("-") and is_reference(word):
            return word
        action = parser._option_string_actions.get(word)
        value = not value and action is not None and action.nargs is None
    return None
