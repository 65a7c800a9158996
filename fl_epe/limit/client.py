"""ε of one client of a run that is still to come, for one adversary, beside theory.

The median client's ε is what `fl_epe.auditing.answers` says of such a run on average: the same
client, adversary and functions, at κ = 1. The worst-case client is the one who takes part most
often of all.

Examples:
    >>> from fl_epe.schedules import ShuffledEpochs
    >>> record = expected_record(ShuffledEpochs(60, 12), 1.0, 1e-5, 120)
    >>> found = median_client(record, "all")
    >>> round(found.epsilon, 1), round(found.theory.epsilon, 1), found.theory.knows_rounds
    (20.1, 20.1, True)
"""

import dataclasses
import math
from typing import Literal, Unpack

import numpy as np
import scipy

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
from fl_epe.checks import Floats, check_probability
from fl_epe.limit.simulated_record import LimitSetting, limit_record
from fl_epe.schedules import Schedule, clients_of

_LOGGED = 10_000  # clients whose participations are drawn; their median is that of more
PLACES = 13
"""Of canaries where only expected scores are looked at, so that some take part."""

_ROUNDING = 1e-6
_OF_SECRET_ROUNDS = 5e-3  # by which methods differ there (docs/notes/unknown-rounds.md)


@dataclasses.dataclass(frozen=True)
class ClientEpsilon:
    """ε of one client against one adversary, and what theory allows the same client.

    Attributes:
        client: "median": as often in the run as the median client, or "worst-case": as often as
            none of all clients exceeds, at a confidence.
        sees: "final" or "all", as of `Adversary`.
        theory: what it allows, and of which adversary and adjacency all of this is.
        participations: of the client; the expected number where its rounds are secret.
        epsilon: expected, or the mean of what trainings measured.
        low: lower end of the interval, of a run with the canaries of the record, or of the mean.
        high: upper end of it.
        above: whether ε lies above theory by more than chance allows.
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
    places: int = PLACES,
    kept: float = 1.0,
    **setting: Unpack[LimitSetting],
) -> AuditRecord:
    """A record of the limit whose expected scores are those of a run.

    Args:
        schedule: the participation schedule.
        noise_multiplier: z of the clients' sum.
        delta: δ.
        clients: real clients; a trace has its own.
        places: of canaries, see `CanaryLoad`.
        kept: see `CanaryLoad`.
        setting: see `LimitSetting`.

    Raises:
        ValueError: as `limit_record`.
    """
    record = limit_record(
        schedule,
        noise_multiplier,
        delta,
        num_canaries=places,
        unobserved=0,
        beside=clients_of(schedule, min(clients, _LOGGED)),
        kept=kept,
        **setting,
    )
    # Theorems of secret rounds depend on how many clients there are, and need no log.
    law = schedule.law(clients)
    return record.with_values(participation=law.in_record()) if law.hidden else record


def expected_epsilon(record: AuditRecord, sees: Sees, scale: float = 1.0) -> float:
    """ε of the median client where scores are ``scale`` (κ) times as large as expected.

    Raises:
        NotMeasured: a `ValueError`, if no canary takes part.
    """
    view = seen_by(record, Adversary(sees))
    return client_epsilon(view, AuditedClient.of(record), scale, record.delta)


def median_client(
    record: AuditRecord, sees: Sees, confidence: float | None = None
) -> ClientEpsilon:
    """What `fl_epe.auditing.answers` is expected to say.

    Args:
        record: from `expected_record`.
        sees: "final" or "all".
        confidence: of the interval by the record's canaries; without it both ends are ε.

    Raises:
        NotMeasured: a `ValueError`, if no canary takes part.
    """
    view = seen_by(record, Adversary(sees))
    client = AuditedClient.of(record)
    epsilon = low = high = client_epsilon(view, client, 1.0, record.delta)
    if confidence is not None:
        check_probability("confidence", confidence)
        energy = float(np.sum(view.sizes.observed**2))
        half = float(scipy.special.ndtri((1 + confidence) / 2)) / math.sqrt(
            max(energy, 1e-300)
        )
        scales = 1 - half, 1 + half
        low, high = (
            client_epsilon(view, client, scale, record.delta) for scale in scales
        )
    theory = analytical(record.mechanism, client, record.delta)
    often = client.participations
    above = exceeds(epsilon, theory)
    return ClientEpsilon("median", sees, theory, often, epsilon, low, high, above)


def exceeds(epsilon: float, theory: Analytical) -> bool:
    """Whether ε lies above theory by more than numerical methods differ."""
    if theory.epsilon is None:
        return False
    error = _ROUNDING if theory.knows_rounds else _OF_SECRET_ROUNDS
    return bool(epsilon > theory.epsilon * (1 + error))


def worst_client(
    record: AuditRecord,
    schedule: Schedule,
    sees: Sees,
    clients: int,
    confidence: float = 0.95,
    seed: int = 0,
) -> ClientEpsilon | None:
    """What none of ``clients`` clients exceeds, for an adversary who knows the client's rounds.

    Args:
        record: from `expected_record`.
        schedule: the participation schedule.
        sees: "final" or "all".
        clients: how many there are.
        confidence: probability that none exceeds it.
        seed: of clients that are drawn where the schedule has no law in closed form.

    Returns:
        ``None`` if the schedule has no law in closed form, and drawing all would take minutes.
    """
    delta = record.delta
    strategy = record.mechanism.strategy
    z = record.mechanism.noise_multiplier or 0.0
    view = seen_by(record, Adversary(sees))

    def law_of(weights: Floats) -> accounting.ExpectedScoreLaw | None:
        return accounting.clients_law(
            schedule, weights, clients, confidence=confidence, seed=seed
        )

    law = law_of(view.weights)
    if sees == "all" and strategy is not None and schedule.most_participations() > 1:
        law = accounting.drawn_law(
            schedule, view.sizes.of, clients, confidence=confidence, seed=seed
        )
    elif sees == "all" and law is not None:
        law = law.root()
    counts = law_of(np.ones(schedule.rounds))
    largest, most = (
        None if each is None else each.largest(clients, confidence)
        for each in (law, counts)
    )
    if largest is None or most is None:
        return None
    epsilon = float(accounting.epsilon_of_shift(largest, delta))
    if strategy is None:
        limit = accounting.gaussian_epsilon(z, delta, round(most))
    else:
        found = accounting.strategy_bounds(schedule.law(clients), strategy, z, delta)
        limit = accounting.tightest(
            [b for b in found if not b.averages], rounds_known=True
        ).epsilon
    theory = Analytical(
        limit, True, "zero-out", "the adversary knows the client's rounds"
    )
    above = exceeds(epsilon, theory)
    return ClientEpsilon(
        "worst-case", sees, theory, most, epsilon, epsilon, epsilon, above
    )
