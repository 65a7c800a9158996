"""Which schedule to run: that with the smallest guaranteed ε, or the least noise for a wanted one.

Guarantees are compared, see `fl_epe.limit.measure.guaranteed_epsilon`, of schedules that a plan's
constraints allow.
"""

import dataclasses
import math
import shlex
from collections.abc import Sequence

from fl_epe.limit.measure import DRAWN_CONFIDENCE, Row
from fl_epe.limit.plan import CLIENTS, Cell, ComparisonPlan
from fl_epe.reporting import number
from fl_epe.schedules import Schedule, basis_of, clients_of, make_schedule
from fl_epe.seeding import generator
from fl_epe.wording import counted, how_often

_TIE = 0.002  # relative
_OFTEN = 0.95  # of the participations that were asked for, at least
_DRAWN = 10_000  # clients whose cohorts are drawn, at most
_COHORTS = 7  # stream of the seed
_WHOLE = 1e-9


def obstacle(plan: ComparisonPlan, schedule: Schedule, participations: float) -> str:
    """Why a schedule is no answer: it breaks a constraint, or clients come less often than asked.

    It is "" if nothing is against it.
    """
    basis = basis_of(schedule)
    often = schedule.participations()
    if often < participations * _OFTEN:
        return f"its clients take part {how_often(often)} on average"
    if schedule.law(plan.clients or CLIENTS).separation < plan.least_distance:
        return f"two rounds of a client may be less than {plan.least_distance} apart"
    if plan.part_time and not basis.part_time:
        return "it needs clients at times at which they may be offline"
    if plan.clients_draw and not basis.drawn_by_clients:
        return "it needs somebody who knows which clients are online"
    return ""


@dataclasses.dataclass(frozen=True)
class _Choice:
    """A schedule that can be run, and what it costs.

    Attributes:
        row: what was measured of it.
        cell: what it is.
        schedule: the same, made.
        cost: the noise that it needs for a wanted ε, rounded up, or its ε at the row's noise.
        drawn: whether that ε is by drawn losses, and so with a confidence.
    """

    row: Row
    cell: Cell
    schedule: Schedule
    cost: float
    drawn: bool

    @property
    def clients(self) -> int:
        return self.row.clients or CLIENTS


def choice_of(plan: ComparisonPlan, rows: Sequence[Row]) -> tuple[str, str]:
    """Which schedule to run at the middle of a grid, and what else to know; "" if none is known.

    Args:
        plan: with what a schedule must allow.
        rows: at one noise multiplier and number of participations. Of several mechanisms of noise
            only the first counts: equal noise multipliers are not equal noise.
    """
    choices, obstacles = _choices(plan, rows)
    if not choices:
        reasons = "; ".join(f"{name}: {why}" for name, why in obstacles.items())
        return (
            f"No schedule allows what you ask for ({reasons})." if reasons else ""
        ), ""
    best = choices[0]
    tied = [each for each in choices if each.cost <= best.cost * (1 + _TIE)]
    often = counted(best.row.participations, "participation")
    at = f"with {often} in {best.schedule.rounds} rounds"
    if plan.target_epsilon is None:
        noise = best.row.noise_multiplier
        promise = (
            f"ε of every client is at most {number(best.cost)} {at} and z = {noise:g}"
        )
        if best.drawn:
            promise += f" (by Monte Carlo, with {DRAWN_CONFIDENCE:.1%} confidence)"
    else:
        promise = (
            f"z = {best.cost:g} {at} keeps ε of every client at {plan.target_epsilon:g}"
        )
    hidden = best.schedule.law(best.clients).hidden
    sees = "adversary sees every round" + ", not who takes part" * hidden
    names = " or ".join(each.cell.schedule for each in tied)
    answer = f"Run {names}: {promise}, at δ = {best.row.delta:.2g} ({sees})."
    more = []
    if others := choices[len(tied) :]:
        what = "ε" if plan.target_epsilon is None else "noise"
        less = 1 - best.cost / others[0].cost
        more.append(
            f"That is {less:.1%} less {what} than with {others[0].row.schedule}."
        )
    if len(plan.participations) > 1:
        more.append("Other --participations have other answers.")
    if obstacles:
        more.append(f"Ruled out: {', '.join(obstacles)}.")
    return answer, " ".join([*more, _spread(plan, best), _command(plan, best)])


def _choices(
    plan: ComparisonPlan, rows: Sequence[Row]
) -> tuple[list[_Choice], dict[str, str]]:
    """The schedules that can be run, the cheapest first, and why others cannot."""
    cells = {
        cell.place: cell
        for cell in plan.cells()
        if cell.mechanism == plan.mechanisms[0]
    }
    choices = []
    obstacles = {}
    for row in rows:
        cost = row.guaranteed if plan.target_epsilon is None else row.needed_noise
        cell = cells.get((row.schedule, row.noise_multiplier, row.participations))
        if (
            cell is None
            or row.rounds is None
            or cost is None
            or not math.isfinite(cost)
        ):
            continue
        schedule = make_schedule(cell.schedule, row.rounds, row.participations)
        if why := obstacle(plan, schedule, row.participations):
            obstacles[row.schedule] = why
            continue
        if plan.target_epsilon is not None:
            cost = math.ceil(cost * 1000) / 1000
        drawn = math.inf if row.drawn is None else row.drawn
        choices.append(_Choice(row, cell, schedule, min(cost, drawn), drawn < cost))
    return sorted(choices, key=lambda each: each.cost), obstacles


def _spread(plan: ComparisonPlan, choice: _Choice) -> str:
    """How much the sizes of cohorts vary, in one run that is drawn."""
    clients = clients_of(choice.schedule, min(choice.clients, _DRAWN))
    rng = generator(plan.seed, _COHORTS)
    sizes = [len(cohort) for cohort in choice.schedule.cohorts(clients, rng)]
    few, many = min(sizes), max(sizes)
    has = str(few) if few == many else f"{few} to {many}"
    drawn = (
        "" if clients == choice.clients else f" (of {choice.clients:,}: in proportion)"
    )
    return f"A cohort has {has} of {clients:,} clients{drawn}."


def _command(plan: ComparisonPlan, choice: _Choice) -> str:
    """How to run it: as a command, or in Python where no whole cohort size has that schedule."""
    spec, rounds = choice.cell.schedule, choice.schedule.rounds
    size = choice.cell.participations * choice.clients / rounds
    whole = math.floor(size + _WHOLE)
    try:
        make_schedule(spec, rounds, max(whole, 1) * rounds / choice.clients)
    except ValueError:
        whole = 0
    if whole < 1:
        made = f"make_schedule({spec!r}, {rounds}, {choice.cell.participations:g})"
        return f"In Python its cohorts are fl_epe.schedules.{made}.cohorts({choice.clients}, rng)"
    noise = choice.cell.noise_multiplier if plan.target_epsilon is None else choice.cost
    words = ["--participation", spec, "--rounds", str(rounds)]
    words += ["--clients-per-round", str(whole), "--noise-multiplier", f"{noise:g}"]
    if choice.cell.mechanism != "independent":
        words += ["--mechanism", choice.cell.mechanism]
    return f"With {choice.clients:,} clients: fl-epe run TASK {shlex.join(words)}"
