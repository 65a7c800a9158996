"""The plan of a comparison: a grid of schedules × noise × participations, with replicates."""

import dataclasses
import hashlib
import itertools
import json
import math
import statistics
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fl_epe import checks
from fl_epe.auditing import AuditRecord, Mechanism
from fl_epe.config import RunConfig
from fl_epe.limit.simulated_record import RealUpdates, round_noise_multiplier
from fl_epe.mechanism import parse_strategy
from fl_epe.schedules import log_of, parse_schedule

# Default numbers of rounds and clients of a plan in the limit.
ROUNDS = 512
CLIENTS = 10_000


def _default_schedules(separation: int) -> tuple[str, ...]:
    """One schedule of each kind that needs no file."""
    return (
        "epochs",
        "cyclic",
        "balls-in-bins",
        "k-out-of-t",
        f"min-separation:separation={separation}",
        f"b-min-sep:separation={separation}",
        "poisson",
        "fixed-size",
        'device-classes:{"rates": [8, 1], "shares": [0.1, 0.9]}',
        "capped:of=poisson,per_run=8",
        "drop-out:of=epochs,rate=0.2",
    )


DEFAULT_SCHEDULES = _default_schedules(separation=24)
"""The schedules of a plan that names none."""

# Fields that span the grid.
_GRID = ("schedules", "noise_multipliers", "participations", "mechanisms")

# Fields that only affect which schedule is recommended.
_RECOMMENDATION = (
    "target_epsilon",
    "least_distance",
    "part_time",
    "clients_draw",
    "draws",
)

# Settings of a run that are fields of a plan with the same name.
RUN_SETTINGS = ("rounds", "delta", "server_momentum")

# Settings of a run that are replaced by the grid, or by other fields of a plan.
_REPLACED_BY_GRID = {
    "participation",
    "noise_multiplier",
    "canary_participations",
    "mechanism",
    "clients",
    "stop_when",
}

