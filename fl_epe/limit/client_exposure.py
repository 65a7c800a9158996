"""How exposed the clients of a real deployment are, from the log of who took part when.

The limit of a large model gives every client of a `Trace` its expected score, as if its updates
had the full clip norm and only the noise hid them. The adversary knows the client's rounds, as the
log names them; adjacency is zero-out. No guarantee. Derivation: docs/notes/limit.md.

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

from fl_epe.accounting import epsilon_of_shift, gaussian_epsilon
from fl_epe.auditing import Adversary, Sees, seen_by
from fl_epe.checks import Floats, Integers, check_count
from fl_epe.limit.client import expected_record, median_client
from fl_epe.schedules import Capped, Trace
from fl_epe.seeding import generator


@dataclasses.dataclass(frozen=True)
class ExposedClient:
    """One client of a log, or the median one.

    Attributes:
        name: the client's id, or "median".
        participations: number of rounds in which it takes part.
        epsilon: its ε.
        analytical: what theory allows a client with so many rounds that the adversary knows.
    """

    name: Any
    participations: float
    epsilon: float
    analytical: float


@dataclasses.dataclass(frozen=True)
class CapEffect:
    """What a cap on participation changes in a log.

    Attributes:
        cap: most participations of a client, in the run or in any ``window`` consecutive rounds.
        window: see ``cap``; ``None`` for the run.
        refused: share of the participations that the cap refuses.
        touched: share of the clients with a refused participation.
        epsilon: ε of the worst-case client with the cap, at the same noise.
        noise_multiplier: z at which the cap leaves the largest ε unchanged.
    """

    cap: int
    window: int | None
    refused: float
    touched: float
    epsilon: float
    noise_multiplier: float


@dataclasses.dataclass(frozen=True, eq=False)
class Exposure:
    """How exposed every client of a log is to one adversary, who knows the client's rounds.

    Attributes:
        noise_multiplier: z of the clients' sum.
        delta: δ.
        sees: "final" or "all".
        trace: the log.
        median: the median client, as in a run's report.
        participations: number of rounds in which each client takes part, ``(clients,)``.
        expected_scores: of each client, ``(clients,)``.
        caps: what caps of 1, 2, 4, 8 … would change, up to the smallest that refuses nothing.
    """

    noise_multiplier: float
    delta: float
    sees: Sees
    trace: Trace
    median: ExposedClient
    participations: Integers
    expected_scores: Floats
    caps: tuple[CapEffect, ...]

    def top(self, count: int) -> list[ExposedClient]:
        """The ``count`` worst-case clients, the worst-case one first."""
        check_count("top", count)
        order = np.argsort(-self.expected_scores, kind="stable")[:count]
        often = self.participations[order]
        limits = [
            gaussian_epsilon(self.noise_multiplier, self.delta, n)
            for n in often.tolist()
        ]
        epsilons = epsilon_of_shift(self.expected_scores[order], self.delta).tolist()
        names = self.trace.clients[order].tolist()
        return list(map(ExposedClient, names, often.tolist(), epsilons, limits))


def exposure(
    trace: Trace,
    noise_multiplier: float,
    delta: float,
    *,
    sees: Sees = "final",
    window: int | None = None,
    momentum: float = 0.0,
) -> Exposure:
    """How exposed each client of a log is, and what caps on participation would change.

    Args:
        trace: who took part when, for all rounds of the run.
        noise_multiplier: z > 0 of the clients' sum.
        delta: δ in (0, 1).
        sees: "final" or "all".
        window: if given, cap participations in any ``window`` consecutive rounds, not in the run.
        momentum: of the server's SGD, in [0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    if window is not None:
        check_count("window", window)
    record = expected_record(
        trace, noise_multiplier, delta, trace.population, momentum=momentum
    )
    weights = seen_by(record, Adversary(sees)).weights

    def scores(when: Integers, who: Integers) -> Floats:
        sums = np.bincount(who, weights[when], trace.population).astype(np.float64)
        return sums if sees == "final" else np.sqrt(sums)

    def effect(cap: int) -> CapEffect:
        caps = (
            {"per_run": cap}
            if window is None
            else {"per_window": cap, "window": window}
        )
        cohorts = Capped(trace, **caps).cohorts(trace.population, generator(0))
        kept = [
            cohort.copy() for cohort in cohorts
        ]  # a view would keep the whole cohort
        when = np.repeat(np.arange(len(kept)), list(map(len, kept)))
        who = np.concatenate(kept)
        largest = float(scores(when, who).max())
        return CapEffect(
            cap,
            window,
            1 - len(who) / len(trace.client_ids),
            float(
                np.mean(np.bincount(who, minlength=trace.population) < participations)
            ),
            float(epsilon_of_shift(largest, delta)),
            noise_multiplier
            * largest
            / float(found.max()),  # scores are in proportion to 1/z
        )

    participations = np.bincount(trace.client_ids)
    found = scores(trace.round_ids, trace.client_ids)
    answer = median_client(record, sees)
    median = ExposedClient(
        "median",
        answer.participations,
        answer.epsilon,
        float(answer.theory.epsilon or 0.0),
    )
    most = _most(trace, window)
    limits = [
        *(2**power for power in range(most.bit_length()) if 2**power < most),
        most,
    ]
    caps = tuple(effect(cap) for cap in limits)
    return Exposure(
        noise_multiplier, delta, sees, trace, median, participations, found, caps
    )


def _most(trace: Trace, window: int | None) -> int:
    """The most participations of a client, in the run or in any ``window`` consecutive rounds."""
    if window is None:
        return trace.most_participations()
    order = np.argsort(trace.client_ids, kind="stable")
    who = trace.client_ids[order]
    when = trace.round_ids[order]
    # The first row of a client that is less than a window before each of its rows.
    place = who * (trace.rounds + window) + when
    first = np.searchsorted(place, place - window, side="right")
    first = np.maximum(first, np.searchsorted(who, who))
    return int(np.max(np.arange(len(who)) - first)) + 1
