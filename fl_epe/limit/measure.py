"""The rows of a comparison: ε with intervals and bounds, in the limit by the law of the schedule.

Nothing is drawn where a schedule has a law in closed form. Where it has none, populations are
drawn, the same ones for every noise multiplier.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import scipy

from fl_epe.accounting import (
    ExpectedScoreLaw,
    UpperBound,
    clients_law,
    delta_two_gaussians,
    drawn_law,
    epsilon_two_gaussians,
    known_expected_score_delta,
    known_expected_score_epsilon,
    poisson_epsilon,
    strategy_bounds,
    tightest,
    unknown_expected_score_epsilon,
    unknown_rounds_epsilon,
    upper_bounds,
)
from fl_epe.auditing import AuditRecord, NotMeasured
from fl_epe.checks import Floats
from fl_epe.files import RECORD
from fl_epe.limit.plan import CLIENTS, ROUNDS, Cell, ComparisonPlan, limit_like, rounds_like
from fl_epe.limit.simulated_record import LimitSetting, limit_scores, limit_weights
from fl_epe.mechanism import strategy_matrix
from fl_epe.schedules import Capped, Schedule, make_schedule, trace_of

_load_run = functools.lru_cache(maxsize=1)(AuditRecord.load)
_schedule = functools.lru_cache(maxsize=64)(make_schedule)
_MOMENTUM = 0.9


@dataclasses.dataclass(frozen=True)
class Epsilon:
    """ε of a client drawn at random for one adversary, and what theory says of the same client.

    Adjacency is zero-out everywhere: the client's updates are replaced by zero.

    Attributes:
        epsilon: of a client drawn at random whose rounds the adversary knows, or in
            ``unknown_rounds`` does not know. Of a training whose expected scores are not known, of
            the mean canary.
        low: lower end of the interval of a training or of drawn clients; else ``epsilon``.
        high: upper end of it.
        analytical: the tightest bound for this client and adversary.
        above: the estimate lies above the bound by more than chance allows, all comparisons of
            the plan taken together. Either the bound does not apply or something is wrong.
        simulated: clients were drawn, as the schedule has no law in closed form.
        worst_case: what none of all clients exceeds, at the plan's confidence; ``None`` where that
            is not known.
        unaware: of a client drawn at random whose expected score the adversary does not know.
        mean: at the mean expected score; ``None`` for unknown rounds.
    """

    epsilon: float
    low: float
    high: float
    analytical: UpperBound
    above: bool
    simulated: bool = False
    worst_case: float | None = None
    unaware: float | None = None
    mean: float | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """One schedule at one noise multiplier and number of participations.

    Attributes:
        schedule: its specification.
        noise_multiplier: z.
        participations: expected participations asked for.
        replicates: trainings that were pooled.
        delta: δ of every ε.
        clients: number of clients.
        mean_participations: of a client; of a training's canaries.
        most_participations: what none of the clients exceeds, at the plan's confidence; of a
            training, of any canary.
        final: for an adversary who sees the final model and knows each client's rounds.
        every_round: for an adversary who sees every round's model and knows each client's rounds.
        unknown_rounds: for an adversary who sees every round's model and does not know
            the rounds; ``None`` where there is no closed form.
        analytical_unknown_rounds: the tightest bound against that adversary.
        accuracy: mean over the replicates, on held-out data; ``None`` in the limit.
        skipped: why the combination is impossible; ``None`` if it is not.
        not_measured: why it has no ε although it is possible; ``None`` if it has one.
        diverged: why its model has diverged; ``None`` if it has not.
    """

    schedule: str
    noise_multiplier: float
    participations: float
    replicates: int = 0
    delta: float | None = None
    clients: int | None = None
    mean_participations: float | None = None
    most_participations: int | None = None
    final: Epsilon | None = None
    every_round: Epsilon | None = None
    unknown_rounds: Epsilon | None = None
    analytical_unknown_rounds: float | None = None
    accuracy: float | None = None
    skipped: str | None = None
    not_measured: str | None = None
    diverged: str | None = None

    @property
    def failed(self) -> str | None:
        """Why the row is not what was asked for: not measured, or of a model that diverged."""
        if self.not_measured is not None:
            return f"not measured: {self.not_measured}"
        return None if self.diverged is None else f"diverged: {self.diverged}"

    @property
    def above(self) -> bool:
        """Whether any ε lies above its bound by more than chance allows."""
        return any(
            e is not None and e.above for e in (self.final, self.every_round, self.unknown_rounds)
        )


def quantiles(plan: ComparisonPlan) -> tuple[float, float]:
    """Standard errors of an interval, and of a test whether an estimate lies above its bound.

    The test is at the plan's confidence for all comparisons together (Bonferroni).
    """
    tests = 3 * plan.combinations
    levels = [(1 + plan.confidence) / 2, 1 - (1 - plan.confidence) / tests]
    usual, strict = scipy.special.ndtri(levels)
    return float(usual), float(strict)


def bounds_with(
    schedule: Schedule, z: float, delta: float, clients: int, strategy: Floats | None
) -> tuple[UpperBound, ...]:
    """Every bound, with the ``strategy`` of correlated noise or with independent noise."""
    if strategy is None:
        return upper_bounds(schedule, z, delta, clients)
    return strategy_bounds(schedule, strategy, z, delta, clients)


def bounds_of(
    schedule: Schedule,
    noise_multiplier: float,
    delta: float,
    clients: int,
    strategy: Floats | None = None,
) -> tuple[UpperBound, UpperBound]:
    """The tightest bounds for known and for unknown rounds, for the estimates' adjacency, zero-out.

    A client who takes part by coins is absent in the same way as one whose updates are zero, and
    a client whose updates are zero is one of those that may replace another.
    """
    found = bounds_with(schedule, noise_multiplier, delta, clients, strategy)
    known, unknown = (
        dataclasses.replace(tightest(found, rounds_known=know), adjacency="zero-out")
        for know in (True, False)
    )
    return known, unknown


def epsilon_beside(
    bound: UpperBound, plan: ComparisonPlan, epsilon_by: Callable[[float], float], **more: Any
) -> Epsilon:
    """An estimate with its interval, beside the bound.

    Args:
        bound: the tightest for the same client and adversary.
        plan: says the confidence.
        epsilon_by: ε with so many standard errors added to the estimate.
        more: other fields of `Epsilon`.
    """
    usual, strict = quantiles(plan)
    epsilon, low, high, least = map(epsilon_by, (0.0, -usual, usual, -strict))
    return Epsilon(epsilon, low, high, bound, least > bound.epsilon * (1 + 1e-6), **more)


def epsilon_at(shift: float, delta: float) -> float:
    """ε of one expected score; 0 for a negative one."""
    return float(epsilon_two_gaussians(0.0, 1.0, np.maximum(shift, 0.0), 1.0, delta))


def measure(plan: ComparisonPlan, cell: Cell) -> Row:
    """ε by the schedule's law, of a client drawn at random and of the worst case of all."""
    like = None if plan.like is None else _load_run(Path(plan.like, RECORD))
    rounds = rounds_like(like, plan.rounds, ROUNDS)
    schedule = _schedule(cell.schedule, rounds, cell.participations)
    clients = plan.clients or (like and like.design.num_clients) or CLIENTS
    if (trace := trace_of(schedule)) is not None:
        clients = trace.population
    delta = clients**-1.1 if plan.delta is None else plan.delta
    setting = limit_like(like, plan.server_momentum, _MOMENTUM)
    strategy, z = strategy_matrix(cell.mechanism, rounds), cell.noise_multiplier
    _, every_round = limit_weights(rounds, z, strategy=strategy, **setting)
    known, unknown = bounds_of(schedule, z, delta, clients, strategy)
    counts = client_law(schedule, np.ones(rounds), clients, plan.confidence, plan.seed)
    of_final, of_all = (
        score_law(schedule, z, sees, clients, plan.confidence, strategy, plan.seed, **setting)
        for sees in ("final", "all")
    )
    most = counts.largest(clients, plan.confidence) or counts.expected_scores[-1]
    of_unknown = epsilon_of_unknown_rounds(schedule) if strategy is None else None
    strict = of_unknown(every_round, 1.0, delta) if of_unknown else math.nan
    return Row(
        *cell.place,
        replicates=1,
        delta=delta,
        clients=clients,
        mean_participations=counts.mean,
        most_participations=round(most),
        final=_epsilon(plan, of_final, clients, delta, known, unaware=True),
        every_round=_epsilon(plan, of_all, clients, delta, known),
        unknown_rounds=of_unknown and epsilon_beside(unknown, plan, lambda _: strict),
        analytical_unknown_rounds=unknown.epsilon,
    )