# The relative error of a number that is printed with six digits.
_PRINTING_ERROR = 5e-6


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement of a combination in the grid.

    Attributes:
        schedule: participation schedule, in the format of `fl_epe.schedules.parse_schedule`.
        noise_multiplier: z.
        participations: expected number of participations of a client.
        mechanism: noise mechanism, in the format of `fl_epe.mechanism.parse_strategy`.
        replicate: number of the replicate, from 0.
    """

    schedule: str
    noise_multiplier: float
    participations: float
    mechanism: str
    replicate: int

    @property
    def combination(self) -> tuple[str, float, float]:
        """The schedule, noise multiplier and participations, without the replicate.

        A mechanism other than independent noise is appended to the schedule.
        """
        name = self.schedule
        if self.mechanism != "independent":
            name += f", {self.mechanism}"
        return name, self.noise_multiplier, self.participations


@dataclasses.dataclass(frozen=True)
class ComparisonPlan:
    """A comparison, in the limit or by training.

    Attributes:
        schedules: participation schedules such as epochs, poisson, min-separation:separation=5 or
            trace:path=log.csv; 'fl-epe schedules' lists all kinds (default: one of each kind that
            needs no file).
        noise_multipliers: z, the standard deviations of the DP noise on the sum of updates over the
            clip norm; 0 only with a task.
        participations: expected numbers of rounds in which a client takes part.
        mechanisms: noise mechanisms: independent, tree, banded:bands=8, toeplitz, blt, or a .npy
            file.
        replicates: number of trainings of each combination, with fresh seeds, which are pooled.
        task: the task to train, such as digits (default: the limit, in which nothing is trained and
            the noise is much larger than the updates).
        rounds: number T of rounds (default: 512; with a task, the task's).
        clients: number m of clients, without a task (default: 10000).
        delta: target δ (default: clients^-1.1).
        server_momentum: momentum of the server's sgd (default: 0.9; with a task, the task's).
        like: directory of a run whose clip norms, server, real updates and number of rounds are
            used, without a task.
        settings: other settings of 'fl-epe run' by name, such as local-epochs=1, with a task.
        task_options: options of the task by name.
        target_epsilon: ε that theory must guarantee every client, without a task. The noise that
            each schedule needs for it is reported (default: schedules are compared at equal noise).
        least_distance: minimum separation, in rounds, between two participations of a client in a
            recommended schedule. The default schedules use it as their separation.
        part_time: clients are not always available, so the server cannot fix their rounds. Only
            schedules in which clients take part when they are available are recommended.
        clients_draw: clients are always available, but the server does not select them. Only
            schedules in which each client draws its own rounds are recommended.
        draws: number of privacy losses to draw for each schedule whose secret rounds have no exact
            theorem, without a task. ε is then an upper bound with 99.9% confidence (default: none).
        confidence: confidence level in (0, 1). Intervals cover the true value with this
            probability, and the worst-case client's bound holds with it.
        seed: seed of all randomness; trainings do not share random numbers.
    """

    schedules: tuple[str, ...] = DEFAULT_SCHEDULES
    noise_multipliers: tuple[float, ...] = (0.5, 1, 2)
    participations: tuple[float, ...] = (1, 4, 16)
    mechanisms: tuple[str, ...] = ("independent",)
    replicates: int = 1
    task: str | None = None
    rounds: int | None = None
    clients: int | None = None
    delta: float | None = None
    server_momentum: float | None = None
    like: str | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    task_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    target_epsilon: float | None = None
    least_distance: int = 1
    part_time: bool = False
    clients_draw: bool = False
    draws: int | None = None
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name in _GRID:
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or not values:
                checks.raise_invalid(
                    name, values, "to be a list that is not empty"
                )
            convert = str if name in ("schedules", "mechanisms") else float
            distinct = dict.fromkeys(map(convert, values))
            object.__setattr__(self, name, tuple(distinct))
        checks.check_types(self)
        if self.least_distance > 1 and self.schedules == DEFAULT_SCHEDULES:
            schedules = _default_schedules(self.least_distance)
            object.__setattr__(self, "schedules", schedules)
        for spec in self.schedules:
            with checks.argument_context("schedules", spec):
                parse_schedule(spec)
        for mechanism in self.mechanisms:
            with checks.argument_context("mechanisms", mechanism):
                parse_strategy(mechanism, self.rounds or ROUNDS)
        for value in self.participations:
            checks.check_positive("participations", value)
        for value in self.noise_multipliers:
            checks.check_noise_multiplier("noise_multipliers", value)
            if self.task is None:
                checks.check_positive("noise_multipliers", value)
        if self.target_epsilon is not None:
            checks.check_positive("target_epsilon", self.target_epsilon)
            if self.draws is not None:
                checks.raise_invalid(
                    "draws", self.draws, "only without target_epsilon"
                )
        for name in (
            "replicates",
            "rounds",
            "clients",
            "least_distance",
            "draws",
        ):
            count = getattr(self, name)
            if count is not None:
                checks.check_count(name, count)
        checks.check_probability("confidence", self.confidence)
        if self.delta is not None:
            checks.check_probability("delta", self.delta)
        checks.check_not_negative("seed", self.seed)
        self._check_task()

    def _check_task(self) -> None:
        """Check the settings of a task, and the fields that exist only with or without a task."""
        run_fields = {field.name for field in dataclasses.fields(RunConfig)}
        allowed = run_fields - _REPLACED_BY_GRID - set(RUN_SETTINGS)
        unknown = set(self.settings) - allowed
        if unknown:
            raise ValueError(
                f"Unknown settings {sorted(unknown)}: expected {sorted(allowed)}."
            )
        types = typing.get_type_hints(RunConfig)
        for name, value in self.settings.items():
            checks.checked_type(name, value, types[name])
        checks.check_fraction("server_momentum", self.server_momentum or 0.0)
        refused: tuple[str, ...] = ("replicates", "settings", "task_options")
        condition = "only with a task to train"
        if self.task is not None:
            refused = ("like", "clients", *_RECOMMENDATION)
            condition = "only without a task"
        for name in refused:
            value = getattr(self, name)
            if value != getattr(ComparisonPlan, name, {}):
                checks.raise_invalid(name, value, condition)

    @property
    def middle(self) -> tuple[float, float]:
        """Noise multiplier and participations in the middle of the grid."""
        return (
            statistics.median_low(self.noise_multipliers),
            statistics.median_low(self.participations),
        )

    @property
    def combinations(self) -> int:
        """The number of combinations in the grid, without replicates."""
        return math.prod(len(getattr(self, name)) for name in _GRID)

    def cells(self) -> Iterator[Cell]:
        """Every combination and replicate, in the order of the plan."""
        axes = [getattr(self, name) for name in _GRID]
        return itertools.starmap(
            Cell, itertools.product(*axes, range(self.replicates))
        )

    def key(self, cell: Cell) -> str:
        """A key of a training: trainings with the same key have the same result."""
        common = dataclasses.asdict(self)
        for name in (*_GRID, *_RECOMMENDATION, "replicates", "confidence"):
            del common[name]
        text = json.dumps([common, dataclasses.asdict(cell)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def with_log(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a plan, completed from the participation logs among its schedules.

    A log determines the numbers of rounds, clients and participations; the other schedules are then
    measured at the same numbers.

    Raises:
        ArgumentError: if ``rounds`` or ``participations`` are given and differ from the log's.
        FileNotFoundError: if the log does not exist.
        ValueError: if the file is not a log.
    """
    fields = {
        name: value for name, value in values.items() if value is not None
    }
    log_fields: dict[str, Any] = {}
    for spec in fields.get("schedules", ()):
        with checks.argument_context("schedules", spec):
            log = log_of(spec)
        if log is None:
            continue
        trace, mean = log
        if fields.get("rounds") not in (None, trace.rounds):
            checks.raise_invalid(
                "rounds",
                fields["rounds"],
                f"to be left out, or {trace.rounds} as in {spec}",
            )
        if "participations" in fields:
            fields["participations"] = _with_exact_mean(
                fields["participations"], mean, spec
            )
        log_fields["rounds"] = trace.rounds
        log_fields["clients"] = trace.population
        log_fields["participations"] = (
            *log_fields.get("participations", ()),
            mean,
        )
    if "task" in fields:
        return fields
    return log_fields | fields


