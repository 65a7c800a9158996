"""The statistics of a view: one score for each canary, larger for canaries that took part.

A statistic is a function of a `View` in `FUNCTIONS`. `STATISTICS` has the same names, each with
the adversary who can compute it. The notation is that of `fl_epe.auditing.scoring.view`.
Statistics of every round leave out canaries that never took part. Scores with a standard null
are assumed to have the means `View.expected_scores`, up to a factor.

Examples:
    >>> list(STATISTICS)
    ['displacement', 'model', 'full-knowledge', 'matched-filter', 'maximum']
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_epe.auditing.estimate import EVERY_ROUND, FINAL_MODEL, Adversary
from fl_epe.auditing.record import AuditRecord, check_measured, quotients
from fl_epe.auditing.scoring.leave_one_out import expected_others
from fl_epe.auditing.scoring.scores import Scores
from fl_epe.auditing.scoring.view import View
from fl_epe.checks import ArgumentError, Floats, Vector, raise_invalid
from fl_epe.schedules import Event, Events

# A number of participations in a round is ignored if it is less probable than this.
_MIN_CHANCE = 1e-7

# The largest argument of an exponential, which is finite in float32.
_MAX_EXPONENT = 80.0

# With a probability of 1, a canary's likelihood ratio could be 0, whose logarithm is −∞.
_MAX_RATE = 1 - 1e-12


def _displacement(view: View) -> Scores:
    """``√d·cos(c_i, θ_T − θ_0)``, as the initial model is public. The null is N(0, 1)."""
    record = view.signals.leave_one_out
    return _scaled_cosines(
        record.observed.displacement,
        record.unobserved.displacement,
        record.dim,
        "displacement",
    )


def _model(view: View) -> Scores:
    """``√d·cos(c_i, θ_T)`` (Andrew et al. 2024, Algorithm 2). The null is N(0, 1)."""
    record = view.record
    return _scaled_cosines(
        record.observed.final, record.unobserved.final, record.dim, "model"
    )


def _maximum(view: View) -> Scores:
    """``max_t cos(c_i, θ_t − θ_{t−1})`` (Andrew et al. 2024, Algorithm 3).

    This statistic has no closed-form null distribution; use unobserved canaries. The cosines are
    not scaled by √d, as in the paper.
    """
    observed, unobserved = view.record.model_update_cosines()
    return Scores(
        observed.max(axis=0),
        _if_enough(unobserved.max(axis=0)),
        statistic="maximum over rounds",
    )


def _matched_filter(view: View) -> Scores:
    """``fᵀG⁻¹s / √(fᵀG⁻¹f)``, over all rounds. The null is N(0, 1).

    Canaries that never took part are left out. Each unobserved canary is scored in the rounds of
    an observed one. If the expected scores ``a_t`` are not known, all rounds have the same weight.
    If the correlation of the rounds is measured, or no canary took part twice, a score is √d
    times the cosine with one vector, a sum of the rounds' means that contains the canary's own
    part.
    """
    record = view.record
    correlation = record.correlation
    precision = view.precision
    participations = record.presence.sum(axis=0)
    signals = view.whitened_signals[:, participations > 0]
    observed = _filter(signals, view.whitened_scores[:, participations > 0])
    unobserved = _filter(_repeated_columns(record, signals), view.whitened_null)
    is_measured = correlation.factor is not None
    is_cosine = is_measured or participations.max() <= 1
    followed = None
    strategy = record.mechanism.strategy
    if is_measured and strategy is not None:
        # The noise is correlated over more rounds than the window follows.
        beyond_window = np.tril(strategy, -correlation.window)
        followed = correlation.window if beyond_window.any() else None
    return Scores(
        observed / precision.observed_std,
        _if_enough(unobserved / precision.null_std),
        record.dim if is_cosine else None,
        "matched-filter",
        standard_null=True,
        linear=True,
        unit=precision.unit * precision.observed_std,
        unit_error=view.unit_error,
        followed=followed,
    )


def _full_knowledge(view: View) -> Scores:
    """Matched filter of an adversary who knows all but the canary, as in the definition of DP.

    The real clients' sum and the other canaries' expected contributions are subtracted from the
    released vector, which leaves the noise and the canary. ``s_it`` is the inner product of the
    canary with the difference, divided by the noise's standard deviation. A score has the mean
    √R/z for R participations, and the null N(0, 1) in any dimension.

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
    noise_std = (z * mechanism.clip_norms / mechanism.cohort_size)[:, None]
    observed_others, unobserved_others = expected_others(record)
    round_scores = (norms[:, None] * observed - observed_others) / noise_std
    null_scores = (norms[:, None] * unobserved - unobserved_others) / noise_std
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
    """Logarithm of the likelihood ratio of a canary in hidden rounds to an absent one, ``(k,)``.

    Args:
        scores: scores, N(0, 1) for a canary that took part in no round, ``(T, k)``.
        events: how the rounds are drawn, see `Events.independent`.
        signal: means of the scores in the rounds of a canary that took part, ``(T, 1)``.
    """
    terms = signal * scores - signal**2 / 2
    coins = [event for event in events.independent if event.is_coin]
    total = np.zeros(terms.shape[1])
    if coins:
        # All coins at once, as there may be one in each round.
        rates = np.minimum([event.chance for event in coins], _MAX_RATE)
        present_chances = rates[:, None].astype(terms.dtype)
        absent_chances = (1 - rates)[:, None].astype(terms.dtype)
        coin_terms = terms[[event.rounds[0] for event in coins]]
        ratios = np.exp(np.minimum(coin_terms, _MAX_EXPONENT))
        logs = np.log(absent_chances + present_chances * ratios)
        # Above the largest exponent, the logarithm is linear in the term.
        logs += np.maximum(coin_terms - _MAX_EXPONENT, 0)
        total += np.sum(logs, axis=0, dtype=np.float64)
    for event in events.independent:
        if not event.is_coin:
            total += _event_ratio(
                event, scores[event.rounds], signal[event.rounds]
            )
    return total