def client_law(
    schedule: Schedule, weights: Floats, clients: int, confidence: float, seed: int = 0
) -> ExpectedScoreLaw:
    """The law of the sum of ``weights`` over a client's rounds; see `clients_law`.

    Raises:
        NotMeasured: a `ValueError`, if none is known and drawing clients would take minutes.
    """
    found = clients_law(schedule, weights, clients, confidence=confidence, seed=seed)
    if found is None:
        raise NotMeasured(
            f"{schedule.kind!r} has no law in closed form, and to draw clients would take minutes"
        )
    return found


def score_law(
    schedule: Schedule,
    noise_multiplier: float,
    sees: str,
    clients: int,
    confidence: float,
    strategy: Floats | None = None,
    seed: int = 0,
    **setting: Unpack[LimitSetting],
) -> ExpectedScoreLaw:
    """The law of a client's expected score against who sees "final" or "all".

    With correlated noise it is drawn for "all" where anybody takes part twice. Arguments and
    errors are as in `client_law` and `limit_weights`.
    """
    weights = limit_weights(schedule.rounds, noise_multiplier, strategy=strategy, **setting)
    if sees == "final":
        return client_law(schedule, weights[0], clients, confidence, seed)
    if strategy is None or schedule.most_participations() <= 1:
        return client_law(schedule, weights[1], clients, confidence, seed).root()
    scores = limit_scores(noise_multiplier, strategy, setting.get("real"))
    return drawn_law(schedule, scores, clients, confidence=confidence, seed=seed)


