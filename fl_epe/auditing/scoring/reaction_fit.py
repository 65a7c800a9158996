"""The reaction of training to a client, fitted to canaries' scores in all rounds."""

import math
import weakref

import numpy as np
import scipy

from fl_epe.auditing.record import NotMeasured
from fl_epe.auditing.scoring.reaction import RATES, Reaction
from fl_epe.auditing.scoring.view import View
from fl_epe.checks import Floats

_MOST_CANARIES = 64  # canaries whose scores are fitted

# Relative error of ρ, as losses are not quadratic and canaries are a part of their own
# residual.
_MODEL_ERROR = 0.1

_STEP = 1e-3  # difference of ρ for derivatives

_FITTED: weakref.WeakKeyDictionary[View, Reaction] = weakref.WeakKeyDictionary()


def fitted_reaction(view: View) -> Reaction:
    """The reaction of `fit_reaction`, which is computed once for a view."""
    if view not in _FITTED:
        _FITTED[view] = fit_reaction(view)
    return _FITTED[view]


def fit_reaction(view: View) -> Reaction:
    """Fit ρ, together with κ, to canaries' scores in all rounds by least squares.

    If there are many canaries, those that took part most often are used.

    Args:
        view: the view of an adversary who sees every round's model.

    Raises:
        NotMeasured: if the correlations of rounds are not known.
    """
    record = view.record
    if record.correlation.window == 1:
        raise NotMeasured(
            "canaries took part in fewer rounds than a client, and how later rounds react to one is"
            " not known: that needs rotated canaries and a model of more than"
            f" {record.dim} parameters"
        )
    participations = record.presence.sum(axis=0)
    canaries = np.argsort(-participations, kind="stable")[:_MOST_CANARIES]
    scores = view.whitened_scores[:, canaries]
    shares = record.shares()[:, canaries] * 1.0
    # The residuals of a canary's absent rounds have a part along it, which counts as noise without
    # this correction.
    absent_scores = np.where(shares > 0, 0.0, view.round_scores[:, canaries])
    along = record.correlation.whiten(absent_scores)
    remaining = np.maximum(record.dim - np.sum(along**2, axis=0), 1.0)

    def product(first: Floats, second: Floats) -> float:
        parts = np.sum(along * first, axis=0) * np.sum(along * second, axis=0)
        return float(np.sum(first * second) + np.sum(parts / remaining))

    def means_at(rate: float) -> Floats:
        return view.signals.of(shares, Reaction(rate))

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
