"""The rows of a comparison: ε of the median and of the worst-case client, for two adversaries.

Nothing is trained: every ε is that of `fl_epe.limit.client`. Random draws are needed only for the
clients of the record's log, for a worst-case client whose participation has no law in closed form,
and for the Monte Carlo bound of `drawn_guarantee`.
"""

import dataclasses
import functools
from pathlib import Path

from fl_epe import accounting
from fl_epe.auditing import AuditRecord, NotMeasured
from fl_epe.checks import Floats
from fl_epe.config import chosen_delta
from fl_epe.files import record_in
from fl_epe.limit.client import (
    ClientEpsilon,
    expected_record,
    median_client,
    worst_client,
)
from fl_epe.limit.plan import (
    CLIENTS,
    ROUNDS,
    Cell,
    ComparisonPlan,
    limit_like,
    rounds_like,
)
from fl_epe.mechanism import strategy_matrix
from fl_epe.reporting import SEES
from fl_epe.schedules import ParticipationLaw, clients_of, make_schedule

# The confidence of all Monte Carlo bounds together.
DRAWN_CONFIDENCE = 0.999

# The relative error of the noise for a target ε.
_NOISE_ERROR = 1e-3

_load_run = functools.lru_cache(maxsize=1)(AuditRecord.load)
_schedule = functools.lru_cache(maxsize=64)(make_schedule)


def guaranteed_epsilon(
    law: ParticipationLaw,
    strategy: Floats | None,
    noise_multiplier: float,
    delta: float,
) -> float:
    """The smallest ε that theory guarantees every client, if the adversary sees every round.

    δ is a mean over the random choices of the schedule. The adversary does not know a client's
    rounds if the schedule hides them. An ε for add-or-remove adjacency also holds for zero-out
    adjacency, as the participations of one client do not depend on another's. Therefore all
    schedules can be compared.

    Args:
        law: the law of a client's participation.
        strategy: the strategy matrix of correlated noise, shape ``(T, T)``; ``None`` for
            independent noise.
        noise_multiplier: the noise multiplier z ≥ 0.
        delta: the target δ, in (0, 1).
    """
    bounds = accounting.strategy_bounds(law, strategy, noise_multiplier, delta)
    return accounting.tightest(bounds, rounds_known=not law.hidden).epsilon


def drawn_guarantee(
    plan: ComparisonPlan,
    law: ParticipationLaw,
    strategy: Floats | None,
    noise_multiplier: float,
    delta: float,
) -> float | None:
    """`guaranteed_epsilon` by Monte Carlo, with the ``draws`` of the plan.

    It holds with the confidence `DRAWN_CONFIDENCE` for all cells of the plan simultaneously.

    Returns:
        The ε, or ``None`` without draws, if theory is exact, or if there is nothing to draw,
        see `fl_epe.accounting.drawn_epsilon`.
    """
    has_independent_events = (
        law.events is not None and len(law.events.independent) > 0
    )
    # Theory is exact for independent events with independent noise.
    is_exact = strategy is None and has_independent_events
    if plan.draws is None or is_exact:
        return None
    return accounting.drawn_epsilon(
        law,
        strategy,
        noise_multiplier,
        delta,
        draws=plan.draws,
        seed=plan.seed,
        confidence=1 - (1 - DRAWN_CONFIDENCE) / plan.combinations,
    )


@dataclasses.dataclass(frozen=True)
class Row:
    """One schedule at one noise multiplier and number of participations.

    Attributes:
        schedule: the specification of the schedule.
        noise_multiplier: the noise multiplier z.
        participations: the requested expected participations.
        delta: the δ of every ε.
        clients: the number of clients.
        answers: the ε of each client and adversary; the worst-case client's only in the limit.
        accuracy: the mean accuracy of the replicates on held-out data; ``None`` in the limit.
        skipped: the reason why the combination is impossible; ``None`` if it is not.
        not_measured: the reason why an ε is missing although it is possible; ``None`` if none
            is.
        diverged: the reason why the model counts as diverged; ``None`` if it does not.
        rounds: the number of rounds, in the limit.
        guaranteed: the `guaranteed_epsilon`; ``None`` for trainings and for comparisons like a
            run.
        drawn: the `drawn_guarantee`, if there is one.
        needed_noise: the least z for which `guaranteed_epsilon` is at most the plan's target,
            in the middle of its grid; else ``None``.
    """

    schedule: str
    noise_multiplier: float
    participations: float
    delta: float | None = None
    clients: int | None = None
    answers: tuple[ClientEpsilon, ...] = ()
    accuracy: float | None = None
    skipped: str | None = None
    not_measured: str | None = None
    diverged: str | None = None
    rounds: int | None = None
    guaranteed: float | None = None
    drawn: float | None = None
    needed_noise: float | None = None

    @property
    def failed(self) -> str | None:
        """The reason why the row failed: it was not measured, or its model diverged."""
        if self.not_measured is not None:
            return f"not measured: {self.not_measured}"
        if self.diverged is not None:
            return f"diverged: {self.diverged}"
        return None

    @property
    def above(self) -> bool:
        """Whether any ε exceeds the theoretical bound by more than chance."""
        return any(answer.above for answer in self.answers)

    def of(self, client: str, sees: str) -> ClientEpsilon | None:
        """The answer for a client and an adversary."""
        for answer in self.answers:
            if answer.client == client and answer.sees == sees:
                return answer
        return None


def measure(plan: ComparisonPlan, cell: Cell) -> Row:
    """The row of a cell in the limit.

    Raises:
        ValueError: if the combination is impossible.
    """
    run = None if plan.like is None else _load_run(record_in(Path(plan.like)))
    rounds = rounds_like(run, plan.rounds, ROUNDS)
    schedule = _schedule(cell.schedule, rounds, cell.participations)
    clients = plan.clients
    if clients is None and run is not None:
        clients = run.design.num_clients
    clients = clients_of(schedule, clients or CLIENTS)
    z = cell.noise_multiplier
    delta = chosen_delta(plan.delta, clients)
    strategy = strategy_matrix(cell.mechanism, rounds)
    record = expected_record(
        schedule,
        z,
        delta,
        clients,
        strategy=strategy,
        **limit_like(run, plan.server_momentum),
    )
    answers = []
    failure = None
    for sees in SEES:
        try:
            answers.append(median_client(record, sees))
        except NotMeasured as error:
            # There may be a theoretical bound without a measurement.
            failure = str(error)
    for sees in SEES:
        worst = worst_client(
            record, schedule, sees, clients, plan.confidence, plan.seed
        )
        if worst is not None:
            answers.append(worst)
    row = Row(
        *cell.combination,
        delta=delta,
        clients=clients,
        answers=tuple(answers),
        not_measured=failure,
        rounds=rounds,
    )
    if run is not None:
        # No guarantee is stated: if the run's clip norms were adaptive, their noisy counts used a
        # part of the privacy budget.
        return row
    law = schedule.law(clients)
    needed_noise = None
    if plan.target_epsilon is not None and cell.combination[1:] == plan.middle:
        needed_noise = accounting.noise_at(
            lambda noise: guaranteed_epsilon(law, strategy, noise, delta),
            plan.target_epsilon,
            close=_NOISE_ERROR,
        )
    return dataclasses.replace(
        row,
        guaranteed=guaranteed_epsilon(law, strategy, z, delta),
        drawn=drawn_guarantee(plan, law, strategy, z, delta),
        needed_noise=needed_noise,
    )
