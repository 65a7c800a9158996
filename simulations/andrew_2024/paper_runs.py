"""What `stackoverflow.py` and `emnist.py` share: a table of the paper, trained row by row.

Finished rows are kept (their records are under ``cells/``), and an interrupted row continues from
its checkpoint. Each run of the command writes the table and the pictures again.

The columns "final" and "limit, final" are ε of an average-case client. The limit has the clip
norms, the noise and the server of the run, and no updates of clients. If updates are more than a
tenth of the energy of θ_T − θ_0 (the column "updates"), it does not apply, and a line says so. If
it applies and is outside four standard errors of "final", the command ends with status 1.

The column "A² (p)" is table 6 of the paper: the Anderson–Darling statistic of canaries' cosines
with the final model, and its p-value. With ``--participations 1 2 4 8`` it has the paper's columns.
Of the paper's 16 statistics the largest, 1.23 (z = 0.2317, one participation), has p = 0.003 for
1,000 canaries: among 16 right ones there is such a p in one table of twenty.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from fl_epe.accounting import known_expected_score_epsilon
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    Answer,
    AuditRecord,
    EpsilonEstimate,
    NotMeasured,
    epsilon_from_record,
    epsilon_of,
    ladder_fit,
    scores_of,
    seen_by,
)
from fl_epe.auditing.scoring.assumptions import gaussian_test
from fl_epe.cli.options import name_and_value
from fl_epe.limit import ComparisonPlan, carry_out, limit_record
from fl_epe.limit.plan import Cell
from fl_epe.limit.runner import record_path
from fl_epe.limit.simulated_record import RealUpdates
from fl_epe.reporting import NOT_MEASURED, number, summarize
from fl_epe.schedules import ShuffledEpochs
from simulations.andrew_2024.paper_tables import STANDARD_ERRORS

LARGEST_SHARE = 0.1
"""Share of the energy of θ_T − θ_0 that updates may have where noise outweighs them."""


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """What the paper prints for one noise multiplier, with one participation of a canary."""

    noise_multiplier: float
    analytical: float
    all_bound: float
    all: float
    final_bound: float
    final: float


@dataclasses.dataclass(frozen=True)
class PaperTable:
    """A table of the paper, and the run behind it.

    Attributes:
        title: number and data set of the table.
        rows: what the paper prints.
        delta: δ of every ε.
        rounds: T at full size.
        clients_per_round: n at full size.
        epochs: how often each client takes part.
        server_learning_rate: the server's rate at full size.
        synthetic: name of the task with synthetic data of the same shape.
        real: name of the task with the real data.
    """

    title: str
    rows: tuple[PaperRow, ...]
    delta: float
    rounds: int
    clients_per_round: int
    epochs: int
    server_learning_rate: float
    synthetic: str
    real: str


def parse(table: PaperTable, doc: str) -> argparse.Namespace:
    noises = [row.noise_multiplier for row in table.rows]
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs", table.real))
    parser.add_argument(
        "--data-dir",
        help=f"the real data of task {table.real} (default: {table.synthetic})",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="shrink rounds, clients of a round, canaries and the server's step by this, clients "
        "by its square",
    )
    parser.add_argument(
        "--noise-multipliers",
        type=float,
        nargs="+",
        default=noises,
        help="rows of the table",
    )
    parser.add_argument(
        "--participations",
        type=float,
        nargs="+",
        default=[1],
        help="of each canary; figures 1 and 2 have 1 2 4 8 16",
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="rows trained at the same time"
    )
    parser.add_argument(
        "--nodes", type=int, default=2, help="threads of each run"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set",
        dest="settings",
        type=name_and_value,
        action="append",
        default=[],
        help="NAME=VALUE of 'fl-epe run'",
    )
    parser.add_argument(
        "--task-option",
        type=name_and_value,
        action="append",
        default=[],
        help="NAME=VALUE of the task",
    )
    options = parser.parse_args()
    if not 0 < options.scale <= 1:
        parser.error(f"Expected --scale={options.scale} in (0, 1].")
    return options


def plan_of(table: PaperTable, options: argparse.Namespace) -> ComparisonPlan:
    """The runs, at the scale that was asked for."""
    rounds = max(2, round(table.rounds * options.scale))
    per_round = max(2, round(table.clients_per_round * options.scale))
    canaries = max(20, round(1000 * options.scale))
    task_options: dict[str, Any] = dict(options.task_option)
    if options.data_dir is not None:
        task_options = {"data_dir": options.data_dir, **task_options}
    elif options.scale < 1:
        clients = math.ceil(rounds * per_round / table.epochs)
        task_options = {"num_clients": clients, **task_options}
    settings: dict[str, Any] = {
        "clients_per_round": per_round,
        "num_canaries": canaries,
        "unobserved": canaries,
        # Noise in the mean grows as cohorts shrink: the server's steps stay as long as they were.
        "server_learning_rate": table.server_learning_rate * options.scale,
    }
    # The paper's canaries; --set canary_kind=rotation scores them in a hundredth of the time.
    settings |= {"canary_kind": "sphere", **dict(options.settings)}
    return ComparisonPlan(
        schedules=("epochs",),
        noise_multipliers=tuple(options.noise_multipliers),
        participations=tuple(options.participations),
        task=table.real if options.data_dir is not None else table.synthetic,
        rounds=rounds,
        delta=table.delta,
        settings=settings,
        task_options=task_options,
        seed=options.seed,
    )


def run(table: PaperTable, doc: str) -> None:
    """Train what is missing, then print and draw everything that there is."""
    options = parse(table, doc)
    plan = plan_of(table, options)
    began = time.monotonic()
    rows = carry_out(
        plan,
        options.output,
        workers=options.workers,
        nodes=options.nodes,
        on_cell=lambda done, total: print(
            f"{done}/{total} rows after {(time.monotonic() - began) / 60:.1f} min",
            flush=True,
        ),
    )
    for row in rows:
        if row.skipped is not None:
            raise SystemExit(f"z = {row.noise_multiplier:g}: {row.skipped}")
    paths = {
        cell: record_path(plan, cell, options.output) for cell in plan.cells()
    }
    records = {cell: AuditRecord.load(path) for cell, path in paths.items()}
    lines = [_line(table, cell, record) for cell, record in records.items()]
    first = next(iter(records.values()))
    print(
        f"\n{table.title}; {plan.task}: {first.rounds} rounds, "
        f"cohorts of {first.mechanism.cohort_size:.1f}, "
        f"{first.num_canaries} + {first.unobserved.count} canaries, {first.dim:,} parameters, "
        f"δ = {first.delta:.2g}\n"
    )
    _print(lines)
    _append(options.output / "table.csv", plan, lines)
    _draw(records, plan, options.output)
    print(f"\nTable and pictures: {options.output}")
    noisy = {
        cell: record
        for cell, record in records.items()
        if cell.noise_multiplier > 0
    }
    checks = {cell: check_limit(record) for cell, record in noisy.items()}
    for cell, (words, _) in checks.items():
        if words:
            print(
                f"z = {cell.noise_multiplier:g}, {cell.participations:g} participations: {words}"
            )
    if any(parts for _, parts in checks.values()):
        raise SystemExit(1)


def _line(table: PaperTable, cell: Cell, record: AuditRecord) -> dict[str, str]:
    """One line of the table: our values, and the paper's beside them."""
    summary = summarize(record)
    final, every = summary.answers
    accuracy = dict(summary.held_out()).get("accuracy", "")
    paper = next(
        (r for r in table.rows if r.noise_multiplier == cell.noise_multiplier),
        None,
    )
    if cell.participations != 1:
        paper = None
    noisy = cell.noise_multiplier > 0
    return {
        "z": f"{cell.noise_multiplier:g}",
        "participations": f"{cell.participations:g}",
        "analytical": number(every.analytical.epsilon),
        "all": _interval(every),
        "all, bound": _bound(every),
        "all, maximum": _fitted(record, EVERY_ROUND, "maximum"),
        "paper": "" if paper is None else f"{paper.all:,g}",
        "final": _interval(final),
        "final, bound": _bound(final),
        "final, fitted": _fitted(record, FINAL_MODEL, "model"),
        "A² (p)": gaussianity(record),
        "paper ": "" if paper is None else f"{paper.final:g}",
        "limit, final": number(limit_final(record)) if noisy else "",
        "updates": f"{_share_of_updates(record):.0%}" if noisy else "",
        "loss": f"{_loss(record, 0):.3f} → {_loss(record, -1):.3f}",
        "accuracy": accuracy,
    }