def _with_exact_mean(
    participations: Sequence[float], mean: float, spec: str
) -> tuple[float, ...]:
    """The participations with the exact mean of a log in place of the printed one.

    Raises:
        ArgumentError: if none of them is the mean.
    """
    exact = tuple(
        mean if math.isclose(count, mean, rel_tol=_PRINTING_ERROR) else count
        for count in participations
    )
    if mean not in exact:
        checks.raise_invalid(
            "participations",
            list(participations),
            f"to be left out, or to hold {mean:.6g} as in {spec}",
        )
    return exact


def rounds_like(
    run: AuditRecord | None, rounds: int | None, default: int
) -> int:
    """``rounds``; if it is ``None``, the run's number of rounds, or the default without a run.

    Raises:
        ValueError: if the run has another number of rounds, so that its clip norms do not fit.
    """
    if run is None:
        if rounds is None:
            return default
        return rounds
    if rounds not in (None, run.rounds):
        checks.raise_invalid(
            "rounds", rounds, f"to be {run.rounds}, as in the run"
        )
    return run.rounds


def limit_like(
    run: AuditRecord | None, momentum: float | None = None
) -> dict[str, Any]:
    """The `LimitSetting` of a run: its clip norms, server and real updates.

    Args:
        run: a finished run, or ``None``.
        momentum: momentum of the server; by default the run's, or `RunConfig`'s without a run.

    Raises:
        ValueError: as `RealUpdates.of`.
    """
    setting: dict[str, Any] = {"momentum": RunConfig.server_momentum}
    if run is not None:
        server = run.mechanism.server
        setting = {
            "clip_norms": run.mechanism.clip_norms,
            "real": RealUpdates.of(run),
            "learning_rates": server.learning_rates,
            "momentum": server.momentum,
            "count_inverse_variance": _count_inverse_variance(run.mechanism),
        }
    if momentum is not None:
        setting["momentum"] = momentum
    return setting


def noise_multiplier_like(
    run: AuditRecord | None, sum_noise_multiplier: float
) -> float | None:
    """The setting ``noise_multiplier`` with which a run like this has that noise on its sum.

    Args:
        run: a finished run, or ``None``.
        sum_noise_multiplier: the noise multiplier of the sum of updates.

    Returns:
        The setting; ``None`` if the two are equal, because no adaptive clip norm uses a part of
        the privacy budget.
    """
    if run is None or not sum_noise_multiplier:
        return None
    count_inverse_variance = _count_inverse_variance(run.mechanism)
    if not count_inverse_variance:
        return None
    return round_noise_multiplier(sum_noise_multiplier, count_inverse_variance)


def _count_inverse_variance(mechanism: Mechanism) -> float:
    """The part of 1/z² due to the noisy count of an adaptive clip norm; 0 without one."""
    z = mechanism.noise_multiplier
    sum_z = mechanism.sum_noise_multiplier
    if not z or not sum_z:
        return 0.0
    return max(z**-2 - sum_z**-2, 0.0)
