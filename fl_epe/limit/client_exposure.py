"""The exposure of the clients of a real deployment, from its participation log.

In the limit of a large model, every client of a `Trace` has an expected score, on the
assumption that its updates have the full clip norm and that only the noise hides them. The
adversary knows the client's rounds from the log; adjacency is zero-out. The results are no
guarantee. The derivation is in docs/notes/limit.md.

Examples:
    >>> log = exposure(Trace([0, 1, 1], ["a", "a", "b"]), noise_multiplier=1.0, delta=1e-5)
    >>> log.top(1)[0].name
    'a'
    >>> [effect.cap for effect in log.caps]
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
        participations: the number of rounds in which it takes part.
        epsilon: the client's ε.
        analytical: the theoretical bound for this number of known rounds.
    """

    name: Any
    participations: float
    epsilon: float
    analytical: float


@dataclasses.dataclass(frozen=True)
class CapEffect:
    """The effect of a cap on participation in a log.

    Attributes:
        cap: the largest number of participations of a client, in the run or in any ``window``
            consecutive rounds.
        window: the number of consecutive rounds of the cap; ``None`` for the run.
        refused: the share of the participations that the cap refuses.
        touched: the share of the clients with a refused participation.
        epsilon: ε of the worst-case client with the cap, at the same noise.
        noise_multiplier: the noise multiplier z with which the cap does not change the largest
            ε.
    """

    cap: int
    window: int | None
    refused: float
    touched: float
    epsilon: float
    noise_multiplier: float


@dataclasses.dataclass(frozen=True, eq=False)
class Exposure:
    """The exposure of every client of a log to an adversary who knows the client's rounds.

    Attributes:
        noise_multiplier: the noise multiplier z of the clients' sum.
        delta: the target δ.
        sees: the models that the adversary sees, "final" or "all".
        trace: the log.
        median: the median client, as in a run's report.
        participations: the number of rounds in which each client takes part, ``(clients,)``.
        expected_scores: the expected score of each client, ``(clients,)``.
        caps: the effects of caps of 1, 2, 4, 8 …, up to the smallest that refuses nothing.
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
        """The ``count`` clients with the largest ε, in descending order."""
        check_count("top", count)
        order = np.argsort(-self.expected_scores, kind="stable")[:count]
        names = self.trace.clients[order].tolist()
        counts = self.participations[order].tolist()
        epsilons = epsilon_of_shift(
            self.expected_scores[order], self.delta
        ).tolist()
        return [
            ExposedClient(
                name=name,
                participations=rounds,
                epsilon=epsilon,
                analytical=gaussian_epsilon(
                    self.noise_multiplier, self.delta, rounds
                ),
            )
            for name, rounds, epsilon in zip(
                names, counts, epsilons, strict=True
            )
        ]


def exposure(
    trace: Trace,
    noise_multiplier: float,
    delta: float,
    *,
    sees: Sees = "final",
    window: int | None = None,
    momentum: float = 0.0,
) -> Exposure:
    """The exposure of each client of a log, and the effects of caps on participation.

    Args:
        trace: the participation log of all rounds of the run.
        noise_multiplier: the noise multiplier z > 0 of the clients' sum.
        delta: the target δ, in (0, 1).
        sees: the models that the adversary sees, "final" or "all".
        window: the number of consecutive rounds in which participations are capped; ``None``
            for caps over the run.
        momentum: the momentum of the server's SGD, in [0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    if window is not None:
        check_count("window", window)
    record = expected_record(
        trace, noise_multiplier, delta, trace.population, momentum=momentum
    )
    weights = seen_by(record, Adversary(sees)).expected_scores.by_round

    def expected_scores(round_ids: Integers, client_ids: Integers) -> Floats:
        sums = np.bincount(client_ids, weights[round_ids], trace.population)
        if sees == "final":
            return sums.astype(np.float64)
        return np.sqrt(sums)

    participations = np.bincount(trace.client_ids)
    scores = expected_scores(trace.round_ids, trace.client_ids)
    largest_score = float(scores.max())

    def effect_of(cap: int) -> CapEffect:
        if window is None:
            capped = Capped(trace, per_run=cap)
        else:
            capped = Capped(trace, per_window=cap, window=window)
        cohorts = list(capped.cohorts(trace.population, generator(0)))
        sizes = [len(cohort) for cohort in cohorts]
        round_ids = np.repeat(np.arange(len(cohorts)), sizes)
        client_ids = np.concatenate(cohorts)
        accepted = np.bincount(client_ids, minlength=trace.population)
        largest_capped = float(expected_scores(round_ids, client_ids).max())
        return CapEffect(
            cap=cap,
            window=window,
            refused=1 - len(client_ids) / len(trace.client_ids),
            touched=float(np.mean(accepted < participations)),
            epsilon=float(epsilon_of_shift(largest_capped, delta)),
            # Expected scores are in proportion to 1/z.
            noise_multiplier=noise_multiplier * largest_capped / largest_score,
        )

    median = median_client(record, sees)
    largest_cap = _most_participations(trace, window)
    caps = [
        2**power
        for power in range(largest_cap.bit_length())
        if 2**power < largest_cap
    ]
    return Exposure(
        noise_multiplier=noise_multiplier,
        delta=delta,
        sees=sees,
        trace=trace,
        median=ExposedClient(
            "median",
            median.participations,
            median.epsilon,
            float(median.theory.epsilon or 0.0),
        ),
        participations=participations,
        expected_scores=scores,
        caps=tuple(effect_of(cap) for cap in [*caps, largest_cap]),
    )


def _most_participations(trace: Trace, window: int | None) -> int:
    """The largest number of participations of a client, in the run or in ``window`` rounds."""
    if window is None:
        return trace.most_participations()
    # The participations of all clients are put on one time line, client after client, with a gap
    # of one window between two clients. A window then has participations of one client only.
    times = np.sort(
        trace.client_ids * (trace.rounds + window) + trace.round_ids
    )
    # For each participation, the index of the first one in the window that ends with it.
    first = np.searchsorted(times, times - window, side="right")
    return int(np.max(np.arange(len(times)) - first)) + 1
