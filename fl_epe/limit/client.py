"""ε of one client of a future run, for one adversary, with the theoretical bound.

The median client's ε is the one that `fl_epe.auditing.answers` reports of such a run on
average: the client, the adversary and the functions are the same, at κ = 1. The worst-case
client is the one that takes part most often.

Examples:
    >>> from fl_epe.schedules import ShuffledEpochs
    >>> record = expected_record(ShuffledEpochs(60, 12), 1.0, 1e-5, 120)
    >>> client = median_client(record, "all")
    >>> round(client.epsilon, 1), round(client.theory.epsilon, 1), client.theory.knows_rounds
    (20.1, 20.1, True)
"""

import dataclasses
import math
from typing import Literal, Unpack

import numpy as np

from fl_epe import accounting
from fl_epe.auditing import (
    Adversary,
    Analytical,
    AuditedClient,
    AuditRecord,
    Sees,
    analytical,
    client_epsilon,
    seen_by,
)
from fl_epe.auditing.estimate import half_width
from fl_epe.checks import Floats, check_probability
from fl_epe.limit.simulated_record import LimitSetting, limit_record
from fl_epe.schedules import Schedule, clients_of

# The largest number of clients in a record's log; the median of more clients is about the same.
_MAX_LOGGED = 10_000

# The number of canaries' places if only expected scores matter: enough that some canaries take
# part.
_PLACES = 13

# The relative error of ε by numerical methods, with known rounds and with secret ones
# (docs/notes/unknown-rounds.md).
_ROUNDING = 1e-6
_ROUNDING_SECRET = 5e-3


@dataclasses.dataclass(frozen=True)
class ClientEpsilon:
    """ε of one client against one adversary, and the theoretical bound for the same client.

    Attributes:
        client: "median" for the median client by participations, or "worst-case" for a number
            of participations that no client exceeds, with some confidence.
        sees: the models that the adversary sees, "final" or "all", see `Adversary`.
        theory: the theoretical bound, with the adversary and the adjacency of all these
            numbers.
        participations: the participations of the client; the expected number if its rounds are
            secret.
        epsilon: the expected ε, or the mean of the ε that trainings measured.
        low: the lower end of the interval, of a run with the canaries of the record or of the
            mean.
        high: the upper end of that interval.
        above: whether ε exceeds the theoretical bound by more than chance.
    """

    client: Literal["median", "worst-case"]
    sees: Sees
    theory: Analytical
    participations: float
    epsilon: float
    low: float
    high: float
    above: bool = False


def expected_record(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    clients: int,
    *,
    places: int = _PLACES,
    round_share: float = 1.0,
    **setting: Unpack[LimitSetting],
) -> AuditRecord:
    """A `limit_record` of canaries beside real clients, for the expected scores of a run.

    Args:
        schedule: the participation schedule.
        noise_multiplier: the noise multiplier z of the clients' sum.
        delta: the target δ.
        clients: the number of real clients; a trace has its own.
        places: the number of canaries' places, see `CanaryLoad`.
        round_share: the fraction of a place's rounds in which its canaries take part, see
            `CanaryLoad`.
        setting: the further setting of the limit, see `LimitSetting`.

    Raises:
        ValueError: under the same conditions as in `limit_record`.
    """
    record = limit_record(
        schedule,
        noise_multiplier,
        delta,
        num_canaries=places,
        unobserved=0,
        beside=clients_of(schedule, min(clients, _MAX_LOGGED)),
        round_share=round_share,
        **setting,
    )
    law = schedule.law(clients)
    if not law.hidden:
        return record
    # Theorems on secret rounds depend on the number of clients, and need no log.
    return record.with_values(participation=law.in_record())


def expected_epsilon(
    record: AuditRecord, sees: Sees, scale: float = 1.0
) -> float:
    """ε of the median client if scores are ``scale`` (κ) times as large as expected.

    Raises:
        NotMeasured: a `ValueError`, if no canary takes part.
    """
    view = seen_by(record, Adversary(sees))
    return client_epsilon(view, AuditedClient.of(record), scale, record.delta)


