"""The statistics of a view: one score for each canary, larger for "took part".

A statistic is a function of a `View` in `FUNCTIONS`, under the name that `view.STATISTICS` lists
with the adversary who can compute it. The notation is that of `fl_epe.auditing.view`. Statistics of
every round leave out canaries that never took part. Scores with a standard null are taken to have
the means `View.expected_scores`, up to a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.auditing.leave_one_out import known_others
from fl_epe.auditing.scores import Scores, with_measured_null
from fl_epe.auditing.shifted_cosines import shift_scores
from fl_epe.checks import ArgumentError, raise_invalid

if TYPE_CHECKING:
    from fl_epe.auditing.record import AuditRecord
    from fl_epe.auditing.view import View

Floats = NDArray[np.float64]


def _displacement(view: View) -> Scores:
    """``√d·cos(c_i, θ_T − θ_0)``, as the initial model is public. Null N(0, 1)."""
    sides = view.alone.observed.displacement, view.alone.unobserved.displacement
    return _scaled_cosines(view, *sides, "displacement")


def _model(view: View) -> Scores:
    """``√d·cos(c_i, θ_T)`` (Andrew et al. 2024, Algorithm 2). Null N(0, 1)."""
    return _scaled_cosines(view, view.record.observed.final, view.record.unobserved.final, "model")


def _maximum(view: View) -> Scores:
    """``max_t cos(c_i, θ_t − θ_{t−1})`` (Andrew et al. 2024, Algorithm 3).

    This statistic has no closed-form null distribution; use unobserved canaries. The cosines are
    not scaled by √d, as in the paper.
    """
    observed, unobserved = view.record.delta_cosines()
    others = _if_enough(unobserved.max(axis=0))
    return Scores(observed.max(axis=0), others, statistic="maximum over rounds")


def _matched_filter(view: View) -> Scores:
    """``Σ a_t s_it / √(Σ a_t²)`` over the known rounds ``S_i``. Null N(0, 1).

    Canaries that never took part are left out. Each unobserved canary is scored at the rounds of
    an observed one. If the ``a_t`` are not known, all rounds weigh the same. If no canary took part
    more than once, a score is √d times the cosine with one round's mean.
    """
    record = view.alone
    here = record.presence.any(axis=0)
    signals = view.signals if record.signal_known() else record.presence * 1.0
    own, borrowed = signals[:, here], _borrowed(record, signals[:, here])
    observed, unobserved = record.observed.means[:, here], record.unobserved.means
    if bool(record.presence.sum(axis=0).max() <= 1):
        filtered, others = _filter(own, observed), _filter(borrowed, unobserved)
        return _scaled_cosines(view, filtered, others, "matched-filter")
    filtered = _filter(own, shift_scores(observed, record.dim))
    others = _filter(borrowed, shift_scores(unobserved, record.dim))
    return with_measured_null(
        Scores(filtered, _if_enough(others), None, "matched-filter", standard_null=True)
    )


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
    norms, observed = record.norms.residuals, record.observed.residuals
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


def _likelihood_ratio(view: View) -> Scores:
    """``Σ_e ln(mean_{t∈e} exp(a_t s_it − a_t²/2))``, for an adversary who does not know the rounds.

    There is one term for each epoch e. With rounds drawn by coins of probability q, there is one
    term ``ln(1 − q + q·exp(…))`` for each round instead, see `View.unknown_rounds_law`. The null is
    not Gaussian: use `unknown_rounds_estimate` for an ε.

    Raises:
        ValueError: if the schedule has no `View.unknown_rounds_law`.
    """
    law = view.checked_law()
    signal = view.signal[:, None]
    terms = [
        signal * shift_scores(side.means, view.record.dim) - signal**2 / 2
        for side in (view.alone.observed, view.alone.unobserved)
    ]
    if law == "coins":
        rate = min(view.coin_rate, 1 - 1e-12)
        observed, unobserved = (
            np.sum(np.logaddexp(np.log1p(-rate), np.log(rate) + term), axis=0) for term in terms
        )
    else:
        blocks = view.epoch_blocks
        observed, unobserved = (
            np.sum(
                [scipy.special.logsumexp(term[b], axis=0) - np.log(len(b)) for b in blocks], axis=0
            )
            for term in terms
        )
    return Scores(observed, _if_enough(unobserved), statistic="likelihood-ratio")


FUNCTIONS: dict[str, Callable[[View], Scores]] = {
    "displacement": _displacement,
    "model": _model,
    "matched-filter": _matched_filter,
    "full-knowledge": _full_knowledge,
    "likelihood-ratio": _likelihood_ratio,
    "maximum": _maximum,
}
"""The statistics by name."""


def _scaled_cosines(view: View, observed: Floats, unobserved: Floats, statistic: str) -> Scores:
    """Scores that are cosines with one vector each, which rounding may lift above 1."""
    scale, dim = np.sqrt(view.record.dim), view.record.dim
    return Scores(observed * scale, _if_enough(unobserved * scale), dim, statistic)


def _if_enough(scores: Floats) -> Floats | None:
    return scores if len(scores) >= 2 else None


def _borrowed(record: AuditRecord, signals: NDArray[Any]) -> NDArray[Any]:
    """For each unobserved canary the column of one that took part."""
    return signals[:, np.resize(np.arange(signals.shape[1]), record.unobserved.count)]


def _filter(weights: NDArray[Any], cosines: Floats) -> Floats:
    energy = np.sqrt(np.sum(weights**2, axis=0))
    total = np.asarray(np.sum(weights * cosines, axis=0))
    return np.asarray(np.divide(total, energy, out=np.zeros_like(total), where=energy > 0))
