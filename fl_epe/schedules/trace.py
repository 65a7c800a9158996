"""Schedules that replay the participation of a real run, from its log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import raise_invalid
from fl_epe.schedules.contract import Schedule
from fl_epe.schedules.draws import Cohort
from fl_epe.schedules.trace_file import read_columns

EMPTY_ROUNDS = ("keep", "drop")
MOST_ROUNDS = 10**7
"""A trace with more rounds is refused: its round numbers are probably time stamps."""


class RepeatedRowError(ValueError):
    """A client is in the same round twice; ``row`` counts from 0."""

    def __init__(self, row: int, client: Any, round_id: int) -> None:
        self.row = row
        self.reason = f"client_id={client!r} is in round {round_id} already"
        super().__init__(f"Expected a client at most once in a round, got row {row}: {self.reason}")


@dataclasses.dataclass(frozen=True, eq=False)
class Trace(Schedule):
    """Exactly the participation that was recorded: one row for each client in each round.

    Guarantee: nothing is random. Client i of the population is ``clients[i]`` of the trace and
    takes part in the rounds that the trace gives it. Clients differ from each other and the rounds
    are known, so no amplification is claimed. For canaries see `TraceSample`.

    Attributes:
        rounds: number of rounds from the first to the last, empty ones included.
        round_ids: the round of each row, from 0, ascending. Any integers may be passed; they are
            renumbered so that the smallest is 0.
        client_ids: the client of each row, in ``[0, population)``, ascending within a round. Any
            integers or strings may be passed; they are numbered in ascending order.
        clients: the clients' ids as they were given, ascending.
    """

    kind: ClassVar[str] = "trace"

    rounds: int = dataclasses.field(init=False)
    round_ids: NDArray[np.int64] = dataclasses.field(repr=False)
    client_ids: NDArray[np.int64] = dataclasses.field(repr=False)
    clients: NDArray[Any] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        when = _vector("round_ids", self.round_ids, "iu").astype(np.int64)
        names = _vector("client_ids", self.client_ids, "iuU")
        clients, who = np.unique(names, return_inverse=True)
        if len(when) != len(who):
            raise_invalid("round_ids", when, f"to be as many as the {len(who)} client_ids")
        first, last = int(when.min()), int(when.max())
        rounds = last - first + 1
        if rounds > MOST_ROUNDS:
            raise_invalid("rounds", rounds, f"(from {first} to {last}) <= {MOST_ROUNDS}")
        key = (when - first) * len(clients) + who
        order = np.argsort(key, kind="stable")
        key = key[order]
        repeats = order[1:][key[1:] == key[:-1]]
        if len(repeats):
            row = int(repeats.min())
            raise RepeatedRowError(row, clients[who[row]].item(), int(when[row]))
        round_ids, client_ids = np.divmod(key, len(clients))
        for name, values in zip(
            ("round_ids", "client_ids", "clients"), (round_ids, client_ids, clients), strict=True
        ):
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        object.__setattr__(self, "rounds", rounds)
        super().__post_init__()

    @classmethod
    def read(cls, path: Path | str, empty_rounds: str | None = None) -> Trace:
        """The trace in a CSV or Parquet file with the columns ``round`` and ``client_id``.

        Rows may be in any order; other columns are ignored. In a CSV file client ids are read as
        integers if all of them are, otherwise as strings.

        Args:
            path: of the file.
            empty_rounds: "keep" for rounds without any client, which release noise alone, or "drop"
                to number only the rounds with clients; by default they are kept if they are fewer
                than half, and some rounds follow each other.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it holds no trace; the message names the file, and the line or column. If
                most rounds are empty, as with time stamps for round numbers, or have numbers with
                gaps, and ``empty_rounds`` is not given.
        """
        path = Path(path)
        if empty_rounds not in (None, *EMPTY_ROUNDS):
            raise_invalid("empty_rounds", empty_rounds, "to be 'keep' or 'drop'")
        columns = read_columns(path)
        used, order = np.unique(columns.round_ids, return_inverse=True)
        rounds = int(used[-1]) - int(used[0]) + 1
        gaps = np.gcd.reduce(np.diff(used)) > 1  # no two rounds that follow each other
        if empty_rounds is None and (gaps or 2 * len(used) < rounds):
            raise ValueError(
                f"Expected {path} to hold a log with clients in most rounds: from {used[0]} to "
                f"{used[-1]} are {rounds:,} rounds, and {len(used):,} of them have any. Are they "
                "time stamps, or numbered with gaps? Give empty_rounds=drop to renumber "
                "the rounds with clients, or empty_rounds=keep if the others released a model of "
                "noise alone "
                "(trace:path=FILE,empty_rounds=drop, or --empty-rounds drop of 'advise log')."
            )
        try:
            when = order.reshape(-1) if empty_rounds == "drop" else columns.round_ids
            return cls(when, columns.client_ids)
        except RepeatedRowError as error:
            reason = f"{columns.place(error.row)}: {error.reason}"
            raise ValueError(f"Expected {path} to hold a participation trace: {reason}.") from error
        except ValueError as error:
            raise ValueError(f"Expected {path} to hold a participation trace. {error}") from error

    @property
    def rounds_with_clients(self) -> int:
        """How many of the rounds have any client."""
        return len(np.unique(self.round_ids))

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

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`; ``rng`` is not used.

        Raises:
            ValueError: if ``population`` differs from the trace's.
        """
        if population != self.population:
            wanted = f"to be {self.population}, as in the trace; TraceSample draws any number"
            raise_invalid("population", population, wanted)
        ends = np.searchsorted(self.round_ids, np.arange(1, self.rounds + 1))
        start = 0
        for end in ends:
            yield self.client_ids[start:end].copy()
            start = end


