"""Which clients of a real deployment are worst case, from the log of who took part when.

The limit of a large model gives every client of a `Trace` its expected score, as if its updates
had the full clip norm and only the noise hid them. The ε of that score is an estimate of what an
auditing adversary would achieve on average, and no guarantee. Derivation: docs/notes/limit.md.

Examples:
    >>> found = exposure(Trace([0, 1, 1], ["a", "a", "b"]), noise_multiplier=1.0, delta=1e-5)
    >>> found.top(1)[0].name
    'a'
    >>> [effect.cap for effect in found.caps]
    [1, 2]
"""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.checks import Floats, check_count, check_probability
from fl_epe.limit.simulated_record import limit_weights
from fl_epe.schedules import Capped, Trace
from fl_epe.seeding import generator


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
        cap: most participations of a client, in the run or in any ``window`` consecutive rounds.
        window: see ``cap``; ``None`` for the run.
        refused: share of the participations that the cap refuses.
        touched: share of the clients with a refused participation.
        epsilon_final: ε of the worst-case client with the cap, at the same noise, for an
            adversary who sees the final model.
        epsilon_every_round: the same for an adversary who sees every round's model.
        noise_final: the noise multiplier at which the cap leaves the largest ε unchanged, for an
            adversary who sees the final model.
        noise_every_round: the same for an adversary who sees every round's model.
    """

    cap: int
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
        trace: the log.
        participations: number of rounds in which each client takes part.
        final: expected scores for an adversary who sees the final model.
        every_round: expected scores for an adversary who sees every round's model and knows the
            rounds of each client.
        caps: what caps of 1, 2, 4, 8 … would change, up to the smallest that refuses nothing.
    """

    noise_multiplier: float
    delta: float
    trace: Trace
    participations: NDArray[np.int64]
    final: Floats
    every_round: Floats
    caps: tuple[CapEffect, ...]

    def top(self, count: int) -> list[ExposedClient]:
        """The ``count`` worst-case clients by every round's model, the worst-case one first."""
        check_count("top", count)
        order = np.lexsort((-self.final, -self.every_round))[:count]
        names, times = self.trace.clients[order].tolist(), self.participations[order]
        return self._described(names, times, self.final[order], self.every_round[order])

    def levels(self) -> list[ExposedClient]:
        """The mean, the median, the 99th percentile and the maximum of each column.

        Between two clients a quantile is the larger value. The ε of the mean is that of the mean
        score, as canaries measure it.
        """
        names = ["mean", "median", "99th percentile", "worst case"]
        columns = [
            np.append(column.mean(), np.quantile(column, [0.5, 0.99, 1.0], method="higher"))
            for column in (self.participations, self.final, self.every_round)
        ]
        return self._described(names, *columns)

    def _described(
        self, names: list[Any], times: NDArray[Any], final: Floats, every_round: Floats
    ) -> list[ExposedClient]:
        scores = final, every_round
        columns = (times, *scores, *(_epsilons(values, self.delta) for values in scores))
        rows = zip(names, *(column.tolist() for column in columns), strict=True)
        return [ExposedClient(*row) for row in rows]


def exposure(
    trace: Trace,
    noise_multiplier: float,
    delta: float,
    *,
    window: int | None = None,
    momentum: float = 0.0,
) -> Exposure:
    """How exposed each client of a log is, and what caps on participation would change.

    Args:
        trace: who took part when, for all rounds of the run.
        noise_multiplier: z > 0 of the clients' sum.
        delta: δ in (0, 1).
        window: if given, cap participations in any ``window`` consecutive rounds, not in the run.
        momentum: of the server's SGD, in [0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    check_probability("delta", delta)
    if window is not None:
        check_count("window", window)
    final, every_round = limit_weights(trace.rounds, noise_multiplier, momentum=momentum)

    def scores(when: NDArray[np.int64], who: NDArray[np.int64]) -> tuple[Floats, Floats]:
        first, second = (
            np.bincount(who, per_round[when], trace.population).astype(np.float64)
            for per_round in (final, every_round)
        )
        return first, np.sqrt(second)

    def effect(cap: int) -> CapEffect:
        caps = {"per_run": cap} if window is None else {"per_window": cap, "window": window}
        cohorts = Capped(trace, **caps).cohorts(trace.population, generator(0))
        kept = [cohort.copy() for cohort in cohorts]  # a view would keep the whole cohort
        when, who = np.repeat(np.arange(len(kept)), list(map(len, kept))), np.concatenate(kept)
        after = np.array([values.max() for values in scores(when, who)])
        # Scores are in proportion to 1/z.
        return CapEffect(
            cap,
            window,
            1 - len(who) / len(trace.client_ids),
            float(np.mean(np.bincount(who, minlength=trace.population) < participations)),
            *_epsilons(after, delta).tolist(),
            *(noise_multiplier * after / largest).tolist(),
        )

    participations = np.bincount(trace.client_ids)
    found = scores(trace.round_ids, trace.client_ids)
    largest = np.array([values.max() for values in found])
    most = _most(trace, window)
    limits = [*(2**power for power in range(most.bit_length()) if 2**power < most), most]
    caps = tuple(effect(cap) for cap in limits)
    return Exposure(noise_multiplier, delta, trace, participations, *found, caps)


def _most(trace: Trace, window: int | None) -> int:
    """The most participations of a client, in the run or in any ``window`` consecutive rounds."""
    if window is None:
        return trace.most_participations()
    order = np.argsort(trace.client_ids, kind="stable")
    who, when = trace.client_ids[order], trace.round_ids[order]
    # The first row of a client that is less than a window before each of its rows.
    place = who * (trace.rounds + window) + when
    first = np.searchsorted(place, place - window, side="right")
    first = np.maximum(first, np.searchsorted(who, who))
    return int(np.max(np.arange(len(who)) - first)) + 1


def _epsilons(scores: Floats, delta: float) -> Floats:
    return np.asarray(epsilon_two_gaussians(0.0, 1.0, scores, 1.0, delta))
