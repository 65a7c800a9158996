"""The statistics of a view: one score for each canary, larger for "took part".

A statistic is a function of a `View` in `FUNCTIONS`, under the name that `STATISTICS` lists
with the adversary who can compute it. The notation is that of `fl_epe.auditing.scoring.view`.
Statistics of every round leave out canaries that never took part. Scores with a standard null
are taken to have the means `View.sizes`, up to a factor.

Examples:
    >>> list(STATISTICS)
    ['displacement', 'model', 'matched-filter', 'full-knowledge', 'maximum']
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from fl_epe.auditing.estimate import EVERY_ROUND, FINAL_MODEL, Adversary
from fl_epe.auditing.record import AuditRecord, check_measured, quotients
from fl_epe.auditing.scoring.leave_one_out import known_others
from fl_epe.auditing.scoring.scores import Scores
from fl_epe.auditing.scoring.view import View
from fl_epe.checks import ArgumentError, Floats, Vector, raise_invalid
from fl_epe.schedules import Event, Events


def _displacement(view: View) -> Scores:
    """``√d·cos(c_i, θ_T − θ_0)``, as the initial model is public. Null N(0, 1)."""
    sides = view.alone.observed.displacement, view.alone.unobserved.displacement
    return _scaled_cosines(view, *sides, "displacement")


def _model(view: View) -> Scores:
    """``√d·cos(c_i, θ_T)`` (Andrew et al. 2024, Algorithm 2). Null N(0, 1)."""
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
    """``fᵀG⁻¹s / √(fᵀG⁻¹f)``, over all rounds. Null N(0, 1).

    Canaries that never took part are left out. Each unobserved canary is scored at the rounds of an
    observed one. If the ``a_t`` are not known, all rounds weigh the same. Where the correlation of
    the rounds is known, or nobody took part twice, a score is √d times the cosine with one vector,
    a sum of the rounds' means, once a canary's own part is left in it.
    """
    record = view.record
    precision = view.precision
    here = record.presence.any(axis=0)
    exact = (
        record.correlation.factor is not None or record.presence.sum(axis=0).max() <= 1
    )
    own = view.whitened_signals[:, here]
    observed = _filter(own, view.whitened_scores[:, here])
    unobserved = _filter(_borrowed(record, own), view.whitened_null)
    return Scores(
        observed / precision.own,
        _if_enough(unobserved / precision.width),
        record.dim if exact else None,
        "matched-filter",
        standard_null=True,
        linear=True,
        unit=precision.unit * precision.own,
        unit_error=view.unit_error,
        followed=_followed(record),
    )


def _followed(record: AuditRecord) -> int | None:
    """See `Scores.followed`."""
    strategy = record.mechanism.strategy
    window = record.correlation.window
    if strategy is None or record.correlation.factor is None:
        return None
    return window if np.any(np.tril(strategy, -window)) else None


def _full_knowledge(view: View) -> Scores:
    """Matched filter of an adversary who knows all but the canary, as in the definition of DP.

    The real clients' sum and what the other canaries should have added are subtracted from what
    was released, which leaves the noise and the canary. ``s_it`` is the inner product with that,
    over the noise's scale ``z·C_t``. A score has the mean √R/z for R participations, and the null
    N(0, 1) in any dimension.

    Raises:
        ValueError: if the run was not made with ``full_knowledge=True``, or had no noise.
    """
    record = view.record
    norms = record.norms.residuals
    observed = record.observed.residuals
    unobserved = record.unobserved.residuals
    if norms is None or observed is None or unobserved is None:
        raise ArgumentError("Expected a record of a run with full_knowledge=True.")
    mechanism = record.mechanism
    z = mechanism.sum_noise_multiplier
    if not z:
        raise_invalid("sum_noise_multiplier", z, "> 0")
    here = record.presence.any(axis=0)
    presence = record.presence[:, here]
    noise = (z * mechanism.clip_norms / mechanism.cohort_size)[:, None]
    others = known_others(record)
    mine = (norms[:, None] * observed - others[0]) / noise
    null = (norms[:, None] * unobserved - others[1]) / noise
    return Scores(
        _filter(presence, mine[:, here]),
        _if_enough(_filter(_borrowed(record, presence), null)),
        statistic="full-knowledge",
        standard_null=True,
        expected=np.sqrt(presence.sum(axis=0)),
    )


def mixture_ratios(scores: Vector, events: Events, signal: Vector) -> Floats:
    """Logarithm of the likelihood ratio of having taken part at hidden rounds, ``(k,)``.

    Args:
        scores: ``(T, k)``, N(0, 1) for those who took part in no round.
        events: how the rounds are drawn, see `Events.independent`.
        signal: means in the rounds of those who did, ``(T, 1)``.
    """
    terms = signal * scores - signal**2 / 2
    coins = [event for event in events.independent if event.is_coin]
    total = np.zeros(terms.shape[1])
    if coins:
        rate = np.minimum([event.chance for event in coins], 1 - 1e-12)[:, None]
        tossed = terms[[event.rounds[0] for event in coins]]
        most = 80.0  # float32 has no larger exponentials
        present = rate.astype(terms.dtype)
        absent = (1 - rate).astype(terms.dtype)
        logs = np.log(absent + present * np.exp(np.minimum(tossed, most)))
        total += np.sum(logs + np.maximum(tossed - most, 0), axis=0, dtype=np.float64)
    for event in events.independent:
        if not event.is_coin:
            total += _ratio_of(event, scores[event.rounds], signal[event.rounds])
    return total


def _ratio_of(event: Event, scores: Vector, signal: Vector) -> Floats:
    """Logarithm of the likelihood ratio of one event, by its rows: ``(rows, k)``, ``(rows, 1)``.

    Where the round is known, a unit that is hardly ever so often in it is left out: any function of
    the scores is one to guess by.
    """
    least = min(_SELDOM, float(event.chances.max())) if event.in_one_round else 0.0
    kept = event.chances >= least
    chances = event.chances[kept].astype(scores.dtype)
    moved = (signal * event.counts[:, None].astype(scores.dtype))[kept]
    parts = moved * scores[kept] - moved**2 / 2
    most = np.max(parts, axis=0)
    ratio = most + np.log(chances @ np.exp(parts - most))
    absent = 1 - float(event.chances.sum())
    if event.chance == 1 or absent <= 0:
        return np.asarray(ratio)
    return np.asarray(np.logaddexp(math.log(absent), ratio))


_SELDOM = 1e-7  # probability that a unit is so many times in a round

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
"""Statistics by name, each with the adversary who knows enough for it, and no more.

