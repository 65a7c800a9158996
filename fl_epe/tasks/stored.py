"""What tasks at the paper's scale share: a data set on disk, or one made from a seed."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import ClassVar

import numpy as np

from fl_epe import data
from fl_epe.checks import check_count, raise_invalid
from fl_epe.tasks.contract import Task
from fl_epe.tasks.examples import ClientData


@dataclasses.dataclass(frozen=True)
class StoredTask(Task, abc.ABC):
    """A task on what `fl_epe.data.convert` wrote; its name is the kind of data set.

    Attributes:
        data_dir: what `fl_epe.data.convert` wrote, or a source that it reads: the id of a hub's
            data set, a folder or a file. A source is converted first, once, into the user's cache
            folder.
        max_examples: the most that a client trains on, at random; 0 for all.
        data_seed: seed of that choice.
    """

    _most_held_out: ClassVar[int]
    data_dir: str = ""
    max_examples: int = 0
    data_seed: int = 0

    def __post_init__(self) -> None:
        _check(self.max_examples, self.data_seed)
        if self.data_dir:
            object.__setattr__(self, "data_dir", data.absolute(self.data_dir))

    @abc.abstractmethod
    def _decode(self, examples: np.ndarray) -> ClientData:
        """Examples as `fl_epe.data` stores them, in the form that the model takes."""

    def _place(self) -> str:
        """Where the data is.

        Raises:
            FileNotFoundError: if ``data_dir`` does not say and there is no default.
        """
        return self.data_dir

    @property
    def num_clients(self) -> int:
        """How many clients there are; reads the index."""
        return len(self._store)

    @property
    def _store(self) -> data.ClientStore:
        return data.open_data(self.name, self._place())

    def client(self, client_id: int) -> ClientData:
        """The examples of one client.

        Raises:
            FileNotFoundError: if ``data_dir`` is no path and no hub id.
            ConnectionError: if the hub cannot be reached.
            ValueError: for a ``client_id`` that does not exist, or files that are broken.
        """
        self.check_client(client_id)
        return self._decode(self._store.shuffled(client_id, self.max_examples, self.data_seed))

    def sizes(self, client_ids: np.ndarray) -> np.ndarray:
        """See `Task.sizes`; from the index."""
        return self._store.sizes(client_ids, self.max_examples)

    def held_out(self) -> ClientData:
        """Some examples of the source's test split.

        If it has none, of its other held-out split, or of the tenth that was taken from every
        client.
        """
        return self._decode(self._store.held_out(self._most_held_out))


@dataclasses.dataclass(frozen=True)
class SyntheticTask(Task, abc.ABC):
    """A task whose clients are made from a seed when they are asked for; nothing is kept.

    Attributes:
        num_clients: how many there are.
        max_examples: the most that a client has; 0 for no limit.
        data_seed: seed of all their examples.
    """

    num_clients: int = 1
    max_examples: int = 0
    data_seed: int = 0

    def __post_init__(self) -> None:
        check_count("num_clients", self.num_clients)
        _check(self.max_examples, self.data_seed)

    @abc.abstractmethod
    def _make(self, client_id: int) -> ClientData:
        """The examples of one client, who exists."""

    @abc.abstractmethod
    def _size(self, client_id: int) -> int:
        """How many examples `_make` would make."""

    @abc.abstractmethod
    def _make_held_out(self) -> ClientData:
        """Examples that belong to no client."""

    def client(self, client_id: int) -> ClientData:
        """The examples of one client."""
        self.check_client(client_id)
        return self._make(client_id)

    def sizes(self, client_ids: np.ndarray) -> np.ndarray:
        """See `Task.sizes`; nothing is made."""
        return np.array([self._size(int(client)) for client in client_ids], np.int64)

    def held_out(self) -> ClientData:
        """Examples of clients that take no part; made once."""
        return _held_out(self)


@functools.lru_cache(maxsize=1)
def _held_out(task: SyntheticTask) -> ClientData:
    return task._make_held_out()


def _check(max_examples: int, data_seed: int) -> None:
    for name, value in (("max_examples", max_examples), ("data_seed", data_seed)):
        if value < 0:
            raise_invalid(name, value, ">= 0")