def _epsilon(
    plan: ComparisonPlan,
    law: ExpectedScoreLaw,
    clients: int,
    delta: float,
    bound: UpperBound,
    *,
    unaware: bool = False,
) -> Epsilon:
    scores, shares = law.expected_scores, law.shares
    epsilon = known_expected_score_epsilon(scores, delta, weights=shares)
    error = _error_of(law, epsilon) if law.drawn else 0.0
    largest = law.largest(clients, plan.confidence)
    return epsilon_beside(
        bound,
        plan,
        lambda by: max(epsilon + by * error, 0.0),
        simulated=law.drawn > 0,
        worst_case=None if largest is None else epsilon_at(largest, delta),
        unaware=unknown_expected_score_epsilon(scores, delta, weights=shares) if unaware else None,
        mean=epsilon_at(law.mean, delta),
    )


def _error_of(law: ExpectedScoreLaw, epsilon: float) -> float:
    """Standard error of ε of a client drawn at random, by that of the mean of their δ."""
    each = np.asarray(delta_two_gaussians(0.0, 1.0, law.expected_scores, 1.0, epsilon))
    variance = max(float(law.shares @ each**2) - float(law.shares @ each) ** 2, 0.0)
    step = 1e-4 * epsilon
    if step == 0 or variance == 0:
        return 0.0
    low, high = (
        known_expected_score_delta(law.expected_scores, epsilon + s, weights=law.shares)
        for s in (-step, step)
    )
    return float(np.sqrt(variance / law.drawn) * 2 * step / (low - high))


def epsilon_of_unknown_rounds(schedule: Schedule) -> Callable[[Floats, float, float], float] | None:
    """ε of a client whose rounds the adversary does not know; ``None`` without a closed form.

    Returns:
        A function of each round's squared expected score, shape ``(T,)``; of κ, how many times its
        size all expected scores have; and of δ.
    """
    while isinstance(schedule, Capped) and not schedule.refuses:
        schedule = schedule.schedule
    rounds, participations = schedule.rounds, schedule.participations()
    everybody = participations >= rounds * (1 - 1e-12)  # in every round
    coins = schedule.unknown_rounds == "coins" and not everybody
    epochs = schedule.unknown_rounds == "epochs" and participations == round(participations)
    if not (everybody or coins or epochs):
        return None

    def epsilon(energy: Floats, scale: float, delta: float) -> float:
        if scale <= 0:
            return 0.0
        signal = scale * np.sqrt(np.maximum(energy, 1e-18))  # 0 in a round without a release
        if coins:
            strength = float(np.sqrt(np.mean(signal**2)))
            return poisson_epsilon(1 / strength, participations / rounds, rounds, delta)
        return unknown_rounds_epsilon(np.array_split(signal, round(participations)), delta)

    return epsilon