def median_client(
    record: AuditRecord, sees: Sees, confidence: float | None = None
) -> ClientEpsilon:
    """ε of the median client, which `fl_epe.auditing.answers` is expected to report.

    Args:
        record: a record from `expected_record`.
        sees: the models that the adversary sees, "final" or "all".
        confidence: the confidence of the interval by the record's canaries; without it, both
            ends are ε.

    Raises:
        NotMeasured: a `ValueError`, if no canary takes part.
    """
    view = seen_by(record, Adversary(sees))
    client = AuditedClient.of(record)
    epsilon = client_epsilon(view, client, 1.0, record.delta)
    low = epsilon
    high = epsilon
    if confidence is not None:
        check_probability("confidence", confidence)
        # The standard error of κ is 1/√(Σ expected score²).
        energy = float(np.sum(view.expected_scores.observed**2))
        half = half_width(confidence) / math.sqrt(energy)
        low = client_epsilon(view, client, 1 - half, record.delta)
        high = client_epsilon(view, client, 1 + half, record.delta)
    theory = analytical(record.mechanism, client, record.delta)
    return ClientEpsilon(
        client="median",
        sees=sees,
        theory=theory,
        participations=client.participations,
        epsilon=epsilon,
        low=low,
        high=high,
        above=exceeds(epsilon, theory),
    )


def exceeds(epsilon: float, theory: Analytical) -> bool:
    """Whether ε exceeds the theoretical bound by more than the error of numerical methods."""
    if theory.epsilon is None:
        return False
    error = _ROUNDING if theory.knows_rounds else _ROUNDING_SECRET
    return bool(epsilon > theory.epsilon * (1 + error))


def worst_client(
    record: AuditRecord,
    schedule: Schedule,
    sees: Sees,
    clients: int,
    confidence: float = 0.95,
    seed: int = 0,
) -> ClientEpsilon | None:
    """An ε that no client exceeds, for an adversary who knows the client's rounds.

    Args:
        record: a record from `expected_record`.
        schedule: the participation schedule.
        sees: the models that the adversary sees, "final" or "all".
        clients: the number of clients.
        confidence: the probability that no client exceeds it.
        seed: the seed of the clients that are drawn, if the schedule has no law in closed form.

    Returns:
        The worst-case client, or ``None`` if the schedule has no law in closed form and drawing
        all clients would take minutes.
    """

    def law_of_sums(weights: Floats) -> accounting.ExpectedScoreLaw | None:
        return accounting.clients_law(
            schedule, weights, clients, confidence=confidence, seed=seed
        )

    has_strategy = record.mechanism.strategy is not None
    view = seen_by(record, Adversary(sees))
    if sees == "final":
        scores = law_of_sums(view.expected_scores.by_round)
    elif has_strategy and schedule.most_participations() > 1:
        # A score depends on which rounds of the client are near each other.
        scores = accounting.drawn_law(
            schedule,
            view.expected_scores.of,
            clients,
            confidence=confidence,
            seed=seed,
        )
    else:
        squares = law_of_sums(view.expected_scores.by_round)
        scores = None if squares is None else squares.root()
    counts = law_of_sums(np.ones(schedule.rounds))
    if scores is None or counts is None:
        return None
    expected_score = scores.largest(clients, confidence)
    participations = counts.largest(clients, confidence)
    epsilon = float(accounting.epsilon_of_shift(expected_score, record.delta))
    theory = Analytical(
        epsilon=_bound_of_known_rounds(
            record, schedule, clients, participations
        ),
        knows_rounds=True,
        adjacency="zero-out",
        assumption="the adversary knows the client's rounds",
    )
    return ClientEpsilon(
        client="worst-case",
        sees=sees,
        theory=theory,
        participations=participations,
        epsilon=epsilon,
        low=epsilon,
        high=epsilon,
        above=exceeds(epsilon, theory),
    )


def _bound_of_known_rounds(
    record: AuditRecord,
    schedule: Schedule,
    clients: int,
    participations: float,
) -> float:
    """The theoretical ε of a client with these participations, in known rounds."""
    mechanism = record.mechanism
    z = mechanism.noise_multiplier or 0.0
    if mechanism.strategy is None:
        return accounting.gaussian_epsilon(
            z, record.delta, round(participations)
        )
    bounds = accounting.strategy_bounds(
        schedule.law(clients), mechanism.strategy, z, record.delta
    )
    bounds_of_each_run = [bound for bound in bounds if not bound.averages]
    return accounting.tightest(bounds_of_each_run, rounds_known=True).epsilon
