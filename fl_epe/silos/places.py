"""Where a silo keeps its audit from round to round: a Flower context, a folder or a dictionary."""

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
"""Of a state: what a silo says that has no plan for an audit, as text."""

_SCHEMA = 1
_FILE = "records.npz"
_WHAT = "the audit of a silo"
_LONGEST = 200  # characters of an error
_FOLDERS = re.compile(r"[^\s'\"]*[/\\](?=[^/\\\s])")


class Place(Protocol):
    """Where named arrays are kept."""

    def load(self) -> NamedArrays | None:
        """What was saved; ``None`` if nothing was."""

    def save(self, state: NamedArrays) -> None:
        """Keep these in the place of what was saved."""


@dataclasses.dataclass(frozen=True)
class InFolder:
    """A file of a folder, which is its owner's alone."""

    folder: Path

    def load(self) -> NamedArrays | None:
        """See `Place`.

        Raises:
            ValueError: if the file is not what `save` wrote.
        """
        path = self.folder / _FILE
        return read_archive(path, _WHAT, schema=_SCHEMA)[1] if path.exists() else None

    def save(self, state: NamedArrays) -> None:
        """See `Place`."""
        write_archive(self.folder / _FILE, state, {}, schema=_SCHEMA, compress=False)


@dataclasses.dataclass(frozen=True)
class InMapping:
    """An entry of a dictionary that outlives a round."""

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
            name: array.numpy() for name, array in self.context.state[RECORDS].items()
        }

    def save(self, state: NamedArrays) -> None:
        """See `Place`."""
        from flwr.app import Array, ArrayRecord  # a silo may have no Flower

        arrays = {name: Array(np.asarray(value)) for name, value in state.items()}
        self.context.state[RECORDS] = ArrayRecord(arrays)


def place_of(where: Any) -> Place:
    """Where an audit is kept: a Flower ``Context``, a folder or a dictionary.

    Raises:
        TypeError: if it is none of these.
    """
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
    """An error in words that may leave the silo: without the folders of a path."""
    return one_line(_FOLDERS.sub("", error_text(error)), _LONGEST)