An adversary's own one is the first of these; one who knows more may choose another of the list.
"""


def scores_of(view: View, statistic: str | None = None) -> Scores:
    """Scores of observed and unobserved canaries.

    With fewer than two unobserved canaries ``unobserved`` is ``None``. Scores of one canary
    among real clients ("displacement", "matched-filter") are of the record `alone`;
    all canaries stay in for the others.

    Args:
        view: what the adversary sees.
        statistic: one of `STATISTICS` that the adversary can compute; its own by default.

    Raises:
        ValueError: if it is another, or the record lacks its data.
        NotMeasured: a `ValueError`, if too few canaries took part, or there is no model.
    """
    statistic = checked_statistic(view.adversary, statistic)
    if statistic not in view.computed_scores:
        check_measured(view.record, view.adversary, statistic)
        scores = FUNCTIONS[statistic](view)
        if scores.standard_null and statistic != "full-knowledge":
            if statistic != "model" and view.record.norms.sums is not None:
                scores = dataclasses.replace(scores, spread=view.overlap_spread(scores))
            if view.sizes.known:
                scores = dataclasses.replace(scores, expected=view.sizes.observed)
        view.computed_scores[statistic] = dataclasses.replace(
            scores, adversary=STATISTICS[statistic]
        )
    return view.computed_scores[statistic]


def checked_statistic(adversary: Adversary, statistic: str | None = None) -> str:
    """The statistic, or by default the adversary's own one.

    Raises:
        ValueError: if the adversary does not know enough to compute it.
    """
    known = [
        name
        for name, needs in STATISTICS.items()
        if needs.sees == adversary.sees
        and needs.knows_rounds <= adversary.knows_rounds
        and needs.knows_others <= adversary.knows_others
    ]
    if not known:
        raise_invalid(
            "adversary", adversary, "to know the rounds, for scores of the final model"
        )
    if statistic is None:
        return next((name for name in known if STATISTICS[name] == adversary), known[0])
    if statistic not in known:
        raise_invalid(
            "statistic", statistic, f"to be one of {', '.join(known)}, for {adversary}"
        )
    return statistic


def _scaled_cosines(
    view: View, observed: Floats, unobserved: Floats, statistic: str
) -> Scores:
    """Scores that are cosines with one vector each, which rounding may lift above 1."""
    scale = np.sqrt(view.record.dim)
    dim = view.record.dim
    return Scores(observed * scale, _if_enough(unobserved * scale), dim, statistic)


def _if_enough(scores: Floats) -> Floats | None:
    return scores if len(scores) >= 2 else None


def _borrowed(record: AuditRecord, signals: np.ndarray) -> np.ndarray:
    """For each unobserved canary the column of one that took part."""
    return signals[:, np.resize(np.arange(signals.shape[1]), record.unobserved.count)]


def _filter(weights: np.ndarray, cosines: Floats) -> Floats:
    energy = np.sqrt(np.sum(weights**2, axis=0))
    return quotients(np.sum(weights * cosines, axis=0), energy)