def _event_ratio(event: Event, scores: Vector, signal: Vector) -> Floats:
    """Logarithm of the likelihood ratio of one event, ``(k,)``.

    Args:
        event: the event.
        scores: the scores in the round of each possible participation, ``(rows, k)``.
        signal: the means of these scores for a canary that is in the round once, ``(rows, 1)``.
    """
    least_chance = 0.0
    if event.in_one_round:
        # Very unlikely numbers of participations are left out to save time; any function of the
        # scores is a valid statistic.
        least_chance = min(_MIN_CHANCE, float(event.chances.max()))
    is_likely = event.chances >= least_chance
    chances = event.chances[is_likely].astype(scores.dtype)
    means = (signal * event.counts[:, None].astype(scores.dtype))[is_likely]
    terms = means * scores[is_likely] - means**2 / 2
    largest = np.max(terms, axis=0)
    ratio = largest + np.log(chances @ np.exp(terms - largest))
    absent_chance = 1 - float(event.chances.sum())
    is_certain = event.chance == 1 or absent_chance <= 0
    if is_certain:
        return np.asarray(ratio)
    return np.asarray(np.logaddexp(math.log(absent_chance), ratio))


FUNCTIONS: dict[str, Callable[[View], Scores]] = {
    "displacement": _displacement,
    "model": _model,
    "full-knowledge": _full_knowledge,
    "matched-filter": _matched_filter,
    "maximum": _maximum,
}

STATISTICS = {
    "displacement": FINAL_MODEL,
    "model": FINAL_MODEL,
    "full-knowledge": Adversary("all", knows_others=True),
    "matched-filter": EVERY_ROUND,
    "maximum": Adversary("all", knows_rounds=False),
}
"""Statistics by name, each with the adversary who has just enough knowledge for it.

By default an adversary uses the first one that its knowledge is enough for.
"""


def scores_of(view: View, statistic: str | None = None) -> Scores:
    """Scores of observed and unobserved canaries.

    With fewer than two unobserved canaries ``unobserved`` is ``None``. For the statistics
    "displacement" and "matched-filter" the other canaries are projected out
    (`Signals.leave_one_out`); for the other statistics all canaries stay in.

    Args:
        view: the adversary's view.
        statistic: a statistic of `STATISTICS` that the adversary can compute, see
            `checked_statistic`.

    Raises:
        ValueError: if the adversary cannot compute it, or the record lacks its data.
        NotMeasured: a `ValueError`, if too few canaries took part, or the model did not move.
    """
    statistic = checked_statistic(view.adversary, statistic)
    if statistic in view.computed_scores:
        return view.computed_scores[statistic]
    check_measured(view.record, view.adversary, statistic)
    scores = FUNCTIONS[statistic](view)
    changes: dict[str, Any] = {"adversary": STATISTICS[statistic]}
    is_leave_one_out = statistic in ("displacement", "matched-filter")
    if is_leave_one_out and view.record.norms.canary_sums is not None:
        changes["spread"] = view.overlap_spread(scores)
    has_expected = is_leave_one_out or statistic == "model"
    if has_expected and view.expected_scores.scale_is_known:
        changes["expected"] = view.expected_scores.observed
    scores = dataclasses.replace(scores, **changes)
    view.computed_scores[statistic] = scores
    return scores


def checked_statistic(
    adversary: Adversary, statistic: str | None = None
) -> str:
    """The statistic, or by default the first one that the adversary can compute.

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
        return computable[0]
    if statistic not in computable:
        names = ", ".join(computable)
        raise_invalid(
            "statistic", statistic, f"to be one of {names}, for {adversary}"
        )
    return statistic


def _scaled_cosines(
    observed: Floats, unobserved: Floats, dim: int, statistic: str
) -> Scores:
    """Scores from cosines with one vector, which may exceed 1 by rounding."""
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
    """The columns of ``signals``, repeated in turn for as many as there are unobserved canaries."""
    columns = np.arange(signals.shape[1])
    return signals[:, np.resize(columns, record.unobserved.count)]


def _filter(weights: np.ndarray, scores: Floats) -> Floats:
    """Sums over rounds of each canary's weights times its scores, scaled to variance 1."""
    lengths = np.sqrt(np.sum(weights**2, axis=0))
    return quotients(np.sum(weights * scores, axis=0), lengths)
