"""A schedule that replays the participation of a real run, from the run's log."""

from __future__ import annotations

import array
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fl_epe.checks import LARGEST, Integers, raise_invalid
from fl_epe.schedules.contract import Cohort, Schedule
from fl_epe.schedules.law import Events, ParticipationLaw
from fl_epe.table_file import TEXT_ENDINGS, read_table, shown, table_rows

ROUND = "round"
CLIENT = "client_id"
COLUMNS = (ROUND, CLIENT)  # the columns of a log
_MAX_ROUNDS = 10**7  # with more, the log probably has time stamps
_MAX_CHARACTERS = 256  # of a client's id


@dataclasses.dataclass(frozen=True, eq=False)
class Trace(Schedule):
    """The recorded participation: one row for each client in each round.

    Guarantee: nothing is random for the clients of the trace. Client i of the population is
    ``clients[i]`` of the trace and takes part in the rounds that the trace gives it. Clients
    differ from each other and the rounds are known, so no amplification is claimed. In a
    population of another size, such as that of canaries, each participant replays a client of
    the trace that is drawn uniformly at random, and clients are reused as evenly as possible.

    Attributes:
        rounds: number of rounds from the first to the last, empty ones included.
        round_ids: the round of each row, from 0, ascending. Any integers may be passed; they
            are renumbered so that the smallest is 0.
        client_ids: the client of each row, in ``[0, population)``, ascending within a round.
            Any integers or strings may be passed; they are numbered in ascending order.
        clients: the clients' ids as they were given, ascending.
    """

    kind: ClassVar[str] = "trace"
    part_time: ClassVar[bool] = True

    rounds: int = dataclasses.field(init=False)
    round_ids: Integers = dataclasses.field(repr=False)
    client_ids: Integers = dataclasses.field(repr=False)
    clients: np.ndarray = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        row_rounds = _vector("round_ids", self.round_ids, "iu").astype(np.int64)
        clients, row_clients = _distinct(self.client_ids)
        if len(row_rounds) != len(row_clients):
            raise_invalid(
                "round_ids",
                row_rounds,
                f"to be as many as the {len(row_clients)} client_ids",
            )
        first = int(row_rounds.min())
        last = int(row_rounds.max())
        rounds = last - first + 1
        if rounds > _MAX_ROUNDS:
            raise_invalid(
                "rounds", rounds, f"(from {first} to {last}) <= {_MAX_ROUNDS}"
            )
        # One number for each pair of a round and a client, in the order of rounds.
        pairs = (row_rounds - first) * len(clients) + row_clients
        distinct_pairs, counts = np.unique(pairs, return_counts=True)
        round_ids, client_ids = np.divmod(distinct_pairs, len(clients))
        if counts.max() > 1:
            row = int(np.argmax(counts > 1))
            client = clients[client_ids[row]].item()
            number = int(round_ids[row]) + first
            raise ValueError(
                f"Expected client_id={client!r} once, got it twice in round {number}."
            )
        columns = {
            "round_ids": round_ids,
            "client_ids": client_ids,
            "clients": clients,
        }
        for name, values in columns.items():
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        object.__setattr__(self, "rounds", rounds)
        super().__post_init__()

    @classmethod
    def read(cls, path: Path | str) -> Trace:
        """The trace in a file with the columns ``round`` and ``client_id``.

        The file is CSV, TSV or JSON lines, which may be compressed with gzip (``.csv.gz``), or
        Parquet. Rows may be in any order; other columns are ignored. Client ids are read as
        text with all their digits, and become integers if all of them are written as integers.
        A round without clients releases only noise. A file in which most rounds have no clients
        is refused, as its round numbers are probably time stamps.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if the file holds no trace; the message names the file, and the line or
                column.
        """
        readers = dict.fromkeys((*TEXT_ENDINGS, ".parquet"), _read)
        return read_table(Path(path), readers, "a participation trace")

    @property
    def population(self) -> int:
        """Number of clients that take part at least once."""
        return len(self.clients)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        names = ("round_ids", "client_ids", "clients")
        return all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in names
        )

    def __hash__(self) -> int:
        return hash((self.rounds, self.population, len(self.client_ids)))

    def participations(self) -> float:
        """Mean participations of the trace's clients."""
        return len(self.client_ids) / self.population

    def most_participations(self) -> int:
        """The largest number of participations of a client."""
        return int(np.bincount(self.client_ids).max())

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: each client of the trace is a type of `Events`.

        The events do not depend on ``population``, whose participants replay these clients.
        """
        events = Events.certain(
            self.client_ids, self.round_ids, self.population
        )
        return dataclasses.replace(super().law(population), events=events)

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(the trace's cohort) a round."""
        size = self.population
        # Column i has the participants that replay client i, one in each row; -1 for none. Each
        # row but the last has a participant for every client, and the last one for clients that
        # are drawn at random.
        replaying = np.full((math.ceil(population / size), size), -1)
        if population == size:
            replaying[0] = np.arange(size)
        else:
            participants = rng.permutation(population)
            for index, row in enumerate(replaying):
                part = participants[index * size : (index + 1) * size]
                replayed_clients = rng.permutation(size)[: len(part)]
                row[replayed_clients] = part
        ends = np.searchsorted(self.round_ids, np.arange(self.rounds + 1))
        for start, end in itertools.pairwise(ends):
            cohort = replaying[:, self.client_ids[start:end]]
            yield np.sort(cohort[cohort >= 0])