@dataclasses.dataclass(frozen=True)
class TraceSample(Schedule):
    """Everybody takes part whenever an average-case client of a trace does.

    This schedules canaries where clients follow a trace. Guarantee: each participant is given a
    uniformly average-case client of the trace, and clients are reused as evenly as possible.

    Attributes:
        rounds: number of rounds, as in ``trace``.
        trace: the recorded participation.
    """

    kind: ClassVar[str] = "trace-sample"

    rounds: int = dataclasses.field(init=False, repr=False)
    trace: Trace

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", self.trace.rounds)
        super().__post_init__()

    def participations(self) -> float:
        """Mean participations of the trace's clients."""
        return self.trace.participations()

    def most_participations(self) -> int:
        """The participations of the trace's client with the most."""
        return self.trace.most_participations()

    def cohorts(self, population: int, rng: np.random.Generator) -> Iterator[Cohort]:
        """See `Schedule.cohorts`. Costs O(the trace's cohort) a round."""
        many = self.trace.population
        members = np.full((-(-population // many), many), -1)
        numbers = rng.permutation(population)
        for copy, start in zip(members, range(0, population, many), strict=True):
            part = numbers[start : start + many]
            copy[rng.permutation(many)[: len(part)]] = part
        for cohort in self.trace.cohorts(many, rng):
            drawn = members[:, cohort]
            yield np.sort(drawn[drawn >= 0])


def _vector(name: str, values: Any, kinds: str) -> NDArray[Any]:
    """``values`` as a vector of integers (kinds "iu") or also strings ("U")."""
    vector = np.asarray(values)
    if vector.dtype.kind == "O":
        vector = np.asarray(vector.tolist())
    if vector.ndim != 1 or not len(vector):
        raise_invalid(name, vector, "of shape (rows,) with rows >= 1")
    if vector.dtype.kind not in kinds:
        wanted = "integers or strings" if "U" in kinds else "integers"
        raise ValueError(f"Expected {name} to be {wanted}, got {vector.dtype}.")
    return vector
