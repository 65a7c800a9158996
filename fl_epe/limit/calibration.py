"""The noise multiplier for a target ε, in the limit of a large model.

`fl_epe.limit.client` predicts, for a noise multiplier z, the ε that a run's report is expected to
have for a client and an adversary; this module finds the z of a given ε. The result is an estimate
of what random canaries would measure. For a guarantee, take z from an analytical bound
(`fl_epe.accounting`). The method is in docs/notes/limit.md.

Examples:
    >>> from fl_epe.schedules import ShuffledEpochs
    >>> advice = noise_for_epsilon(ShuffledEpochs(60, 12), 3.0, 1e-5, 120)
    >>> advice.answer.low < advice.answer.epsilon <= 3.0 < advice.answer.high
    True
"""

import contextlib
import dataclasses
import math
from typing import Any, Unpack

from fl_epe.accounting import noise_at
from fl_epe.auditing import (
    CANARY_SHARE,
    REAL_UPDATES_LEFT_OUT,
    AuditRecord,
    CanaryLoad,
    NotMeasured,
    Sees,
    canary_load,
)
from fl_epe.checks import check_positive, raise_invalid
from fl_epe.limit.client import (
    ClientEpsilon,
    expected_epsilon,
    expected_record,
    median_client,
    worst_client,
)
from fl_epe.limit.simulated_record import LimitSetting
from fl_epe.schedules import Schedule, clients_of

# The noise multiplier that replaces 0, as real updates may be zero in some round.
_LEAST_NOISE = 1e-60

# The target ε for which z can be found: far more than the range that privacy is about.
_MIN_TARGET = 1e-9
_MAX_TARGET = 1e6

# The confidence of the expected intervals.
_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class NoiseAdvice:
    """A noise multiplier for a target ε, and the expected result of a run with it.

    Attributes:
        noise_multiplier: the noise multiplier z of the clients' sum.
        target_epsilon: the target ε.
        answer: ε of the client. It is just below the target. If real updates alone hide the
            client, it is further below, and the theoretical bound is the target. Its interval
            is the expected one of a run with the canaries of ``load``.
        delta: the target δ.
        clients: the number of clients.
        load: the canaries of such a run, with the default settings.
        notes: assumptions and warnings, each in one or two sentences.
    """

    noise_multiplier: float
    target_epsilon: float
    answer: ClientEpsilon
    delta: float
    clients: int
    load: CanaryLoad
    notes: tuple[str, ...]


def _load(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    clients: int,
    setting: LimitSetting,
    share: float = CANARY_SHARE,
) -> CanaryLoad:
    """The canaries of a run, which are at most a share of a round."""
    return canary_load(
        clients,
        rounds=schedule.rounds,
        participations=schedule.participations(),
        delta=delta,
        noise_multiplier=noise_multiplier,
        secret=schedule.law(clients).hidden,
        momentum=setting.get("momentum", 0.0),
        share=share,
    )