class _CodedClients(NamedTuple):
    """The clients of a file's rows, with each id stored once.

    An array with the id of every row would be large: all its texts are as wide as the longest.

    Attributes:
        ids: the id of every distinct client.
        codes: for each row, the index of its client in ``ids``.
    """

    ids: np.ndarray
    codes: Integers


def _distinct(clients: Any) -> tuple[np.ndarray, Integers]:
    """The distinct ids of clients in ascending order, and the index of each row's client.

    Args:
        clients: the id of each row, as passed to `Trace`; or `_CodedClients`, which `_read` passes
            instead to save memory.
    """
    if isinstance(clients, _CodedClients):
        ids, indices = np.unique(clients.ids, return_inverse=True)
        return ids, indices[clients.codes]
    is_sequence = isinstance(clients, list | tuple)
    if is_sequence and all(type(client) is int for client in clients):
        clients = _integers(clients)
    return np.unique(_vector("client_ids", clients, "iuU"), return_inverse=True)


def _vector(name: str, values: Any, kinds: str) -> np.ndarray:
    """``values`` as a vector whose type has one of these one-letter NumPy ``kinds``."""
    vector = np.asarray(values)
    if vector.ndim != 1 or not len(vector):
        raise_invalid(name, vector, "of shape (rows,) with rows >= 1")
    if vector.dtype.kind not in kinds:
        expected = "integers or strings" if "U" in kinds else "integers"
        raise ValueError(
            f"Expected {name} to be {expected}, got {vector.dtype}."
        )
    return vector


def _read(path: Path) -> Trace:
    """The trace in a file, see `Trace.read`."""
    rounds = array.array("q")
    clients = array.array("q")
    codes: dict[str, int] = {}  # the index of every distinct client
    table = table_rows(path, COLUMNS, every=True)
    for number, (round_cell, client_cell) in table.rows:
        try:
            rounds.append(_round_number(round_cell))
            client = _client_text(client_cell)
            clients.append(codes.setdefault(client, len(codes)))
        except ValueError as error:
            raise ValueError(f"{table.place(number)}: {error}") from error
    coded_clients = _CodedClients(_ids(list(codes)), np.asarray(clients))
    return _checked_trace(np.asarray(rounds), coded_clients)


def _round_number(cell: Any) -> int:
    """The 64-bit integer in a cell; ``1_0``, which Python would accept, is refused."""
    message = f"{ROUND}={shown(cell)} is not an integer"
    try:
        number = int(str(cell))
    except ValueError as error:
        raise ValueError(message) from error
    if "_" in str(cell) or abs(number) > LARGEST:
        raise ValueError(message)
    return number


def _client_text(cell: Any) -> str:
    """The id in a cell as text; an integer keeps all its digits, and floats are refused."""
    if cell is not None and type(cell) not in (int, str):
        raise ValueError(
            f"{CLIENT}={shown(cell)} is neither an integer nor text"
        )
    text = "" if cell is None else str(cell).strip()
    if not text:
        raise ValueError(f"{CLIENT} is empty")
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(
            f"{CLIENT} is longer than {_MAX_CHARACTERS} characters"
        )
    return text


def _ids(texts: list[str]) -> np.ndarray:
    """The ids as integers if Python would write each in this way, else as texts.

    So "7" and "07" stay two clients.
    """
    try:
        numbers = _integers([int(text) for text in texts])
    # Some text is no integer, or an integer of more than 64 bits.
    except ValueError:
        return np.array(texts)
    is_exact = [str(number) for number in numbers.tolist()] == texts
    if is_exact:
        return numbers
    return np.array(texts)


def _integers(values: Sequence[int]) -> np.ndarray:
    """The values as int64, or as uint64 if one is too large, like node ids of Flower.

    NumPy would convert a mixture of both to float64.
    """
    kind = np.uint64 if max(values, default=0) > LARGEST else np.int64
    try:
        return np.array(values, kind)
    except OverflowError as error:
        raise ValueError(
            "Expected client_ids to be texts, or integers of 64 bits."
        ) from error


def _checked_trace(round_ids: Integers, client_ids: Any) -> Trace:
    """The trace of a file's rows.

    Args:
        round_ids: the round of each row.
        client_ids: the clients of the rows, as for `_distinct`.

    Raises:
        ValueError: if there is no row, if all distances between rounds with clients have a common
            divisor, or if most rounds have no clients.
    """
    if not len(round_ids):
        raise ValueError("there is no row")
    used = np.unique(round_ids)
    rounds = int(used[-1]) - int(used[0]) + 1
    # All distances have a common divisor, as in 10, 20, 40.
    has_regular_gaps = np.gcd.reduce(np.diff(used)) > 1
    if has_regular_gaps or 2 * len(used) < rounds:
        raise ValueError(
            f"from {used[0]} to {used[-1]} are {rounds:,} rounds, and {len(used):,} of them have "
            "clients. Are the round numbers time stamps, or do they have gaps? Number the rounds "
            "that released a model 0, 1, 2, …"
        )
    return Trace(round_ids, client_ids)
