"""The rows of a comparison: ε of the median and of the worst-case client, by two adversaries.

Nothing is trained, and but for the clients of the log nothing is drawn: every ε is that of
`fl_epe.limit.client`.
"""

import dataclasses
import functools
from pathlib import Path

from fl_epe import accounting
from fl_epe.auditing import AuditRecord, NotMeasured, Sees
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
from fl_epe.schedules import Schedule, clients_of, make_schedule

DRAWN_CONFIDENCE = 0.999  # of all bounds by drawn losses

_CLOSE = 1e-3  # relative error of noise for a target

BOTH: tuple[Sees, Sees] = ("final", "all")

_load_run = functools.lru_cache(maxsize=1)(AuditRecord.load)
_schedule = functools.lru_cache(maxsize=64)(make_schedule)


def guaranteed_epsilon(
    schedule: Schedule,
    clients: int,
    noise_multiplier: float,
    delta: float,
    mechanism: str,
) -> float:
    """The smallest ε that theory guarantees every client, if the adversary sees every round.

    δ is a mean over what the schedule draws. The adversary is not told a client's rounds where the
    schedule hides them. An ε against removing a client holds against zeros in its place as well, as
    coins of one client do not depend on another's. So all schedules can be compared.

    Args:
        schedule: the participation schedule.
        clients: how many there are.
        noise_multiplier: z ≥ 0.
        delta: in (0, 1).
        mechanism: of the noise, as `fl_epe.mechanism.parse_strategy` reads it.
    """
    law = schedule.law(clients)
    strategy = strategy_matrix(mechanism, schedule.rounds)
    found = accounting.strategy_bounds(law, strategy, noise_multiplier, delta)
    return accounting.tightest(found, rounds_known=not law.hidden).epsilon


def drawn_guarantee(
    plan: ComparisonPlan, schedule: Schedule, clients: int, cell: Cell, delta: float
) -> float | None:
    """As `guaranteed_epsilon`, by Monte Carlo of the plan's ``draws``.

    With the confidence `DRAWN_CONFIDENCE` it holds for all cells of the plan at once.

    Returns:
        ``None`` without draws, where theory is exact, or where there is nothing to draw, see
        `fl_epe.accounting.drawn_epsilon`.
    """
    law = schedule.law(clients)
    strategy = strategy_matrix(cell.mechanism, schedule.rounds)
    exact = (
        strategy is None and law.events is not None and len(law.events.independent) > 0
    )
    if plan.draws is None or exact:
        return None
    return accounting.drawn_epsilon(
        law,
        strategy,
        cell.noise_multiplier,
        delta,
        draws=plan.draws,
        seed=plan.seed,
        confidence=1 - (1 - DRAWN_CONFIDENCE) / plan.combinations,
    )


def needed_noise(
    schedule: Schedule,
    clients: int,
    target_epsilon: float,
    delta: float,
    mechanism: str,
) -> float:
    """The least noise multiplier whose `guaranteed_epsilon` is at most ``target_epsilon``."""

    def guaranteed(noise: float) -> float:
        return guaranteed_epsilon(schedule, clients, noise, delta, mechanism)

    return accounting.noise_at(guaranteed, target_epsilon, close=_CLOSE)


@dataclasses.dataclass(frozen=True)
class Row:
    """One schedule at one noise multiplier and number of participations.

    Attributes:
        schedule: its specification.
        noise_multiplier: z.
        participations: expected participations asked for.
        delta: δ of every ε.
        clients: number of clients.
        answers: one for each client and adversary; the worst-case client's in the limit alone.
        accuracy: mean over the replicates, on held-out data; ``None`` in the limit.
        skipped: why the combination is impossible; ``None`` if it is not.
        not_measured: why an ε is missing although it is possible; ``None`` if none is.
        diverged: why its model has diverged; ``None`` if it has not.
        rounds: number of rounds, in the limit.
        guaranteed: `guaranteed_epsilon`; ``None`` of a training, or like a run.
        drawn: `drawn_guarantee`, if there is one.
        needed_noise: for the plan's target, in the middle of its grid; else ``None``.
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
        """Why the row is not what was asked for: not measured, or of a model that diverged."""
        if self.not_measured is not None:
            return f"not measured: {self.not_measured}"
        return None if self.diverged is None else f"diverged: {self.diverged}"

    @property
    def above(self) -> bool:
        """Whether any ε lies above theory by more than chance allows."""
        return any(each.above for each in self.answers)

    def of(self, client: str, sees: str) -> ClientEpsilon | None:
        """The answer for a client and what is seen."""
        return next(
            (a for a in self.answers if (a.client, a.sees) == (client, sees)), None
        )


def measure(plan: ComparisonPlan, cell: Cell) -> Row:
    """A cell in the limit.

    Raises:
        ValueError: if the combination is impossible.
    """
    like = None if plan.like is None else _load_run(record_in(Path(plan.like)))
    rounds = rounds_like(like, plan.rounds, ROUNDS)
    schedule = _schedule(cell.schedule, rounds, cell.participations)
    clients = plan.clients or (like and like.design.num_clients) or CLIENTS
    clients = clients_of(schedule, clients)
    record = expected_record(
        schedule,
        cell.noise_multiplier,
        chosen_delta(plan.delta, clients),
        clients,
        strategy=strategy_matrix(cell.mechanism, rounds),
        **limit_like(like, plan.server_momentum),
    )
    median = []
    failure = None
    for sees in BOTH:
        try:
            median.append(median_client(record, sees))
        except NotMeasured as error:  # theory may know what canaries cannot show
            failure = str(error)
    worst = [
        worst_client(record, schedule, sees, clients, plan.confidence, plan.seed)
        for sees in BOTH
    ]
    found = (*median, *filter(None, worst))
    row = Row(
        *cell.place, record.delta, clients, found, not_measured=failure, rounds=rounds
    )
    if like is not None:  # whose clip norms may have cost a part of the noise
        return row
    setting = schedule, clients, cell.noise_multiplier, record.delta, cell.mechanism
    wanted = None
    if plan.target_epsilon is not None and cell.place[1:] == plan.middle:
        wanted = needed_noise(
            schedule, clients, plan.target_epsilon, record.delta, cell.mechanism
        )
    return dataclasses.replace(
        row,
        guaranteed=guaranteed_epsilon(*setting),
        drawn=drawn_guarantee(plan, schedule, clients, cell, record.delta),
        needed_noise=wanted,
    )
