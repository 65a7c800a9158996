"""The rows of a comparison from its measurements: pooled ε with intervals, and bounds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import scipy

from fl_epe.accounting import (
    ExpectedScoreLaw,
    UpperBound,
    epsilon_two_gaussians,
    known_expected_score_epsilon,
    tightest,
    unknown_expected_score_epsilon,
)
from fl_epe.limit.measure import unknown_epsilon
from fl_epe.limit.plan import Cell, ComparisonPlan
from fl_epe.limit.runner import Results

_LAW = ("expected_scores", "shares")


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
        worst_case: what none of ``clients`` clients exceeds, at the plan's confidence; ``None``
            where that is not known.
        clients: number of clients.
        unaware: of a client drawn at random whose expected score the adversary does not know.
        mean: at the mean expected score; ``None`` for unknown rounds.
        mean_low: lower end of its interval.
        mean_high: upper end of it.
    """

    epsilon: float
    low: float
    high: float
    analytical: UpperBound | None
    above: bool = False
    simulated: bool = False
    worst_case: float | None = None
    clients: int | None = None
    unaware: float | None = None
    mean: float | None = None
    mean_low: float | None = None
    mean_high: float | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """One schedule at one noise multiplier and number of participations.

    Attributes:
        schedule: its specification.
        noise_multiplier: z.
        participations: expected participations asked for.
        replicates: trainings that were pooled.
        delta: δ of every ε.
        mean_participations: of a client; of a training's canaries.
        most_participations: what none of the clients exceeds, at the plan's confidence; of a
            training, of any canary.
        final: for an adversary who sees the final model and knows each client's rounds.
        every_round: for an adversary who sees every round's model and knows each client's rounds.
        unknown_rounds: for an adversary who sees every round's model and does not know
            the rounds; ``None`` where there is no closed form.
        analytical_unknown_rounds: the tightest bound against that adversary.
        accuracy: mean over the replicates, on held-out data; ``None`` in the limit.
        log: rounds of the log that is replayed, and how many of them have clients.
        skipped: why the combination is impossible; ``None`` if it is not.
        not_measured: why it has no ε although it is possible; ``None`` if it has one.
        diverged: why its model has diverged; ``None`` if it has not.
    """

    schedule: str
    noise_multiplier: float
    participations: float
    replicates: int = 0
    delta: float | None = None
    mean_participations: float | None = None
    most_participations: int | None = None
    final: Epsilon | None = None
    every_round: Epsilon | None = None
    unknown_rounds: Epsilon | None = None
    analytical_unknown_rounds: float | None = None
    accuracy: float | None = None
    log: tuple[int, int] | None = None
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


def rows_of(plan: ComparisonPlan, results: Results) -> list[Row]:
    """The rows of a comparison, in the order of the plan.

    Trainings of the same combination are pooled before any ε is computed: their scales κ, with
    their standard errors, and their scores. Whether an estimate lies above its bound is tested at
    the plan's confidence for all comparisons together (Bonferroni).
    """
    groups: dict[tuple[str, float, float], list[dict[str, Any]]] = {}
    for cell, result in results.items():
        groups.setdefault(_place(cell), []).append(result)
    tests = max(1, 3 * len(groups))
    return [_row(place, found, plan.confidence, tests) for place, found in groups.items()]


def _place(cell: Cell) -> tuple[str, float, float]:
    return cell.schedule, cell.noise_multiplier, cell.participations


def _row(
    place: tuple[str, float, float], results: list[dict[str, Any]], confidence: float, tests: int
) -> Row:
    reasons = [result["skipped"] for result in results if "skipped" in result]
    if reasons:
        return Row(*place, skipped=reasons[0])
    if (missing := _first(results, "not_measured")) is not None:
        return Row(*place, not_measured=missing)
    bounds = tuple(
        UpperBound(**bound | {"epsilon": _infinite(bound["epsilon"])})
        for bound in results[0]["guarantees"]
    )
    quantiles = scipy.special.ndtri([(1 + confidence) / 2, 1 - (1 - confidence) / tests]).tolist()
    accuracies = [result["accuracy"] for result in results if result["accuracy"] is not None]
    known, unknown = (_zero_out(tightest(bounds, rounds_known=k)) for k in (True, False))
    found = {"delta": results[0]["delta"], "clients": results[0]["clients"], "quantiles": quantiles}
    finals, rounds = ([result[name] for result in results] for name in ("final", "all"))
    facts = [result["unknown"] for result in results]
    return Row(
        *place,
        replicates=len(results),
        delta=found["delta"],
        mean_participations=float(
            np.mean([result["participations"]["mean"] for result in results])
        ),
        most_participations=max(result["participations"]["most"] for result in results),
        final=_epsilon(finals, bound=known, **found),
        every_round=_epsilon(rounds, bound=known, **found),
        unknown_rounds=None if None in facts else _unknown(facts, rounds, unknown, **found),
        analytical_unknown_rounds=None if unknown is None else unknown.epsilon,
        accuracy=float(np.mean(accuracies)) if accuracies else None,
        log=tuple(results[0]["log"]) if results[0].get("log") else None,
        diverged=_first(results, "diverged"),
    )


