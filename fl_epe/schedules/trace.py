"""Schedules that replay the participation of a real run, from its log."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fl_epe.checks import Integers, raise_invalid
from fl_epe.schedules.contract import Cohort, Schedule
from fl_epe.schedules.law import Events, ParticipationLaw
from fl_epe.table_file import csv_rows, parquet_table, read_table, shown

COLUMNS = ROUND, CLIENT = "round", "client_id"  # of a log
_MOST_ROUNDS = 10**7
_LONGEST = 256  # characters of a client's id: an array of texts is as wide as the longest


@dataclasses.dataclass(frozen=True, eq=False)
class Trace(Schedule):
    """Exactly the participation that was recorded: one row for each client in each round.

    Guarantee: nothing is random for the trace's own clients. Client i of the population is
    ``clients[i]`` of the trace and takes part in the rounds that the trace gives it. Clients differ
    from each other and the rounds are known, so no amplification is claimed. A population of
    another size, such as that of canaries, is a sample: each participant is given a uniformly
    average-case client of the trace, and clients are reused as evenly as possible.

    Attributes:
        rounds: number of rounds from the first to the last, empty ones included.
        round_ids: the round of each row, from 0, ascending. Any integers may be passed; they are
            renumbered so that the smallest is 0.
        client_ids: the client of each row, in ``[0, population)``, ascending within a round. Any
            integers or strings may be passed; they are numbered in ascending order.
        clients: the clients' ids as they were given, ascending.
    """

    kind: ClassVar[str] = "trace"
    part_time: ClassVar[bool] = True

    rounds: int = dataclasses.field(init=False)
    round_ids: Integers = dataclasses.field(repr=False)
    client_ids: Integers = dataclasses.field(repr=False)
    clients: np.ndarray = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        when = _vector("round_ids", self.round_ids, "iu").astype(np.int64)
        clients, who = np.unique(_vector("client_ids", self.client_ids, "iuU"), return_inverse=True)
        if len(when) != len(who):
            raise_invalid("round_ids", when, f"to be as many as the {len(who)} client_ids")
        first = int(when.min())
        last = int(when.max())
        rounds = last - first + 1
        if rounds > _MOST_ROUNDS:  # probably time stamps
            raise_invalid("rounds", rounds, f"(from {first} to {last}) <= {_MOST_ROUNDS}")
        rows, counts = np.unique((when - first) * len(clients) + who, return_counts=True)
        round_ids, client_ids = np.divmod(rows, len(clients))
        if counts.max() > 1:
            at = int(np.argmax(counts > 1))
            client = clients[client_ids[at]].item()
            again = int(round_ids[at]) + first
            raise ValueError(f"Expected client_id={client!r} once, got it twice in round {again}.")
        for name, values in (
            ("round_ids", round_ids),
            ("client_ids", client_ids),
            ("clients", clients),
        ):
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        object.__setattr__(self, "rounds", rounds)
        super().__post_init__()

    @classmethod
    def read(cls, path: Path | str) -> Trace:
        """The trace in a CSV or Parquet file with the columns ``round`` and ``client_id``.

        Rows may be in any order; other columns are ignored. In a CSV file client ids are read as
        integers if all of them are, otherwise as strings. Rounds without any client release noise
        alone; they are refused where most rounds are so, as with time stamps for round numbers.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it holds no trace; the message names the file, and the line or column.
        """
        return read_table(Path(path), {".csv": _csv, ".parquet": _parquet}, "a participation trace")

    @property
    def population(self) -> int:
        """How many clients take part at least once."""
        return len(self.clients)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        names = ("round_ids", "client_ids", "clients")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    def __hash__(self) -> int:
        return hash((self.rounds, self.population, len(self.client_ids)))

    def participations(self) -> float:
        """Mean participations of the trace's clients."""
        return len(self.client_ids) / self.population

    def most_participations(self) -> int:
        """The participations of the client with the most."""
        return int(np.bincount(self.client_ids).max())

    def law(self, population: int) -> ParticipationLaw:
        """See `Schedule.law`: each of the trace's clients is a type of its own."""
        events = Events.certain(self.client_ids, self.round_ids, self.population)
        return dataclasses.replace(super().law(population), events=events)

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(the trace's cohort) a round."""
        many = self.population
        members = np.full((-(-population // many), many), -1)
        if population == many:
            members[0] = np.arange(many)
        else:
            numbers = rng.permutation(population)
            for copy, start in zip(members, range(0, population, many), strict=True):
                part = numbers[start : start + many]
                copy[rng.permutation(many)[: len(part)]] = part
        ends = np.searchsorted(self.round_ids, np.arange(self.rounds + 1))
        for start, end in itertools.pairwise(ends):
            drawn = members[:, self.client_ids[start:end]]
            yield np.sort(drawn[drawn >= 0])


def _vector(name: str, values: Any, kinds: str) -> np.ndarray:
    """``values`` as a vector of integers (kinds "iu") or also strings ("U")."""
    vector = np.asarray(values)
    if vector.ndim != 1 or not len(vector):
        raise_invalid(name, vector, "of shape (rows,) with rows >= 1")
    if vector.dtype.kind not in kinds:
        wanted = "integers or strings" if "U" in kinds else "integers"
        raise ValueError(f"Expected {name} to be {wanted}, got {vector.dtype}.")
    return vector


def _csv(path: Path) -> Trace:
    rows = csv_rows(path)
    names = [name.strip() for name in next(rows, (0, []))[1]]
    if missing := [name for name in COLUMNS if name not in names]:
        raise ValueError(f"column {missing[0]!r} is missing, found {names}")
    at_round, at_client = map(names.index, COLUMNS)
    rounds: list[int] = []
    codes: dict[str, int] = {}  # of every distinct client
    clients: list[int] = []
    for line, row in rows:
        try:
            rounds.append(_round(row[at_round]))
            clients.append(codes.setdefault(_client(row[at_client].strip()), len(codes)))
        except ValueError as error:
            raise ValueError(f"line {line}: {error}") from error
    return _trace(np.array(rounds, np.int64), _ids(list(codes))[clients])


def _round(text: str) -> int:
    """The 64-bit integer that a cell holds; Python's would allow ``1_0``."""
    try:
        return int(np.int64(int(text.replace("_", "?"))))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{ROUND}={shown(text)} is not an integer") from error


def _client(text: str) -> str:
    if not 0 < len(text) <= _LONGEST:
        raise ValueError(f"{CLIENT} is {f'longer than {_LONGEST} characters' if text else 'empty'}")
    return text


def _ids(texts: list[str]) -> np.ndarray:
    """Integers if every text is how Python writes one, so that "7" and "07" stay two clients."""
    strings = np.array(texts)
    try:
        numbers = strings.astype(np.int64)
    except (ValueError, OverflowError):
        return strings
    return numbers if np.array_equal(numbers.astype(str), strings) else strings


def _parquet(path: Path) -> Trace:
    table = parquet_table(path, list(COLUMNS))
    clients = table[CLIENT].to_pylist()
    for client in set(clients):
        _client(str(client).strip())
    return _trace(_vector(ROUND, table[ROUND].to_numpy(), "iu"), np.array(clients))


def _trace(round_ids: Integers, client_ids: np.ndarray) -> Trace:
    """Unless there is no row, or most rounds are without clients."""
    if not len(round_ids):
        raise ValueError("there is no row")
    used = np.unique(round_ids)
    rounds = int(used[-1]) - int(used[0]) + 1
    gaps = np.gcd.reduce(np.diff(used)) > 1  # no two rounds that follow each other
    if gaps or 2 * len(used) < rounds:
        raise ValueError(
            f"from {used[0]} to {used[-1]} are {rounds:,} rounds, and {len(used):,} of them have "
            "clients. Are they time stamps, or numbered with gaps? Number the rounds that "
            "released a model from 0 on"
        )
    return Trace(round_ids, client_ids)
