"""The reaction of training to a client, fitted to canaries' scores in all rounds."""

import math

import numpy as np
import scipy

from fl_epe.auditing.record import NotMeasured
from fl_epe.auditing.scoring.reaction import RATES, Reaction
from fl_epe.auditing.scoring.signals import Signals
from fl_epe.checks import Floats

# ρ is fitted to the scores of at most this number of canaries.
_MAX_CANARIES = 64

# Relative error of ρ by the model: losses are not quadratic, and a canary is part of the residual
# to which its scores are relative.
_MODEL_ERROR = 0.1

_STEP = 1e-3  # step of ρ for the difference quotient


def fit_reaction(
    signals: Signals, whitened_scores: Floats, round_scores: Floats
) -> Reaction:
    """Fit ρ, together with κ, to canaries' scores in all rounds by least squares.

    If there are many canaries, those that took part most often are used.

    Args:
        signals: the expected scores of participations, without a reaction.
        whitened_scores: whitened scores of the observed canaries, ``(T, k)``.
        round_scores: the same scores before they were whitened, ``(T, k)``.

    Raises:
        NotMeasured: if the correlations of rounds are not known.
    """
    record = signals.record
    if record.correlation.window == 1:
        raise NotMeasured(
            "canaries took part in fewer rounds than a client, and how later rounds react to one is"
            " not known: that needs rotated canaries and a model of more than"
            f" {record.dim} parameters"
        )
    participations = record.presence.sum(axis=0)
    canaries = np.argsort(-participations, kind="stable")[:_MAX_CANARIES]
    scores = whitened_scores[:, canaries]
    relative_norms = record.shares()[:, canaries] * 1.0
    # In rounds without a canary, the reaction to it is part of the measured residual. Without this
    # correction it would count as noise.
    absent_scores = np.where(relative_norms > 0, 0.0, round_scores[:, canaries])
    along = record.correlation.whiten(absent_scores)
    remaining = np.maximum(record.dim - np.sum(along**2, axis=0), 1.0)

    def product(first: Floats, second: Floats) -> float:
        parts = np.sum(along * first, axis=0) * np.sum(along * second, axis=0)
        return float(np.sum(first * second) + np.sum(parts / remaining))

    def means_at(rate: float) -> Floats:
        return signals.whitened(relative_norms, Reaction(rate))

    def scale(means: Floats) -> float:
        return product(means, scores) / product(means, means)

    def misfit(rate: float) -> float:
        means = means_at(rate)
        residual = scores - scale(means) * means
        return product(residual, residual)

    fit = scipy.optimize.minimize_scalar(misfit, bounds=RATES, method="bounded")
    rate = float(fit.x)
    means = means_at(rate)
    slope = (means_at(rate + _STEP) - means_at(rate - _STEP)) / (2 * _STEP)
    # The part of the slope that a change of κ explains is removed.
    slope -= product(means, slope) / product(means, means) * means
    information = scale(means) ** 2 * product(slope, slope)
    error = information**-0.5 if information > 0 else math.inf
    return Reaction(rate, math.hypot(error, _MODEL_ERROR * rate))
