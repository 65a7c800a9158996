"""Places that store a silo's audit between rounds: a Flower context, a folder, a dictionary."""

import dataclasses
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fl_epe.archive import error_text, one_line, read_archive, write_archive
from fl_epe.auditing import RECORDS
from fl_epe.checks import NamedArrays

UNMEASURED = "unmeasured"
"""Key under which the answer is stored as text, if no canary could join a round."""

_SCHEMA = 1
_FILE = "records.npz"
_CONTENT = "the audit of a silo"
_MAX_CHARACTERS = 200  # largest length of an error's text
# The folders of a path, up to the name of the file.
_FOLDERS = re.compile(r"[^\s'\"]*[/\\](?=[^/\\\s])")


class Place(Protocol):
    """A place that stores named arrays."""

    def load(self) -> NamedArrays | None:
        """The saved arrays; ``None`` if there are none."""

    def save(self, state: NamedArrays) -> None:
        """Replace the saved arrays."""


@dataclasses.dataclass(frozen=True)
class InFolder:
    """A file in a folder; only the owner can read the file."""

    folder: Path

    def load(self) -> NamedArrays | None:
        """See `Place`.

        Raises:
            ValueError: if the file was not written by `save`.
        """
        path = self.folder / _FILE
        if not path.exists():
            return None
        _, arrays = read_archive(path, _CONTENT, schema=_SCHEMA)
        return arrays

    def save(self, state: NamedArrays) -> None:
        """See `Place`."""
        write_archive(
            self.folder / _FILE, state, {}, schema=_SCHEMA, compress=False
        )


@dataclasses.dataclass(frozen=True)
class InMapping:
    """An entry of a dictionary that persists between rounds."""

    mapping: MutableMapping[str, Any]

    def load(self) -> NamedArrays | None:
        """See `Place`."""
        return self.mapping.get(RECORDS)

    def save(self, state: NamedArrays) -> None:
        """See `Place`."""
        self.mapping[RECORDS] = state


@dataclasses.dataclass(frozen=True)
class InContext:
    """The state of a Flower ``Context``, which stays on its node."""

    context: Any

    def load(self) -> NamedArrays | None:
        """See `Place`."""
        if RECORDS not in self.context.state:
            return None
        return {
            name: array.numpy()
            for name, array in self.context.state[RECORDS].items()
        }

    def save(self, state: NamedArrays) -> None:
        """See `Place`."""
        # Flower is imported here, as silos with another place may not have it.
        from flwr.app import Array, ArrayRecord

        arrays = {
            name: Array(np.asarray(value)) for name, value in state.items()
        }
        self.context.state[RECORDS] = ArrayRecord(arrays)


def place_of(where: Any) -> Place:
    """The place that stores an audit: a Flower ``Context``, a folder or a dictionary.

    Raises:
        TypeError: if ``where`` is of another type.
    """
    # A Flower `Context` is recognized by its attributes, as an import of Flower is slow, and silos
    # with another place may not have it.
    if hasattr(where, "state") and hasattr(where, "node_id"):
        return InContext(where)
    if isinstance(where, str | Path):
        return InFolder(Path(where))
    if isinstance(where, MutableMapping):
        return InMapping(where)
    raise TypeError(
        f"Expected where={type(where).__name__} to be a Flower Context, the path of a folder, or a "
        "dictionary that outlives a round."
    )


def reason_of(error: Exception) -> str:
    """The text of an error without the folders of a path, so that it may leave the silo."""
    return one_line(_FOLDERS.sub("", error_text(error)), _MAX_CHARACTERS)