def _fitted(record: AuditRecord, adversary: Adversary, statistic: str) -> str:
    """The paper's ε of a statistic: two fitted Gaussians."""
    try:
        scores = scores_of(seen_by(record, adversary), statistic)
        return number(epsilon_of(scores, record.delta, "fitted").epsilon)
    except NotMeasured:
        return NOT_MEASURED


def gaussianity(record: AuditRecord) -> str:
    """A² of observed canaries' cosines with the final model, and its p-value: the paper's table 6.

    Tested with fitted mean and variance. Canaries with unequal expected scores, as where the clip
    norm grows, are a mixture of Gaussians and not one.
    """
    try:
        cosines = scores_of(seen_by(record, FINAL_MODEL), "model").observed
    except NotMeasured:
        return NOT_MEASURED
    fit = gaussian_test(cosines)
    return (
        NOT_MEASURED
        if fit is None
        else f"{fit.statistic:.3f} ({fit.p_value:.2g})"
    )


def _interval(one: Answer) -> str:
    if (estimate := one.estimate) is None:
        return NOT_MEASURED
    return f"{number(estimate.epsilon)} ({number(estimate.low)} – {number(estimate.high)})"


def _bound(one: Answer) -> str:
    return "" if one.proved is None else number(one.proved)


def _loss(record: AuditRecord, index: int) -> float:
    return float(record.metrics["train_loss"][index])