def _infinite(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def _zero_out(bound: UpperBound | None) -> UpperBound | None:
    """The same bound for zero-out adjacency, as that of the estimates.

    A client who takes part by coins is absent in the same way as one whose updates are zero, and
    a client whose updates are zero is one of those that may replace another.
    """
    return None if bound is None else dataclasses.replace(bound, adjacency="zero-out")


def _first(results: list[dict[str, Any]], key: str) -> str | None:
    """The reason that the replicates give under ``key``, with how many give one."""
    told = [result[key] for result in results if result.get(key)]
    if not told:
        return None
    text = told[0] if isinstance(told[0], str) else "; ".join(told[0])
    return text if len(results) == 1 else f"{text} ({len(told)} of {len(results)} measurements)"


def _epsilon(
    parts: list[dict[str, Any]],
    bound: UpperBound | None,
    delta: float,
    clients: int,
    quantiles: list[float],
) -> Epsilon:
    """For known rounds: as computed in the limit, or from the scores of trainings."""
    if "epsilon" in parts[0]:
        return _computed(parts[0], bound, clients, quantiles)
    usual, strict = quantiles
    counts = np.array([part["count"] for part in parts])
    middle = float(np.average([part["mean"] for part in parts], weights=counts))
    variances = np.maximum([part["variance"] for part in parts], 1.0)
    error = math.sqrt(float(variances @ counts)) / counts.sum()
    mean, low, high, least_likely = (
        _at(middle + by * error, delta) for by in (0.0, -usual, usual, -strict)
    )
    above = bound is not None and least_likely > bound.epsilon
    of_mean = Epsilon(
        mean, low, high, bound, above, mean=mean, mean_low=low, mean_high=high, clients=clients
    )
    if not all("scale" in part for part in parts):
        return of_mean
    scale, error = _scale_of(parts)
    laws = [
        dataclasses.replace(
            ExpectedScoreLaw.of(part["expected_scores"], part["shares"]),
            drawn=part["drawn"],
            whole=part["whole"],
        )
        for part in parts
    ]
    law = ExpectedScoreLaw.of(*(np.concatenate([getattr(w, n) for w in laws]) for n in _LAW))
    epsilon, low, high = (
        known_expected_score_epsilon(
            max(scale + by * error, 0.0) * law.expected_scores, delta, weights=law.shares
        )
        for by in (0.0, -usual, usual)
    )
    share = scipy.special.ndtr(usual)  # the scale and the largest expected score share the risk
    sizes = [law.largest(clients, share) for law in laws]
    return dataclasses.replace(
        of_mean,
        epsilon=epsilon,
        low=low,
        high=high,
        simulated=any(part["drawn"] for part in parts),
        worst_case=None
        if None in sizes
        else _at((scale + usual * error) * max(size or 0.0 for size in sizes), delta),
        unaware=unknown_expected_score_epsilon(
            max(scale, 0.0) * law.expected_scores, delta, weights=law.shares
        ),
    )


def _computed(
    part: dict[str, Any], bound: UpperBound | None, clients: int, quantiles: list[float]
) -> Epsilon:
    usual, strict = quantiles
    epsilon, error = part["epsilon"], part["error"]
    above = bound is not None and epsilon - strict * error > bound.epsilon * (1 + 1e-6)
    return Epsilon(
        epsilon,
        max(epsilon - usual * error, 0.0),
        epsilon + usual * error,
        bound,
        above,
        simulated=part["drawn"] > 0,
        worst_case=part["worst_case"],
        clients=clients,
        unaware=part["unaware"],
        mean=part["mean"],
        mean_low=part["mean"],
        mean_high=part["mean"],
    )


def _unknown(
    facts: list[dict[str, Any]],
    parts: list[dict[str, Any]],
    bound: UpperBound | None,
    delta: float,
    clients: int,
    quantiles: list[float],
) -> Epsilon | None:
    """For unknown rounds: at the scale of the known rounds, which is 1 in the limit."""
    usual, strict = quantiles
    scale, error = (1.0, 0.0) if "epsilon" in parts[0] else _scale_of(parts)

    def at(by: float) -> float:
        each = [unknown_epsilon(fact, scale + by * error, delta) for fact in facts]
        return float(np.mean(each))

    epsilon = at(0.0)
    low, high, least = (at(-usual), at(usual), at(-strict)) if error else (epsilon,) * 3
    above = bound is not None and least > bound.epsilon * (1 + 1e-6)
    return Epsilon(epsilon, low, high, bound, above, clients=clients)


def _scale_of(parts: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean of independent scales κ, and its standard error."""
    error = math.sqrt(sum(part["error"] ** 2 for part in parts)) / len(parts)
    return float(np.mean([part["scale"] for part in parts])), error


def _at(shift: float, delta: float) -> float:
    return float(epsilon_two_gaussians(0.0, 1.0, max(shift, 0.0), 1.0, delta))
