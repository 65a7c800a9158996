"""The statistics of a view: one score for each canary, larger for "took part".

A statistic is a function of a `View` in `FUNCTIONS`, under the name that `STATISTICS` lists
with the adversary who can compute it. The notation is that of `fl_epe.auditing.scoring.view`.
Statistics of every round leave out canaries that never took part. Scores with a standard null
are assumed to have the means `View.sizes`, up to a factor.

Examples:
    >>> list(STATISTICS)
    ['displacement', 'model', 'matched-filter', 'full-knowledge', 'maximum']
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_epe.auditing.estimate import EVERY_ROUND, FINAL_MODEL, Adversary
from fl_epe.auditing.record import AuditRecord, check_measured, quotients
from fl_epe.auditing.scoring.leave_one_out import known_others
from fl_epe.auditing.scoring.scores import Scores
from fl_epe.auditing.scoring.view import View
from fl_epe.checks import ArgumentError, Floats, Vector, raise_invalid
from fl_epe.schedules import Event, Events

_UNLIKELY = (
    1e-7  # less probable numbers of participations in a round are ignored
)
_LARGEST_EXPONENT = 80.0  # float32 has no larger exponentials


def _displacement(view: View) -> Scores:
    """``√d·cos(c_i, θ_T − θ_0)``, as the initial model is public. The null is N(0, 1)."""
    return _scaled_cosines(
        view,
        view.alone.observed.displacement,
        view.alone.unobserved.displacement,
        "displacement",
    )


def _model(view: View) -> Scores:
    """``√d·cos(c_i, θ_T)`` (Andrew et al. 2024, Algorithm 2). The null is N(0, 1)."""
    return _scaled_cosines(
        view, view.record.observed.final, view.record.unobserved.final, "model"
    )


def _maximum(view: View) -> Scores:
    """``max_t cos(c_i, θ_t − θ_{t−1})`` (Andrew et al. 2024, Algorithm 3).

    This statistic has no closed-form null distribution; use unobserved canaries. The cosines are
    not scaled by √d, as in the paper.
    """
    observed, unobserved = view.record.delta_cosines()
    return Scores(
        observed.max(axis=0),
        _if_enough(unobserved.max(axis=0)),
        statistic="maximum over rounds",
    )


def _matched_filter(view: View) -> Scores:
    """``fᵀG⁻¹s / √(fᵀG⁻¹f)``, over all rounds. The null is N(0, 1).

    Canaries that never took part are left out. Each unobserved canary is scored at the rounds of an
    observed one. If the ``a_t`` are not known, all rounds have the same weight. If the
    correlation of the rounds is known, or no canary took part twice, a score is √d times the
    cosine with one vector, a sum of the rounds' means that contains the canary's own part.
    """
    record = view.record
    correlation = record.correlation
    precision = view.precision
    participations = record.presence.sum(axis=0)
    signals = view.whitened_signals[:, participations > 0]
    observed = _filter(signals, view.whitened_scores[:, participations > 0])
    unobserved = _filter(_repeated_columns(record, signals), view.whitened_null)
    is_cosine = correlation.factor is not None or participations.max() <= 1
    followed = None
    if correlation.factor is not None and record.mechanism.strategy is not None:
        farther = np.tril(record.mechanism.strategy, -correlation.window)
        followed = correlation.window if np.any(farther) else None
    return Scores(
        observed / precision.own,
        _if_enough(unobserved / precision.width),
        record.dim if is_cosine else None,
        "matched-filter",
        standard_null=True,
        linear=True,
        unit=precision.unit * precision.own,
        unit_error=view.unit_error,
        followed=followed,
    )


def _full_knowledge(view: View) -> Scores:
    """Matched filter of an adversary who knows all but the canary, as in the definition of DP.

    The real clients' sum and the other canaries' expected contributions are subtracted from the
    released vector, which leaves the noise and the canary. ``s_it`` is the inner product of the
    canary with the difference, over the noise's scale ``z·C_t``. A score has the mean √R/z for
    R participations, and the null N(0, 1) in any dimension.

    Raises:
        ValueError: if the run was not made with ``full_knowledge=True``, or had no noise.
    """
    record = view.record
    norms = record.norms.residuals
    observed = record.observed.residuals
    unobserved = record.unobserved.residuals
    if norms is None or observed is None or unobserved is None:
        raise ArgumentError(
            "Expected a record of a run with full_knowledge=True."
        )
    mechanism = record.mechanism
    z = mechanism.sum_noise_multiplier
    if not z:
        raise_invalid("sum_noise_multiplier", z, "> 0")
    noise = (z * mechanism.clip_norms / mechanism.cohort_size)[:, None]
    observed_others, unobserved_others = known_others(record)
    round_scores = (norms[:, None] * observed - observed_others) / noise
    null_scores = (norms[:, None] * unobserved - unobserved_others) / noise
    took_part = record.presence.any(axis=0)
    presence = record.presence[:, took_part]
    return Scores(
        _filter(presence, round_scores[:, took_part]),
        _if_enough(_filter(_repeated_columns(record, presence), null_scores)),
        statistic="full-knowledge",
        standard_null=True,
        expected=np.sqrt(presence.sum(axis=0)),
    )


def mixture_ratios(scores: Vector, events: Events, signal: Vector) -> Floats:
    """Logarithm of the likelihood ratio of having taken part at hidden rounds, ``(k,)``.

    Args:
        scores: scores, N(0, 1) for a canary that took part in no round, ``(T, k)``.
        events: how the rounds are drawn, see `Events.independent`.
        signal: means of the scores in the rounds of a canary that took part, ``(T, 1)``.
    """
    terms = signal * scores - signal**2 / 2
    coins = [event for event in events.independent if event.is_coin]
    total = np.zeros(terms.shape[1])
    if coins:
        rate = np.minimum([event.chance for event in coins], 1 - 1e-12)[:, None]
        tossed = terms[[event.rounds[0] for event in coins]]
        present = rate.astype(terms.dtype)
        absent = (1 - rate).astype(terms.dtype)
        ratios = np.exp(np.minimum(tossed, _LARGEST_EXPONENT))
        logs = np.log(absent + present * ratios)
        logs += np.maximum(tossed - _LARGEST_EXPONENT, 0)
        total += np.sum(logs, axis=0, dtype=np.float64)
    for event in events.independent:
        if not event.is_coin:
            total += _event_ratio(
                event, scores[event.rounds], signal[event.rounds]
            )
    return total


def _event_ratio(event: Event, scores: Vector, signal: Vector) -> Floats:
    """Logarithm of the likelihood ratio of one event, ``(k,)``.

    If the round is known, very unlikely numbers of participations in it are left out: any
    function of the scores is a valid statistic.

    Args:
        event: the event.
        scores: the scores of its rows, ``(rows, k)``.
        signal: the means of its rows, ``(rows, 1)``.
    """
    least_chance = 0.0
    if event.in_one_round:
        least_chance = min(_UNLIKELY, float(event.chances.max()))
    likely = event.chances >= least_chance
    chances = event.chances[likely].astype(scores.dtype)
    means = (signal * event.counts[:, None].astype(scores.dtype))[likely]
    terms = means * scores[likely] - means**2 / 2
    largest = np.max(terms, axis=0)
    ratio = largest + np.log(chances @ np.exp(terms - largest))
    absent = 1 - float(event.chances.sum())
    if event.chance == 1 or absent <= 0:
        return np.asarray(ratio)
    return np.asarray(np.logaddexp(math.log(absent), ratio))


FUNCTIONS: dict[str, Callable[[View], Scores]] = {
    "displacement": _displacement,
    "model": _model,
    "matched-filter": _matched_filter,
    "full-knowledge": _full_knowledge,
    "maximum": _maximum,
}

STATISTICS = {
    "displacement": FINAL_MODEL,
    "model": FINAL_MODEL,
    "matched-filter": EVERY_ROUND,
    "full-knowledge": Adversary("all", knows_others=True),
    "maximum": Adversary("all", knows_rounds=False),
}
"""Statistics by name, each with the adversary who has just enough knowledge for it.

