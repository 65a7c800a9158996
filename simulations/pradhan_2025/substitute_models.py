"""Substitute adjacency: what a record says is protected less than that it is there.

    python simulations/pradhan_2025/substitute_models.py    # minutes on one core; --quick: seconds

The canaries of Pradhan et al. (2025, section 6) on a small real problem. Each canary's bound is
beside what three theorems allow.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fl_epe.accounting import epsilon_two_gaussians, poisson_epsilon
from fl_epe.auditing import Scores
from fl_epe.auditing.bounds import lower_bound
from fl_epe.models import one_thread
from simulations.pradhan_2025.group_privacy import group_epsilon
from simulations.pradhan_2025.hidden_substitute import (
    HiddenSubstitute,
    hidden_substitute_lower_bound,
    play_hidden_state,
)
from simulations.pradhan_2025.linear_digits import (
    Canary,
    Example,
    LinearDigits,
    Training,
    crafted_gradient,
    crafted_input,
    logit_difference,
    mislabelled,
    natural,
)
from simulations.shared.audit_script import Result, Settings, Table, run

if TYPE_CHECKING:
    import torch

Row = tuple[str | int | float | bool | None, ...]
_FULL = (Training(5.0, 1.0, 25), Training(5.0, 0.25, 100))
_QUICK = (Training(2.0, 1.0, 4, examples=40), Training(2.0, 0.25, 16, examples=40))
_LINEAR = (
    "worst-case data set",
    "crafted gradient",
)  # scores that are a sum over steps
_WORST_PER_MODEL = (
    10  # runs of the worst case, which cost nothing, for each trained model
)
_COLUMNS = (
    "sampling rate",
    "canary",
    "runs of each world",
    "ε add-or-remove",
    "ε substitute",
    "ε group privacy",
    "ε measured",
    "ε ≥",
    "bound",
    "above add-or-remove",
)


@dataclasses.dataclass(frozen=True)
class Theory:
    """What theorems allow a training to leak."""

    training: Training
    delta: float

    def epsilons(self) -> tuple[float, float, float]:
        """Add-or-remove, substitute and group privacy."""
        training = self.training
        arguments = (
            training.noise_multiplier,
            training.sampling_rate,
            training.steps,
            self.delta,
        )
        return (
            poisson_epsilon(*arguments),
            poisson_epsilon(*arguments, replace_one=True),
            group_epsilon(*arguments),
        )

    @property
    def pair(self) -> HiddenSubstitute:
        """The worst case for who sees the final model."""
        training = self.training
        return HiddenSubstitute(
            training.noise_multiplier, training.sampling_rate, training.steps
        )


def audit(settings: Settings) -> Result:
    """Train models in both worlds of each canary; a bound above substitute ε fails."""
    models = settings.count(1000, 100)
    rows, notes = [], list[str]()
    for training in _QUICK if settings.quick else _FULL:
        theory = Theory(training, settings.delta)
        promised = theory.epsilons()
        with one_thread():
            problem = LinearDigits(training, settings.seed)
            seen = dict(played(problem, theory, models, settings.seed, notes))
        rows += [
            row_of(name, scores, theory, promised, settings)
            for name, scores in seen.items()
        ]
    passed = all(_number(row[7]) <= _number(row[4]) for row in rows)
    return Result(
        _summary(rows), [Table("", _COLUMNS, rows)], [*_notes(settings), *notes], passed
    )


def played(
    problem: LinearDigits, theory: Theory, models: int, seed: int, notes: list[str]
) -> Iterator[tuple[str, Scores]]:
    """Scores by canary: the worst case, a crafted gradient, and three examples."""
    yield (
        "worst-case data set",
        play_hidden_state(
            theory.pair, observations=_WORST_PER_MODEL * models, seed=seed
        ),
    )
    reference, training = problem.reference(), problem.training
    target = problem.example(reference.hardest)
    pair = crafted_gradient(reference, training.clip_norm)
    coordinate = int(np.argmin(reference.moved))

    def trained(canary: Canary, world: int) -> torch.Tensor:
        return problem.train(canary, models, seed, world)

    up, down = (
        -trained(canary, world).reshape(models, -1)[:, coordinate].double().numpy()
        for world, canary in enumerate(pair, 1)
    )
    yield "crafted gradient", Scores(up, down, statistic="move of the coordinate")
    base = trained(target, 3)
    crafted: dict[str, Example] = {
        "crafted input": crafted_input(reference, target),
        "mislabelled": mislabelled(reference, target),
        "natural sample": natural(reference, target, problem.auxiliary()),
    }
    for world, (name, canary) in enumerate(crafted.items(), 4):
        with_target = logit_difference(base, target, canary)
        with_canary = logit_difference(trained(canary, world), target, canary)
        yield name, Scores(with_target, with_canary, statistic="difference of logits")
    notes.append(
        f"At sampling rate {training.sampling_rate:g} models with the target have an accuracy of "
        f"{problem.accuracy(base):.1%} on examples that nobody trained on. Training without noise "
        f"moves the chosen coordinate by {reference.moved[coordinate]:g}."
    )


def row_of(
    name: str,
    scores: Scores,
    theory: Theory,
    promised: tuple[float, float, float],
    settings: Settings,
) -> Row:
    """A row of the table: what a canary proves, beside what theorems allow."""
    training, delta = theory.training, settings.delta
    along_curve = training.sampling_rate == 1 or name in _LINEAR
    if along_curve:
        bound = hidden_substitute_lower_bound(
            scores,
            training.sampling_rate,
            training.steps,
            delta,
            confidence=settings.confidence,
        )
    else:
        bound = lower_bound(
            scores, delta, confidence=settings.confidence, method="weighted"
        )
    measured = epsilon_of_means(scores, delta)
    method = "along the curve" if along_curve else "weighted"
    above = bound > promised[0]
    count = scores.observed.size
    return (
        training.sampling_rate,
        name,
        count,
        *promised,
        measured,
        bound,
        method,
        above,
    )


def epsilon_of_means(scores: Scores, delta: float) -> float:
    """ε of two Gaussians with the means of the worlds and one spread: the noise is the same."""
    observed, absent = scores.both()
    spread = math.sqrt((observed.var(ddof=1) + absent.var(ddof=1)) / 2)
    apart = max(float(observed.mean() - absent.mean()), 0.0)
    return float(epsilon_two_gaussians(0.0, spread, apart, spread, delta))


def _summary(rows: list[Row]) -> str:
    proved = [row for row in rows if row[-1]]
    over = [row for row in rows if _number(row[7]) > _number(row[4])]
    if over:
        return (
            f"{len(over)} of {len(rows)} bounds are above the ε of substitute adjacency, which "
            "should be rare."
        )
    if not proved:
        return (
            "No bound is above the ε of add-or-remove adjacency; more runs may show it."
        )
    best = max(proved, key=lambda row: _number(row[7]) / _number(row[3]))
    return (
        f"What a record says is protected less than that it is there: with the canary "
        f"'{best[1]}' ε is at least {_number(best[7]):.3g} where add-or-remove promises "
        f"{_number(best[3]):.3g}, within the {_number(best[4]):.3g} of substitute adjacency."
    )


def _notes(settings: Settings) -> list[str]:
    return [
        f"Each bound holds on its own at {settings.confidence:.0%} confidence; δ = "
        f"{settings.delta:g}. 'Along the curve' reads error rates at a held-out threshold as those "
        "of sampled Gaussian steps of unknown noise whose sum is seen: exact for the first two "
        "canaries, and without sampling for all. 'Weighted' assumes nothing but independent runs. "
        "'ε measured' fits two Gaussians of one spread, and is no bound.",
        "The adversary sees the final model alone. The paper tunes the last layer of a vision "
        "transformer on CIFAR-10 for 500 steps; here softmax regression is trained on scikit-"
        "learn's digits. The paper reads all error "
        "rates as Gaussian DP, which with sampling is no valid bound.",
    ]


def _number(cell: object) -> float:
    assert isinstance(cell, int | float)
    return float(cell)


if __name__ == "__main__":
    run(audit, __doc__)