def noise_for_epsilon(
    schedule: Schedule,
    target_epsilon: float,
    delta: float,
    clients: int,
    *,
    sees: Sees = "final",
    worst_case: bool = False,
    **setting: Unpack[LimitSetting],
) -> NoiseAdvice:
    """The noise multiplier at which a run's report is expected to have the target ε.

    Args:
        schedule: the participation schedule.
        target_epsilon: the target ε, in [1e-9, 1e6].
        delta: the target δ, in (0, 1).
        clients: the number of clients; a trace has its own.
        sees: the models that the adversary sees: "final" or "all". The adversary knows the
            client's rounds unless the schedule hides them.
        worst_case: whether ε is a bound for all clients with 95% confidence, instead of that of
            the median client. The adversary then knows the client's rounds.
        setting: the further setting of the limit, see `LimitSetting`.

    Raises:
        ValueError: if an argument is out of range, if no canary takes part, or if the worst-case
            client's ε has no closed form and drawing clients would take minutes.
    """
    if not _MIN_TARGET <= target_epsilon <= _MAX_TARGET:
        raise_invalid(
            "target_epsilon",
            target_epsilon,
            f"in [{_MIN_TARGET}, {_MAX_TARGET:.0e}]",
        )
    clients = clients_of(schedule, clients)

    def record_at(z: float, **canaries: Any) -> AuditRecord:
        noise = max(z, _LEAST_NOISE)
        return expected_record(
            schedule, noise, delta, clients, **canaries, **setting
        )

    def client_at(z: float) -> ClientEpsilon:
        if not worst_case:
            return median_client(record_at(z), sees)
        client = worst_client(record_at(z), schedule, sees, clients)
        if client is None:
            raise NotMeasured(
                f"{schedule.kind!r} has no law in closed form, and to draw {clients} clients "
                "would take minutes"
            )
        return client

    def epsilon_at(z: float) -> float:
        if worst_case:
            return client_at(z).epsilon
        # The client's theoretical bound may take long, and is not needed.
        return expected_epsilon(record_at(z), sees)

    def allowed_at(z: float) -> float:
        limit = client_at(z).theory.epsilon
        if limit is None:
            return math.inf
        return limit

    has_real_updates = setting.get("real") is not None
    hidden_by_updates = has_real_updates and epsilon_at(0.0) <= target_epsilon
    z = noise_at(
        allowed_at if hidden_by_updates else epsilon_at, target_epsilon
    )
    if not 0 < z < math.inf:
        raise ValueError(
            "Expected noise_multiplier in [e^-512, e^512], found none that fits."
        )
    load = _load(schedule, z, delta, clients, setting)
    answer = client_at(z) if worst_case else None
    if answer is None and load.places:
        with contextlib.suppress(NotMeasured):
            record = record_at(
                z, places=load.places, round_share=load.round_share
            )
            answer = median_client(record, sees, _CONFIDENCE)
    if answer is None:
        # Too few canaries take part, so nothing is measured.
        answer = dataclasses.replace(client_at(z), low=0.0, high=math.inf)
    notes = _notes(
        has_real_updates=has_real_updates,
        hidden_by_updates=hidden_by_updates,
    )
    return NoiseAdvice(z, target_epsilon, answer, delta, clients, load, notes)


def _notes(
    *, has_real_updates: bool, hidden_by_updates: bool
) -> tuple[str, ...]:
    """The assumptions and warnings of a `NoiseAdvice`.

    Args:
        has_real_updates: whether real updates are part of the setting.
        hidden_by_updates: whether they alone would give the target ε.
    """
    notes = [
        "This is an estimate for random canaries, not a guarantee of differential privacy."
    ]
    if hidden_by_updates:
        notes.append(
            "Real updates alone would be enough against random canaries, but without noise nothing "
            "is guaranteed: an attack that knows more about the updates finds its client. This z "
            "is the least at which theory allows the target."
        )
    if has_real_updates:
        notes.append(
            "Real updates and clip norms are held as they were measured, although another noise "
            "multiplier would change them."
        )
    else:
        notes.append(REAL_UPDATES_LEFT_OUT)
    return tuple(notes)


@dataclasses.dataclass(frozen=True)
class CanaryAdvice:
    """The report that is expected of a run with canaries in a share of a round's replies.

    Attributes:
        share: the largest share of the canaries.
        load: as many canaries as fit, but no more than are useful.
        answers: ε of the median client for each adversary, with the interval of such a run; empty
            if too few canaries take part.
    """

    share: float
    load: CanaryLoad
    answers: tuple[ClientEpsilon, ...]


def canary_advice(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    clients: int,
    share: float,
    **setting: Unpack[LimitSetting],
) -> CanaryAdvice:
    """The canaries that a share of a round allows, and the expected intervals of their run.

    Args:
        schedule: the participation schedule.
        noise_multiplier: the noise multiplier z, > 0.
        delta: the target δ, in (0, 1).
        clients: the number of clients; a trace has its own.
        share: the largest share of canaries in a round's replies, in (0, 1).
        setting: the further setting of the limit, see `LimitSetting`.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_positive("noise_multiplier", noise_multiplier)
    clients = clients_of(schedule, clients)
    load = _load(schedule, noise_multiplier, delta, clients, setting, share)
    answers: tuple[ClientEpsilon, ...] = ()
    if load.places:
        with contextlib.suppress(NotMeasured):
            record = expected_record(
                schedule,
                noise_multiplier,
                delta,
                clients,
                places=load.places,
                round_share=load.round_share,
                **setting,
            )
            answers = (
                median_client(record, "final", _CONFIDENCE),
                median_client(record, "all", _CONFIDENCE),
            )
    return CanaryAdvice(share, load, answers)
