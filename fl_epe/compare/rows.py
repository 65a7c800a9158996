"""From measurements to the rows of the comparison: pooled ε with intervals, beside theory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from fl_epe.accounting import UpperBound, epsilon_two_gaussians, tightest
from fl_epe.compare.plan import Cell, Plan
from fl_epe.compare.runner import Results


@dataclasses.dataclass(frozen=True)
class Epsilon:
    """An ε with its interval, and that of the most exposed canary.

    Attributes:
        epsilon: of a random client whose rounds the adversary knows; of the mean canary where
            footprints are not known, and for unknown rounds of a canary whose rounds are drawn.
        low: lower end of the interval.
        high: upper end of the interval.
        most_exposed: of the canary with the largest footprint (expected score); ``None`` where
            that is not known.
        analytical: the tightest bound against this adversary; ``None`` where none is known.
        above: the estimate lies above the bound by more than chance allows, all comparisons of
            the plan taken together. Either the bound does not apply or something is wrong. The
            test is of the mean canary.
        mean: of the mean canary; ``None`` for unknown rounds.
        mean_low: lower end of its interval.
        mean_high: upper end of it.
        unaware: of a random client whose footprint the adversary does not know.
        clients: number of clients in the next field.
        most_of_clients: what no client of so many exceeds, at the plan's confidence.
    """

    epsilon: float
    low: float
    high: float
    most_exposed: float | None
    analytical: UpperBound | None
    above: bool
    mean: float | None = None
    mean_low: float | None = None
    mean_high: float | None = None
    unaware: float | None = None
    clients: int | None = None
    most_of_clients: float | None = None

    @property
    def exposed_above(self) -> bool:
        """Whether the most exposed canary has more than an analytical ε that averages over chance.

        That is no violation: see `fl_epe.compare.notes_of`.
        """
        if self.most_exposed is None or self.analytical is None or not self.analytical.averages:
            return False
        return self.most_exposed > self.analytical.epsilon * (1 + 1e-6)


@dataclasses.dataclass(frozen=True)
class Row:
    """One schedule at one noise multiplier and number of participations.

    Attributes:
        schedule: its specification.
        noise_multiplier: z.
        participations: expected participations asked for.
        replicates: measurements that were pooled.
        delta: δ of every ε.
        mean_participations: mean of the canaries' participations.
        most_participations: of any canary.
        final: for an adversary who sees the final model.
        every_round: for an adversary who sees every round's model and knows each client's rounds.
        unknown_rounds: for an adversary who sees every round's model and does not know who
            takes part when; ``None`` where there is no closed form.
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
    mean_participations: float | None = None
    most_participations: int | None = None
    final: Epsilon | None = None
    every_round: Epsilon | None = None
    unknown_rounds: Epsilon | None = None
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
    def exposed_above(self) -> bool:
        """See `Epsilon.exposed_above`; of any adversary."""
        return any(e is not None and e.exposed_above for e in (self.final, self.every_round))

    @property
    def above(self) -> bool:
        """Whether any ε lies above its bound by more than chance allows."""
        return any(
            e is not None and e.above for e in (self.final, self.every_round, self.unknown_rounds)
        )


