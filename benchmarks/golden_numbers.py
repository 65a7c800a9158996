"""Numbers that a change of structure must leave as they are.

For every schedule of the tests' table, with independent and with correlated noise: both answers of
a drawn record, theory, ε after each round, ε before a run. Besides them the rows of a comparison,
calibrated noise, and three real runs. Write them before a change and compare after it, on one
machine:

    python benchmarks/golden_numbers.py --write before.json
    python benchmarks/golden_numbers.py --compare before.json

The comparison ends with status 1 where a number differs by more than 1e-12 of itself, and names it.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.every_schedule import CLIENTS, EVERY, T  # type: ignore[import-not-found]

from fl_epe.auditing import AuditRecord, NotMeasured, answers, epsilon_by_round
from fl_epe.config import RunConfig
from fl_epe.limit import (
    ComparisonPlan,
    carry_out,
    expected_record,
    median_client,
    noise_for_epsilon,
    worst_client,
)
from fl_epe.mechanism import strategy_matrix
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.tasks import load_task

DELTA = 1e-3
NEAR = 1e-12
COMPARED = (
    "epochs",
    "poisson",
    "fixed-size",
    "min-separation:separation=4",
    "balls-in-bins",
)
_EVERY_RUN = {
    "rounds": 16,
    "noise_generator": "sfc64",
}  # which drew the noise of the first file
RUNS: dict[str, dict[str, Any]] = {
    "digits, epochs, tree": {"mechanism": "tree"},
    "digits, poisson": {"participation": "poisson"},
    "digits, fixed clip norm": {
        "clipping": "fixed",
        "canary_design": "paper",
        "rounds": 12,
    },
}


def numbers_of_record(record: AuditRecord) -> dict[str, Any]:
    """Both answers, what theory allows, and ε after some rounds."""
    found: dict[str, Any] = {}
    for answer in answers(record):
        theory = answer.analytical
        numbers: list[Any] = [
            answer.participations,
            answer.proved,
            theory.epsilon,
            theory.adjacency,
        ]
        numbers += [theory.knows_rounds, theory.assumption, answer.reason]
        if answer.estimate is not None:
            numbers += [
                answer.estimate.epsilon,
                answer.estimate.low,
                answer.estimate.high,
            ]
        found[answer.adversary.sees] = numbers
    by_round = epsilon_by_round(record, max_rounds=4)
    found["so far"] = [
        [
            each.round,
            each.participations,
            each.estimate.epsilon,
            each.estimate.low,
        ]
        for each in by_round
    ]
    return found


def numbers_of_schedules() -> dict[str, Any]:
    """Of every schedule of the tests' table."""
    found: dict[str, Any] = {}
    mechanisms = ("independent", "banded:bands=3")
    for schedule in EVERY:
        for name in mechanisms:
            strategy = strategy_matrix(name, T)
            record = expected_record(
                schedule, 1.0, DELTA, CLIENTS, places=8, strategy=strategy
            )
            numbers: dict[str, Any] = numbers_of_record(record)
            for sees in ("final", "all"):
                try:
                    median = median_client(record, sees, 0.95)
                except NotMeasured as error:
                    numbers[f"median, {sees}"] = str(error)
                    continue
                numbers[f"median, {sees}"] = [
                    median.epsilon,
                    median.low,
                    median.high,
                ]
                worst = worst_client(record, schedule, sees, CLIENTS)
                if worst is not None:
                    limit = worst.theory.epsilon
                    numbers[f"worst, {sees}"] = [
                        worst.epsilon,
                        worst.participations,
                        limit,
                    ]
            found[f"{schedule}, {name}"] = numbers
    return found


def numbers_of_commands() -> dict[str, Any]:
    """Of ``fl-epe compare`` and ``fl-epe advise noise``."""
    plan = ComparisonPlan(
        schedules=COMPARED, noise_multipliers=(0.5, 1.0), participations=(4.0,)
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = carry_out(plan, Path(folder), nodes=1)
    found: dict[str, Any] = {}
    for row in rows:
        found[f"compare {row.schedule}, z = {row.noise_multiplier}"] = [
            [
                each.client,
                each.sees,
                each.epsilon,
                each.theory.epsilon,
                each.theory.adjacency,
            ]
            for each in row.answers
        ]
    for schedule in EVERY[:4]:
        advice = noise_for_epsilon(schedule, 8.0, DELTA, CLIENTS)
        load = advice.load
        found[f"advise {schedule}"] = [
            advice.noise_multiplier,
            load.places,
            load.round_share,
        ]
    return found


def numbers_of_runs() -> dict[str, Any]:
    """Of three real runs on digits, with a ladder, by coins, and with the paper's canaries."""
    found: dict[str, Any] = {}
    task = load_task("digits")
    for name, settings in RUNS.items():
        config = RunConfig(
            clients=task.num_clients,
            **{**task.defaults, **_EVERY_RUN, **settings},
        )
        found[name] = numbers_of_record(
            simulate(Job(task, config, Seeds.derive(5)))
        )
    return found


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Every number and text by its place."""
    if isinstance(value, list):
        return flat(dict(enumerate(value)), name)
    if not isinstance(value, dict):
        return {name: value}
    parts = (flat(part, f"{name} / {key}") for key, part in value.items())
    return {place: number for part in parts for place, number in part.items()}


def differs(before: Any, after: Any) -> bool:
    """Whether two values are not the same, but for rounding."""
    if isinstance(before, float) and isinstance(after, (int, float)):
        same = before == after or (math.isnan(before) and math.isnan(after))
        return not same and not abs(before - after) <= NEAR * max(
            abs(before), abs(after)
        )
    return bool(before != after)


def main() -> None:
    """Write or compare all numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", type=Path, help="file to write the numbers to"
    )
    parser.add_argument(
        "--compare", type=Path, help="file with the numbers of before"
    )
    options = parser.parse_args()
    numbers = {
        "schedules": numbers_of_schedules(),
        "commands": numbers_of_commands(),
        "runs": numbers_of_runs(),
    }
    text = json.dumps(numbers, default=np.generic.item, indent=1)
    if options.write:
        options.write.write_text(text)
    if not options.compare:
        return
    before, after = (
        flat(json.loads(options.compare.read_text())),
        flat(json.loads(text)),
    )
    changed = [
        name
        for name in [*before, *(after.keys() - before.keys())]
        if differs(before.get(name, "absent"), after.get(name, "absent"))
    ]
    for name in changed:
        print(
            f"{name}: {before.get(name, 'absent')} -> {after.get(name, 'absent')}"
        )
    print(f"{len(before)} numbers, {len(changed)} differ")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
