"""How far the scores of a run's canaries depend on each other, as far as one run can tell.

Lower bounds count canaries as independent trials. The unobserved ones are, given the model, if
their directions were drawn independently; here that is measured, from the score of every canary in
every round. Dependence that is common to all rounds of a run looks like a larger or smaller ε and
cannot be told from it by one run: docs/notes/lifted.md.

Examples:
    >>> rng = np.random.default_rng(0)
    >>> found = dependence_of(rng.normal(size=(100, 50)))
    >>> found.p_value > 0.01
    True
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.auditing.other_canaries import without_others
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.shifted_cosines import shift_scores
from fl_epe.auditing.statistics import participant_signals

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Dependence:
    """What the scores of k canaries in T rounds say about their dependence.

    Attributes:
        canaries: mean number k of canaries in a round.
        rounds: number T of rounds with at least two canaries.
        independent_rounds: how many independent rounds they are worth.
        mean_variance: variance of a round's mean score, times k: 1 for independent scores.
        correlation: mean correlation of two canaries.
        standard_error: of the correlation, if the scores are independent.
        p_value: probability of at least this ``mean_variance`` for independent scores.
        detectable: the least correlation that would be found with 80% power at a level of 5%.
    """

    canaries: float
    rounds: int
    independent_rounds: float
    mean_variance: float
    correlation: float
    standard_error: float
    p_value: float
    detectable: float


def dependence_of(scores: Floats, present: NDArray[np.bool_] | None = None) -> Dependence | None:
    """Dependence of canaries from scores of mean 0 and variance 1 in every round.

    Args:
        scores: of every canary in every round, shape (T, k).
        present: which scores count, shape (T, k); all by default.

    Returns:
        ``None`` without a round of two canaries.
    """
    here = np.ones(scores.shape, bool) if present is None else present
    counts = here.sum(axis=1)
    rows = counts >= 2
    if not rows.any():
        return None
    values, counts = np.where(here, scores, 0.0)[rows], counts[rows]
    square = float((values**2).sum() / counts.sum())
    if square == 0:
        return None
    pairs = counts * (counts - 1.0)
    covariances = values.sum(axis=1) ** 2 - (values**2).sum(axis=1)
    correlation = float(covariances.sum() / pairs.sum()) / square
    worth = _independent_rounds(values, complete=bool(here[rows].all()))
    # Each round's sum over pairs has variance 2·pairs if scores are independent.
    error = math.sqrt(2.0 / float(pairs.sum()) * len(counts) / worth)
    count = float(pairs.sum() / counts.sum()) + 1  # such that 1 + (k − 1)·ρ is the variance
    variance = 1 + (count - 1) * correlation
    return Dependence(
        canaries=float(counts.mean()),
        rounds=len(counts),
        independent_rounds=worth,
        mean_variance=variance,
        correlation=correlation,
        standard_error=error,
        p_value=float(scipy.stats.chi2.sf(max(variance, 0.0) * worth, worth)),
        detectable=_detectable(worth, count),
    )


def _independent_rounds(values: Floats, *, complete: bool) -> float:
    """T²/tr(G²) for the correlations G of the rounds' scores, of which the noise is taken out.

    Where canaries are not in the same rounds, G is not seen; the rounds then count as independent,
    as they are where each canary is in one of them.
    """
    rounds, count = values.shape
    if not complete or rounds == 1:
        return float(rounds)
    scale = np.sqrt((values**2).sum(axis=1) / count)
    standard = values / np.where(scale > 0, scale, 1.0)[:, np.newaxis]
    # tr((SSᵀ)²) is tr((SᵀS)²): the smaller product is enough.
    product = standard @ standard.T if rounds <= count else standard.T @ standard
    raw = float((product**2).sum()) / count**2
    energy = (raw - rounds**2 / count) / (1 + 1 / count)
    return float(rounds**2 / np.clip(energy, rounds, rounds**2))


def _detectable(worth: float, count: float) -> float:
    threshold, found = scipy.stats.chi2.isf(0.05, worth), scipy.stats.chi2.ppf(0.2, worth)
    return float(max(threshold / found - 1, 0.0) / (count - 1))


def dependence(record: AuditRecord) -> dict[str, Dependence]:
    """Dependence of the unobserved and of the observed canaries of a run.

    "unobserved" has their scores (`shift_scores`) with every round's mean. "observed" has the
    scores of the canaries that take part in a round, less what they are expected to be, with one
    strength fitted to all; it is left out where the signal is not known.

    Returns:
        Only those with a round of two canaries.
    """
    record = without_others(record)
    dim, moved = record.dim, record.norms.means > 0
    found = {"unobserved": dependence_of(shift_scores(record.unobserved.means[moved], dim))}
    if record.signal_known():
        signal = participant_signals(record)
        scores = shift_scores(record.observed.means, dim)
        energy = float((signal**2).sum())
        strength = float((signal * scores).sum()) / energy if energy else 0.0
        residuals = scores - strength * signal
        found["observed"] = dependence_of(residuals[moved], record.presence[moved])
    return {name: result for name, result in found.items() if result is not None}
