"""Which clients of a real deployment are worst case, from the log of who took part when.

The limit of a large model gives every client of a `Trace` its expected score, as if its updates
had the full clip norm and only the noise hid them. The ε of that score is an estimate of what an
auditing adversary would achieve on average, and no guarantee. Derivation: docs/notes/limit.md.

Examples:
    >>> found = exposure(Trace([0, 1, 1], ["a", "a", "b"]), noise_multiplier=1.0, delta=1e-5)
    >>> found.top(1)[0].name
    'a'
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing import EVERY_ROUND, Adversary
from fl_epe.checks import check_count, check_probability
from fl_epe.limit.expected_scores import Participations, ServerSetting, limit_weights
from fl_epe.schedules import Capped, Trace
from fl_epe.seeding import generator

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class ExposedClient:
    """One client of a log, or the mean or a quantile of all.

    Attributes:
        name: the client's id, or the name of the mean or quantile.
        participations: number of rounds in which it takes part.
        final: its expected score for an adversary who sees the final model.
        every_round: its expected score for an adversary who sees every round's model and knows
            the client's rounds.
        epsilon_final: ε of ``final``.
        epsilon_every_round: ε of ``every_round``.
    """

    name: Any
    participations: float
    final: float
    every_round: float
    epsilon_final: float
    epsilon_every_round: float


@dataclasses.dataclass(frozen=True)
class CapEffect:
    """What a cap on participation changes in a log.

    Attributes:
        per_run: most participations in the run; ``None`` for no such cap.
        per_window: most participations in any ``window`` consecutive rounds, or ``None``.
        window: see ``per_window``.
        refused: share of the participations that the cap refuses.
        touched: share of the clients with a refused participation.
        epsilon_final: ε of the worst-case client with the cap, at the same noise, for an
            adversary who sees the final model.
        epsilon_every_round: the same for an adversary who sees every round's model.
        noise_final: the noise multiplier at which the cap leaves the largest ε unchanged, for an
            adversary who sees the final model.
        noise_every_round: the same for an adversary who sees every round's model.
    """

    per_run: int | None
    per_window: int | None
    window: int | None
    refused: float
    touched: float
    epsilon_final: float
    epsilon_every_round: float
    noise_final: float
    noise_every_round: float


@dataclasses.dataclass(frozen=True, eq=False)
class Exposure:
    """How exposed every client of a log is. Arrays have the shape ``(clients,)``.

    Attributes:
        noise_multiplier: z of the clients' sum.
        delta: δ.
        rounds: number of rounds from the log's first to its last.
        clients: the clients' ids, ascending.
        participations: number of rounds in which each takes part.
        final: expected scores for an adversary who sees the final model.
        every_round: expected scores for an adversary who sees every round's model and knows the
            rounds of each client.
        epsilon_final: ε of ``final``.
        epsilon_every_round: ε of ``every_round``.
        cap: what the cap does, if there is one.
        capped: the same log with the cap, if there is one.
    """

    noise_multiplier: float
    delta: float
    rounds: int
    clients: NDArray[Any]
    participations: NDArray[np.int64]
    final: Floats
    every_round: Floats
    epsilon_final: Floats
    epsilon_every_round: Floats
    cap: CapEffect | None = None
    capped: Exposure | None = None

    def order(self, adversary: Adversary = EVERY_ROUND) -> NDArray[np.int64]:
        """Places of the clients in the arrays, the worst-case client first.

        Ties are broken by what the other adversary sees, then by the clients' order.
        """
        keys = (self.final, self.every_round)
        return np.lexsort([-key for key in (keys if adversary.sees == "all" else keys[::-1])])

    def top(self, count: int = 10, adversary: Adversary = EVERY_ROUND) -> list[ExposedClient]:
        """The ``count`` worst-case clients, the worst-case one first."""
        check_count("count", count)
        return [self._client(place) for place in self.order(adversary)[:count]]

    def levels(self) -> list[ExposedClient]:
        """The mean, the median, the 99th percentile and the maximum of each column.

        Between two clients a quantile is the larger value. The ε of the mean is that of the mean
        score, as canaries measure it.
        """
        columns = (self.participations, self.final, self.every_round)
        out = []
        for name, share in (("median", 0.5), ("99th percentile", 0.99), ("worst case", 1.0)):
            quantiles = [float(np.quantile(c, share, method="higher")) for c in columns]
            out.append(self._level(name, *quantiles))
        return [self._level("mean", *(float(column.mean()) for column in columns)), *out]

    def _level(
        self, name: str, participations: float, final: float, every_round: float
    ) -> ExposedClient:
        epsilons = _epsilons(np.array([final, every_round]), self.delta).tolist()
        return ExposedClient(name, participations, final, every_round, *epsilons)

    def _client(self, place: int) -> ExposedClient:
        return ExposedClient(
            self.clients[place].item(),
            int(self.participations[place]),
            float(self.final[place]),
            float(self.every_round[place]),
            float(self.epsilon_final[place]),
            float(self.epsilon_every_round[place]),
        )


def exposure(
    trace: Trace,
    noise_multiplier: float,
    delta: float,
    *,
    per_run: int | None = None,
    per_window: int | None = None,
    window: int | None = None,
    **setting: Unpack[ServerSetting],
) -> Exposure:
    """How exposed each client of a log is, and what a cap on participation would change.

    Args:
        trace: who took part when, for all rounds of the run.
        noise_multiplier: z > 0 of the clients' sum.
        delta: δ in (0, 1).
        per_run: of a cap (`fl_epe.schedules.Capped`): the most participations of a client.
        per_window: of a cap: the most participations in any ``window`` consecutive rounds.
        window: see ``per_window``.
        setting: see `ServerSetting`.

    Raises:
        ValueError: if an argument is out of range.
    """
    log = _Log.of(trace, noise_multiplier, delta, **setting)
    whole = log.exposure(log.rows)
    if per_run is None and per_window is None and window is None:
        return whole
    schedule = Capped(trace, per_run, per_window, window)
    left = log.left_by(schedule)
    return dataclasses.replace(whole, cap=log.effect(schedule, left), capped=log.exposure(left))


def caps(
    trace: Trace,
    noise_multiplier: float,
    delta: float,
    *,
    window: int | None = None,
    limits: Sequence[int] | None = None,
    **setting: Unpack[ServerSetting],
) -> list[CapEffect]:
    """What caps of different sizes would change in a log, the tightest cap first.

    Args:
        trace: who took part when.
        noise_multiplier: z > 0 of the clients' sum.
        delta: δ in (0, 1).
        window: if given, cap participations in any ``window`` consecutive rounds, not in the run.
        limits: the caps; by default 1, 2, 4, 8 … up to the smallest that refuses nothing.
        setting: see `ServerSetting`.

    Raises:
        ValueError: if an argument is out of range.
    """
    log = _Log.of(trace, noise_multiplier, delta, **setting)
    if limits is None:
        limits = _doubling(_most(trace, window))
    schedules = [
        Capped(trace, per_run=limit)
        if window is None
        else Capped(trace, per_window=limit, window=window)
        for limit in limits
    ]
    return [log.effect(schedule, log.left_by(schedule)) for schedule in schedules]


@dataclasses.dataclass(frozen=True, eq=False)
class _Log:
    """A trace, and the `limit_weights` of its rounds."""

    trace: Trace
    noise_multiplier: float
    delta: float
    weights: tuple[Floats, Floats]

    @classmethod
    def of(
        cls, trace: Trace, noise_multiplier: float, delta: float, **setting: Unpack[ServerSetting]
    ) -> _Log:
        check_probability("delta", delta)
        weights = limit_weights(trace.rounds, noise_multiplier, **setting)
        return cls(trace, noise_multiplier, delta, weights)

    @property
    def rows(self) -> Participations:
        return Participations(self.trace.population, self.trace.round_ids, self.trace.client_ids)

    def left_by(self, schedule: Capped) -> Participations:
        """The participations that a cap accepts."""
        many = self.trace.population
        return Participations.of(many, schedule.cohorts(many, generator(0)))

    def exposure(self, rows: Participations) -> Exposure:
        final, every_round = rows.expected_scores(*self.weights)
        return Exposure(
            self.noise_multiplier,
            self.delta,
            self.trace.rounds,
            self.trace.clients,
            rows.counts(),
            final,
            every_round,
            _epsilons(final, self.delta),
            _epsilons(every_round, self.delta),
        )

    def effect(self, schedule: Capped, left: Participations) -> CapEffect:
        before, after = self.largest, self._largest(left)
        epsilon_final, epsilon_every_round = _epsilons(after, self.delta).tolist()
        # Scores are in proportion to 1/z.
        noise_final, noise_every_round = (self.noise_multiplier * after / before).tolist()
        return CapEffect(
            schedule.per_run,
            schedule.per_window,
            schedule.window,
            1 - len(left.client_ids) / len(self.trace.client_ids),
            float(np.mean(left.counts() < self.rows.counts())),
            epsilon_final,
            epsilon_every_round,
            noise_final,
            noise_every_round,
        )

    @functools.cached_property
    def largest(self) -> Floats:
        """The largest expected scores, "final" and "all"."""
        return self._largest(self.rows)

    def _largest(self, rows: Participations) -> Floats:
        return np.array([scores.max() for scores in rows.expected_scores(*self.weights)])


def _most(trace: Trace, window: int | None) -> int:
    """The most participations of a client, in the run or in any ``window`` consecutive rounds."""
    if window is None:
        return trace.most_participations()
    check_count("window", window)
    order = np.argsort(trace.client_ids, kind="stable")
    who, when = trace.client_ids[order], trace.round_ids[order]
    # The first row of a client that is less than a window before each of its rows.
    place = who * (trace.rounds + window) + when
    first = np.searchsorted(place, place - window, side="right")
    first = np.maximum(first, np.searchsorted(who, who))
    return int(np.max(np.arange(len(who)) - first)) + 1


def _doubling(most: int) -> list[int]:
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def _epsilons(scores: Floats, delta: float) -> Floats:
    distinct, places = np.unique(scores, return_inverse=True)
    epsilons = np.asarray(epsilon_two_gaussians(0.0, 1.0, distinct, 1.0, delta))
    return np.asarray(epsilons[places.reshape(-1)])