def limit_final(record: AuditRecord) -> float:
    """ε-final of an average-case client in a run like this one without updates of clients."""
    server = record.mechanism.server
    assert server.learning_rates is not None
    like = limit_record(
        ShuffledEpochs(record.rounds, record.mechanism.canary_participations),
        float(record.mechanism.sum_noise_multiplier or 0),
        record.delta,
        num_canaries=record.rounds,  # one in each round, or equally many
        unobserved=0,
        clip_norms=record.mechanism.clip_norms,
        learning_rates=server.learning_rates,
        momentum=server.momentum,
    )
    return known_expected_score_epsilon(
        seen_by(like).expected_scores.observed, record.delta
    )


def _share_of_updates(record: AuditRecord) -> float:
    """The share of the energy of θ_T − θ_0 that is clients' updates and not noise."""
    updates = RealUpdates.of(record).final
    return updates / (
        updates + float(record.mechanism.sum_noise_multiplier or 0) ** 2
    )


def check_limit(record: AuditRecord) -> tuple[str, bool]:
    """What is to be said of ε-final and the limit, and whether they part where it applies."""
    share, limit = _share_of_updates(record), limit_final(record)
    if share > LARGEST_SHARE:
        return (
            f"updates are {share:.0%} of θ_T − θ_0: the limit does not apply",
            False,
        )
    view = seen_by(record)
    fit = ladder_fit(
        view, scores_of(view), math.erf(STANDARD_ERRORS / math.sqrt(2))
    )
    final_epsilon, low, high = (
        known_expected_score_epsilon(
            max(scale, 0.0) * view.expected_scores.observed, record.delta
        )
        for scale in (fit.scale, fit.low, fit.high)
    )
    if low <= limit <= high:
        return "", False
    return (
        f"ε-final {number(final_epsilon)} parts from the limit, {number(limit)}",
        True,
    )


def _print(lines: list[dict[str, str]]) -> None:
    names = list(lines[0])
    widths = [
        max(len(name), *(len(line[name]) for line in lines)) for name in names
    ]
    for line in (dict(zip(names, names, strict=True)), *lines):
        cells = (
            line[name].rjust(width)
            for name, width in zip(names, widths, strict=True)
        )
        print("  ".join(cells))


def _append(
    path: Path, plan: ComparisonPlan, lines: list[dict[str, str]]
) -> None:
    """Add the lines to the directory's table, without those that it has already."""
    size = {
        "task": str(plan.task),
        "rounds": str(plan.rounds),
        "seed": str(plan.seed),
    }
    fresh = [{**size, **line} for line in lines]
    old: list[dict[str, str]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            old = list(csv.DictReader(file))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(fresh[0]))
        writer.writeheader()
        writer.writerows([*(line for line in old if line not in fresh), *fresh])


def _draw(
    records: Mapping[Cell, AuditRecord], plan: ComparisonPlan, directory: Path
) -> None:
    """Figures 1 and 2: densities of the scores, and ε-final against participations."""
    noises, counts = plan.noise_multipliers, plan.participations
    figure = Figure(
        figsize=(3.2 * len(noises) + 1, 3.4), layout="constrained", dpi=130
    )
    panels = np.atleast_1d(
        figure.subplots(1, len(noises), sharey=True, squeeze=False)[0]
    )
    for axes, z in zip(panels, noises, strict=True):
        for cell, record in records.items():
            if cell.noise_multiplier == z:
                _density(axes, record, f"{cell.participations:g}×")
        grid = np.linspace(-4, 4, 200)
        axes.plot(grid, stats.norm.pdf(grid), color="black", lw=1, label="null")
        axes.set(title=f"z = {z:g}", xlabel="√d · cosine with θ_T − θ_0")
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(directory / "scores.png", metadata={"Software": None})
    if len(counts) < 2:
        return
    figure = Figure(figsize=(6, 3.8), layout="constrained", dpi=130)
    axes = figure.subplots()
    for z in noises:
        points = [
            (
                cell.participations,
                epsilon_from_record(record, statistic="displacement"),
            )
            for cell, record in records.items()
            if cell.noise_multiplier == z
        ]
        _curve(axes, sorted(points, key=lambda point: point[0]), f"z = {z:g}")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="participations of a canary",
        ylabel="ε-final",
    )
    axes.set_xticks(counts, [f"{count:g}" for count in counts])
    axes.set_xticks([], minor=True)
    axes.legend(fontsize=7, frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(
        directory / "participations.png", metadata={"Software": None}
    )


def _density(axes: Any, record: AuditRecord, label: str) -> None:
    observed = scores_of(seen_by(record)).observed
    grid = np.linspace(observed.min() - 1, observed.max() + 1, 200)
    axes.plot(grid, stats.gaussian_kde(observed)(grid), label=label)


def _curve(
    axes: Any, points: list[tuple[float, EpsilonEstimate]], label: str
) -> None:
    floor = 1e-2
    xs = [x for x, _ in points]
    ys = [max(floor, e.epsilon) for _, e in points]
    down = [y - max(floor, e.low) for y, (_, e) in zip(ys, points, strict=True)]
    up = [max(floor, e.high) - y for y, (_, e) in zip(ys, points, strict=True)]
    axes.errorbar(xs, ys, [down, up], marker="o", ms=4, capsize=2, label=label)
