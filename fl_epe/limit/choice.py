"""Recommends a schedule: with the least guaranteed ε, or with the least noise for a target ε.

The guarantees are those of `fl_epe.limit.measure.guaranteed_epsilon`, for the schedules that a
plan's constraints allow.
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

# The relative difference of costs that count as equal.
_TIE = 0.002

# The smallest share of the requested participations that a schedule must have.
_MIN_SHARE = 0.95

# The largest number of clients whose cohorts are drawn, and the stream of random numbers for
# them.
_MAX_DRAWN_CLIENTS = 10_000
_COHORT_STREAM = 7

# The rounding error of a cohort size that is a whole number.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class _Choice:
    """A schedule that can be run, and its cost.

    Attributes:
        row: the row of the comparison.
        cell: the cell of the grid.
        schedule: the schedule.
        clients: the number of clients.
        cost: the noise that it needs for the target ε, rounded up, or its ε at the row's noise.
        is_drawn: whether that ε is by Monte Carlo, and so holds with a confidence.
    """

    row: Row
    cell: Cell
    schedule: Schedule
    clients: int
    cost: float
    is_drawn: bool


def choice_of(plan: ComparisonPlan, rows: Sequence[Row]) -> tuple[str, str]:
    """The schedule to run at the middle of a grid, and further remarks; "" if none is known.

    Args:
        plan: the plan, with the constraints on a schedule.
        rows: the rows with one noise multiplier and number of participations. Only the first of
            several noise mechanisms counts, as equal noise multipliers are not equal noise.
    """
    choices, obstacles = _choices(plan, rows)
    if not choices:
        reasons = "; ".join(
            f"{name}: {reason}" for name, reason in obstacles.items()
        )
        if not reasons:
            return "", ""
        return f"No schedule allows what you ask for ({reasons}).", ""
    best = choices[0]
    tied = [
        choice for choice in choices if choice.cost <= best.cost * (1 + _TIE)
    ]
    names = " or ".join(choice.cell.schedule for choice in tied)
    sees = "adversary sees every round"
    if best.schedule.law(best.clients).hidden:
        sees += ", not who takes part"
    answer = f"Run {names}: {_promise(plan, best)}, at δ = {best.row.delta:.2g} ({sees})."
    remarks = []
    if len(choices) > len(tied):
        second = choices[len(tied)]
        quantity = "ε" if plan.target_epsilon is None else "noise"
        remarks.append(
            f"That is {1 - best.cost / second.cost:.1%} less {quantity} than with "
            f"{second.row.schedule}."
        )
    if len(plan.participations) > 1:
        remarks.append("Other --participations have other answers.")
    if obstacles:
        remarks.append(f"Ruled out: {', '.join(obstacles)}.")
    remarks.append(_cohort_sizes(plan, best))
    remarks.append(_command(plan, best))
    return answer, " ".join(remarks)


def _promise(plan: ComparisonPlan, choice: _Choice) -> str:
    """The noise or the ε of a schedule, in words."""
    participations = counted(choice.row.participations, "participation")
    setting = f"with {participations} in {choice.schedule.rounds} rounds"
    if plan.target_epsilon is not None:
        return f"z = {choice.cost:g} {setting} keeps ε of every client at {plan.target_epsilon:g}"
    promise = (
        f"ε of every client is at most {number(choice.cost)} {setting} and "
        f"z = {choice.row.noise_multiplier:g}"
    )
    if choice.is_drawn:
        promise += f" (by Monte Carlo, with {DRAWN_CONFIDENCE:.1%} confidence)"
    return promise


def _choices(
    plan: ComparisonPlan, rows: Sequence[Row]
) -> tuple[list[_Choice], dict[str, str]]:
    """The schedules that can be run, the cheapest first, and the obstacles of the others."""
    cells = {
        cell.combination: cell
        for cell in plan.cells()
        if cell.mechanism == plan.mechanisms[0]
    }
    choices = []
    obstacles = {}
    for row in rows:
        cell = cells.get(
            (row.schedule, row.noise_multiplier, row.participations)
        )
        if plan.target_epsilon is None:
            cost = row.guaranteed
        else:
            cost = row.needed_noise
        if cell is None or cost is None or not math.isfinite(cost):
            continue
        if row.rounds is None or row.clients is None:
            continue
        schedule = make_schedule(cell.schedule, row.rounds, row.participations)
        obstacle = _obstacle(plan, schedule, row.participations)
        if obstacle is not None:
            obstacles[row.schedule] = obstacle
            continue
        if plan.target_epsilon is not None:
            # Three decimals, rounded up, as less noise would not be enough.
            cost = math.ceil(cost * 1000) / 1000
        is_drawn = row.drawn is not None and row.drawn < cost
        if row.drawn is not None:
            cost = min(cost, row.drawn)
        choices.append(
            _Choice(row, cell, schedule, row.clients, cost, is_drawn)
        )
    return sorted(choices, key=lambda choice: choice.cost), obstacles


def _obstacle(
    plan: ComparisonPlan, schedule: Schedule, participations: float
) -> str | None:
    """The reason why a schedule is ruled out; ``None`` if it is not.

    It may violate a constraint, or its clients may take part less often than requested.
    """
    basis = basis_of(schedule)
    mean = schedule.participations()
    if mean < participations * _MIN_SHARE:
        return f"its clients take part {how_often(mean)} on average"
    if schedule.law(plan.clients or CLIENTS).separation < plan.least_distance:
        return f"two rounds of a client may be less than {plan.least_distance} apart"
    if plan.part_time and not basis.part_time:
        return "it needs clients at times at which they may be offline"
    if plan.clients_draw and not basis.drawn_by_clients:
        return "its clients do not draw their own rounds"
    return None


def _cohort_sizes(plan: ComparisonPlan, choice: _Choice) -> str:
    """A sentence on the range of cohort sizes in one random run."""
    clients = clients_of(
        choice.schedule, min(choice.clients, _MAX_DRAWN_CLIENTS)
    )
    cohorts = choice.schedule.cohorts(
        clients, generator(plan.seed, _COHORT_STREAM)
    )
    sizes = {len(cohort) for cohort in cohorts}
    size = str(min(sizes))
    if len(sizes) > 1:
        size += f" to {max(sizes)}"
    proportion = ""
    if clients != choice.clients:
        proportion = f" (of {choice.clients:,}: in proportion)"
    return f"A cohort has {size} of {clients:,} clients{proportion}."


def _command(plan: ComparisonPlan, choice: _Choice) -> str:
    """The command that runs a schedule, or Python code if no cohort size has that schedule."""
    spec = choice.cell.schedule
    rounds = choice.schedule.rounds
    mean_size = choice.cell.participations * choice.clients / rounds
    cohort_size = math.floor(mean_size + _ROUNDING)
    try:
        # The participations that ``fl-epe run`` derives from the cohort size.
        make_schedule(
            spec, rounds, max(cohort_size, 1) * rounds / choice.clients
        )
    except ValueError:
        cohort_size = 0
    if cohort_size < 1:
        call = (
            f"make_schedule({spec!r}, {rounds}, {choice.cell.participations:g})"
        )
        return f"In Python its cohorts are fl_epe.schedules.{call}.cohorts({choice.clients}, rng)"
    noise = choice.cost
    if plan.target_epsilon is None:
        noise = choice.cell.noise_multiplier
    options = {
        "--participation": spec,
        "--rounds": str(rounds),
        "--clients-per-round": str(cohort_size),
        "--noise-multiplier": f"{noise:g}",
    }
    if choice.cell.mechanism != "independent":
        options["--mechanism"] = choice.cell.mechanism
    words = [word for option in options.items() for word in option]
    return (
        f"With {choice.clients:,} clients: fl-epe run TASK {shlex.join(words)}"
    )