By default an adversary uses the first one that fits; an adversary who knows more may use
others.
"""


def scores_of(view: View, statistic: str | None = None) -> Scores:
    """Scores of observed and unobserved canaries.

    With fewer than two unobserved canaries ``unobserved`` is ``None``. The statistics
    "displacement" and "matched-filter" are computed from the record `View.alone`, of one canary
    among real clients; for the other statistics all canaries stay in.

    Args:
        view: the adversary's view.
        statistic: a statistic of `STATISTICS` that the adversary can compute, see
            `checked_statistic`.

    Raises:
        ValueError: if the adversary cannot compute it, or the record lacks its data.
        NotMeasured: a `ValueError`, if too few canaries took part, or there is no model.
    """
    statistic = checked_statistic(view.adversary, statistic)
    if statistic in view.computed_scores:
        return view.computed_scores[statistic]
    check_measured(view.record, view.adversary, statistic)
    scores = FUNCTIONS[statistic](view)
    changes: dict[str, Any] = {"adversary": STATISTICS[statistic]}
    is_alone = statistic in ("displacement", "matched-filter")
    if is_alone and view.record.norms.sums is not None:
        changes["spread"] = view.overlap_spread(scores)
    if (is_alone or statistic == "model") and view.sizes.known:
        changes["expected"] = view.sizes.observed
    scores = dataclasses.replace(scores, **changes)
    view.computed_scores[statistic] = scores
    return scores


def checked_statistic(
    adversary: Adversary, statistic: str | None = None
) -> str:
    """The statistic, or by default the one that needs all of the adversary's knowledge.

    Raises:
        ValueError: if the adversary does not know enough to compute it.
    """
    computable = [
        name
        for name, needs in STATISTICS.items()
        if needs.sees == adversary.sees
        and needs.knows_rounds <= adversary.knows_rounds
        and needs.knows_others <= adversary.knows_others
    ]
    if not computable:
        raise_invalid(
            "adversary",
            adversary,
            "to know the rounds, for scores of the final model",
        )
    if statistic is None:
        designed = [
            name for name in computable if STATISTICS[name] == adversary
        ]
        if designed:
            return designed[0]
        return computable[0]
    if statistic not in computable:
        names = ", ".join(computable)
        raise_invalid(
            "statistic", statistic, f"to be one of {names}, for {adversary}"
        )
    return statistic


def _scaled_cosines(
    view: View, observed: Floats, unobserved: Floats, statistic: str
) -> Scores:
    """Scores from cosines with one vector, which may exceed 1 by rounding."""
    dim = view.record.dim
    scale = np.sqrt(dim)
    return Scores(
        observed * scale, _if_enough(unobserved * scale), dim, statistic
    )


def _if_enough(scores: Floats) -> Floats | None:
    """The scores, or ``None`` for fewer than two."""
    if len(scores) >= 2:
        return scores
    return None


def _repeated_columns(record: AuditRecord, signals: np.ndarray) -> np.ndarray:
    """The columns of canaries that took part, one for each unobserved canary."""
    return signals[
        :, np.resize(np.arange(signals.shape[1]), record.unobserved.count)
    ]


def _filter(weights: np.ndarray, scores: Floats) -> Floats:
    """Weighted sums of scores over the rounds, scaled to variance 1."""
    lengths = np.sqrt(np.sum(weights**2, axis=0))
    return quotients(np.sum(weights * scores, axis=0), lengths)