def rows_of(plan: Plan, results: Results) -> list[Row]:
    """The rows of a comparison, in the order of the plan.

    The mean score over canaries and replicates has the standard error of its sample (at least that
    of N(0, 1) noise), which gives the interval of ε. Whether an estimate lies above its bound is
    tested at the plan's confidence for all of its comparisons together (Bonferroni).
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
    bounds = tuple(_bound_of(bound) for bound in results[0]["guarantees"])
    quantiles = scipy.special.ndtri([(1 + confidence) / 2, 1 - (1 - confidence) / tests])
    delta = results[0]["delta"]
    accuracies = [result["accuracy"] for result in results if result["accuracy"] is not None]
    known, unknown = tightest(bounds, rounds_known=True), tightest(bounds, rounds_known=False)
    return Row(
        *place,
        replicates=len(results),
        delta=delta,
        mean_participations=float(
            np.mean([result["participations"]["mean"] for result in results])
        ),
        most_participations=max(result["participations"]["most"] for result in results),
        final=_pooled([result["final"] for result in results], delta, quantiles, unknown),
        every_round=_pooled([result["all"] for result in results], delta, quantiles, known),
        unknown_rounds=_averaged([result["secret"] for result in results], quantiles, unknown),
        accuracy=float(np.mean(accuracies)) if accuracies else None,
        diverged=_first(results, "diverged"),
    )


def _first(results: list[dict[str, Any]], key: str) -> str | None:
    """The reason that the replicates give under ``key``, with how many give one."""
    told = [result[key] for result in results if result.get(key)]
    if not told:
        return None
    text = told[0] if isinstance(told[0], str) else "; ".join(told[0])
    return text if len(results) == 1 else f"{text} ({len(told)} of {len(results)} measurements)"


def _bound_of(values: dict[str, Any]) -> UpperBound:
    """A bound from the JSON values in which a measurement keeps it."""
    values = dict(values)
    if "rounds" in values:  # written before 0.2
        values["rounds_known"] = values.pop("rounds") == "known"
    if "averages" not in values:
        values["averages"] = not values["assumption"].startswith("takes part at most")
    epsilon = values.pop("epsilon")
    return UpperBound(math.inf if epsilon is None else epsilon, **values)


def _pooled(
    parts: list[dict[str, Any]], delta: float, quantiles: Sequence[float], bound: UpperBound | None
) -> Epsilon:
    counts = np.array([part["count"] for part in parts])
    mean = float(np.average([part["mean"] for part in parts], weights=counts))
    variances = np.maximum([part["variance"] for part in parts], 1.0)
    error = math.sqrt(float(variances @ counts)) / counts.sum()
    usual, strict = quantiles
    means = mean + error * np.array([0.0, -usual, usual, -strict])
    largest = [part["largest"] for part in parts if part["largest"] is not None]
    means = np.maximum(np.append(means, max(largest, default=0.0)), 0.0)
    epsilon, low, high, least_likely, exposed = np.asarray(
        epsilon_two_gaussians(0.0, 1.0, means, 1.0, delta)
    ).tolist()
    above = bound is not None and bool(least_likely > bound.epsilon)
    mean_canary = Epsilon(
        epsilon, low, high, exposed if largest else None, bound, above, epsilon, low, high
    )
    return _with_random_client(mean_canary, parts)


def _with_random_client(mean_canary: Epsilon, parts: list[dict[str, Any]]) -> Epsilon:
    """The ε of a random client in place of the mean canary's, if every measurement has one."""
    if not all("known" in part for part in parts):  # footprints not known, or written before 0.3
        return mean_canary
    epsilon, low, high = _mean_ends([part["known"] for part in parts])
    out = dataclasses.replace(
        mean_canary,
        epsilon=epsilon,
        low=low,
        high=high,
        unaware=_mean_ends([part["unknown"] for part in parts])[0],
    )
    if not all("of_all" in part for part in parts):
        return out
    of_all = [part["of_all"] for part in parts]
    return dataclasses.replace(
        out, clients=of_all[0]["clients"], most_of_clients=_mean_ends(of_all)[2]
    )


def _mean_ends(estimates: list[dict[str, float]]) -> tuple[float, float, float]:
    """Mean of independent estimates, with its interval."""
    epsilon = float(np.mean([found["epsilon"] for found in estimates]))
    down, up = (
        math.sqrt(sum((found[end] - found["epsilon"]) ** 2 for found in estimates)) / len(estimates)
        for end in ("low", "high")
    )
    return epsilon, max(0.0, epsilon - down), epsilon + up


def _averaged(
    parts: list[dict[str, float] | None], quantiles: Sequence[float], bound: UpperBound | None
) -> Epsilon | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    epsilon = float(np.mean([part["epsilon"] for part in known]))
    down, up = (
        math.sqrt(sum((part[end] - part["epsilon"]) ** 2 for part in known)) / len(known)
        for end in ("low", "high")
    )
    low, high = max(0.0, epsilon - down), epsilon + up
    usual, strict = quantiles
    above = bound is not None and bool(epsilon - down * strict / usual > bound.epsilon)
    return Epsilon(epsilon, low, high, None, bound, above)
