"""κ in ``score = κ · expected score + N(0, 1)``, and two tests of whether one κ fits all canaries.

Expected scores need to be known only up to a common factor. A single κ may fail to fit in two
ways: scores may not grow with the number of participations as expected, or they may depend on the
time of participation, if the final model forgets early rounds. Each test is of one regressor, of
which the part orthogonal to the expected scores is used, at level 1%. Its power depends on the
run's canaries and is reported with it. Both tests are simulated in
simulations/studies/answer_truth.py.
"""

import dataclasses
import math

import numpy as np
import scipy

from fl_epe.auditing.answer.audited_client import AuditedClient
from fl_epe.auditing.estimate import half_width, widening
from fl_epe.auditing.record import NotMeasured
from fl_epe.auditing.scoring import (
    RATES,
    Reaction,
    Scores,
    View,
    scores_of,
    seen_by,
)
from fl_epe.checks import Floats

LEVEL = 0.01
"""The level of each test."""

# Denominators are at least this large.
_TINY = 1e-9

# The power of a test is for a certain effect. A significant effect is relevant if it is larger
# than this share of that effect.
_RELEVANT_SHARE = 0.2

# Relative error of a client's expected score if it follows from a reaction of the other clients.
_EXTRAPOLATION_ERROR = 0.04

# If the reaction was fitted, the error grows with the client's share of a round, because the
# client is itself part of the residual.
_ERROR_PER_CLIENT_SHARE = 0.25

# A fitted reaction is used if κ is at least this many standard errors above 0. Otherwise the
# interval covers all reactions, of which this number is tried.
_MIN_Z_FOR_REACTION = 4.0
_NUM_REACTIONS = 6

# Level of the test whether κ depends on the expected score. In simulated runs that reverse a
# quarter of a frequent client's contribution, 95% intervals contain κ in 93% of the runs at level
# 5% (docs/notes/answer.md), and in 86% at level 1%.
_LEVEL_OF_CHANGE = 0.05

# Largest expected score, relative to the largest of a canary, to which the line is extrapolated.
_MAX_EXTRAPOLATION = 1.1

# A width of the scores above 1 matters if it is more than this share of the root mean square of
# their means.
_MIN_RELEVANT_WIDTH = 0.1

# Level of the test whether scores deviate more than N(0, 1) does from their fitted values.
_WIDTH_LEVEL = 0.001

# Growth is tested if expected scores differ by more than this share of the largest.
_MIN_RELATIVE_RANGE = 0.01

# A regressor with a smaller relative part orthogonal to the expected scores is collinear to them.
_COLLINEAR = 1e-6

# Slope over κ of scores that grow linearly with time, from half to all of the last round's, around
# a mean of κ: (1 − 1/2) / (3/4).
_FORGETTING_EFFECT = 2 / 3


@dataclasses.dataclass(frozen=True)
class LadderTest:
    """A test of whether one κ fits all canaries.

    Attributes:
        p_value: probability of as large an effect, or a larger one, by chance.
        share: the measured effect, divided by the effect that the power is for. A small share
            hardly changes ε, however significant it is.
        power: probability that the test rejects at level 1% if scores grew half as much with the
            number of participations as expected, or if those of the first round were half of
            those of the last round.
        slope: coefficient of the regressor, which is fitted besides κ.
        error: standard error of ``slope``.
        along: coefficient of the expected scores in the regressor, which is projected out.
    """

    p_value: float
    share: float
    power: float
    slope: float
    error: float
    along: float

    def is_significant(self, level: float = LEVEL) -> bool:
        """Whether the test rejects a single κ and the effect is large enough to change ε."""
        return self.p_value < level and self.share > _RELEVANT_SHARE


@dataclasses.dataclass(frozen=True)
class LadderFit:
    """Estimate of κ with its confidence interval, and the tests of the model's fit.

    Attributes:
        scale: κ.
        low: lower end of κ's interval.
        high: upper end of κ's interval.
        width: standard deviation of the scores about the fitted ones, where 1 is expected. If
            `number` rejects a single κ, the fit is a line with an intercept.
        wide: whether ``width`` is significantly larger than 1, and larger than a tenth of the
            root mean square of the fitted scores.
        number: test whether κ depends on the number of participations; ``None`` if all canaries
            have the same number.
        time: test whether κ depends on the time of participation; ``None`` if all canaries have
            the same mean time.
        ratio: ratio of the client's κ to that of all canaries if `number` rejects a single κ;
            otherwise 1.
    """

    scale: float
    low: float
    high: float
    width: float
    wide: bool
    number: LadderTest | None
    time: LadderTest | None
    ratio: float = 1.0


def ladder_fit(
    view: View, scores: Scores | None = None, confidence: float = 0.95
) -> LadderFit:
    """Fit κ to the scores of a view.

    The fit is by least squares (of deviates, for cosines). The interval includes the correlation of
    overlapping canaries (`Scores.spread`), the error of the scores' unit, and the width of the
    scores if that is significantly larger than N(0, 1)'s.

    Args:
        view: the view of an adversary who knows the rounds.
        scores: the scores; by default those of the view.
        confidence: confidence level of the interval.
    """
    scores = scores or scores_of(view)
    expected_scores = view.expected_scores.observed
    num_canaries = len(expected_scores)
    energy = max(float(np.sum(expected_scores**2)), _TINY)
    scale = scores.shift(0.0, expected_scores)
    residual = scores.deviates(scale * expected_scores)
    freedom = max(num_canaries - 1, 1)
    took_part = np.where(expected_scores > 0, 1.0, 0.0)
    number = _test_of_number(took_part, expected_scores, residual, scale)
    if number is not None and number.is_significant(_LEVEL_OF_CHANGE):
        # The fit is then a line with an intercept.
        regressor = took_part - number.along * expected_scores
        residual = residual - number.slope * regressor
        freedom = max(freedom - 1, 1)
    parts = view.expected_scores.parts
    # The time of each round, from −1/2 to 1/2.
    times = (np.arange(len(parts)) + 0.5) / len(parts) - 0.5
    forgetting = _FORGETTING_EFFECT * scale
    time = _test(times @ parts, expected_scores, residual, forgetting)
    variance = float(np.sum(residual**2)) / freedom
    width = float(np.sqrt(variance))
    is_wide = scipy.stats.chi2.sf(variance * freedom, freedom) < _WIDTH_LEVEL
    # All scores share the random norm of the residual, so κ has the error of their mean.
    common_variance = max(scores.spread**2 - 1, 0.0) / (
        num_canaries * float(expected_scores.mean()) ** 2
    )
    score_width = width if is_wide else min(scores.spread, 1.0)
    deviation = np.sqrt(score_width**2 / energy + common_variance)
    half = half_width(confidence) * deviation
    root_mean_square = math.sqrt(energy / num_canaries)
    min_relevant_width = _MIN_RELEVANT_WIDTH * scale * root_mean_square
    fit = LadderFit(
        scale=scale,
        low=scores.shift(half, expected_scores),
        high=scores.shift(-half, expected_scores),
        width=width,
        wide=bool(is_wide and width > min_relevant_width),
        number=number,
        time=time,
    )
    return _widened(fit, scores.unit_error * scale, confidence)


def _test_of_number(
    took_part: Floats, expected_scores: Floats, residual: Floats, scale: float
) -> LadderTest | None:
    """A test whether scores grow with the number of participations as expected.

    Args:
        took_part: 1 for each canary that took part, and 0 for others.
        expected_scores: the expected score of each canary.
        residual: the scores minus the fitted ones.
        scale: κ.

    Returns:
        ``None`` if the expected scores are all about the same.
    """
    largest = float(expected_scores.max(initial=0.0))
    if np.ptp(expected_scores) <= _MIN_RELATIVE_RANGE * largest:
        return None
    energy = max(float(np.sum(expected_scores**2)), _TINY)
    positive = expected_scores[expected_scores > 0]
    smallest = float(np.min(positive, initial=np.inf))
    typical = max(float(np.sum(expected_scores**3)) / energy, _TINY)
    # With this intercept, scores grow by about half of the expected factor between the smallest
    # and a typical expected score.
    intercept = scale * smallest / (1 + smallest / typical)
    return _test(took_part, expected_scores, residual, intercept)


def client_fit(
    view: View, client: AuditedClient, confidence: float = 0.95
) -> LadderFit:
    """Fit κ for a client: its mean score is κ times its expected score, with the same interval.

    If the record has fewer rounds than planned, the interval holds simultaneously after every
    round, whatever ended the run (`fl_epe.auditing.estimate.confidence_sequence`).

    If the other clients react to a client (`fl_epe.auditing.scoring.reaction`), the interval
    includes the error of the reaction. If the reaction was fitted, κ and the client's expected
    score both depend on it. If κ is not clearly above 0, the fitted reaction follows the noise,
    and the interval covers all reactions.

    Args:
        view: the client's view, see `AuditedClient.view`.
        client: the client.
        confidence: confidence level of the interval.

    Raises:
        NotMeasured: if the error of the reaction is larger than the score.
    """
    fit = _fit_at_any_end(view, confidence)
    if client.secret is not None:
        error = client.error_of_secret_rounds(view)
        return _widened(fit, error * fit.scale, confidence)
    expected_score = client.expected_score(view)
    reaction = view.reaction
    if reaction is None:
        return _at_expected_score(fit, view, expected_score, confidence)
    if reaction.rate is None:  # noise dominates, so there is no reaction to fit
        fit = _at_expected_score(fit, view, expected_score, confidence)
        return _widened(fit, _EXTRAPOLATION_ERROR * fit.scale, confidence)
    # The client's score changes by this if the rate of the reaction is larger by its error.
    moved_view = seen_by(
        view.record, view.adversary, Reaction(reaction.rate + reaction.error)
    )
    moved_fit = ladder_fit(moved_view, None, confidence)
    moved_score = moved_fit.scale * client.expected_score(moved_view)
    shift = moved_score - fit.scale * expected_score
    if not abs(shift) < abs(fit.scale) * expected_score:
        raise NotMeasured(
            "canaries took part in fewer rounds than a client, too few to tell how the others react"
            " to one"
        )
    half_interval = fit.scale - fit.low
    min_half_intervals = _MIN_Z_FOR_REACTION / half_width(confidence)
    if fit.scale < min_half_intervals * half_interval:
        return _at_any_reaction(fit, view, client, confidence)
    error = (
        _EXTRAPOLATION_ERROR
        + _ERROR_PER_CLIENT_SHARE * view.signals.client_share
    )
    deviation = math.hypot(shift / expected_score, error * fit.scale)
    return _widened(fit, deviation, confidence)


def _fit_at_any_end(view: View, confidence: float) -> LadderFit:
    """`ladder_fit`, for an unfinished run with an interval that holds whenever the run ends."""
    fit = ladder_fit(view, None, confidence)
    share = view.record.share_done
    if share >= 1:
        return fit
    wider = widening(share, confidence)
    low = fit.scale - wider * (fit.scale - fit.low)
    high = fit.scale + wider * (fit.high - fit.scale)
    return dataclasses.replace(fit, low=low, high=high)


def _at_expected_score(
    fit: LadderFit, view: View, expected_score: float, confidence: float
) -> LadderFit:
    """The fit with κ at a client's expected score, if κ depends significantly on it.

    It does if training reverses a larger part of a frequent client's contribution. Scores are then
    fitted by a line with an intercept. The line is not extrapolated far beyond the canaries'
    expected scores.
    """
    test = fit.number
    if test is None or not test.is_significant(_LEVEL_OF_CHANGE):
        return fit
    if (
        expected_score
        > _MAX_EXTRAPOLATION * view.expected_scores.observed.max()
    ):
        return fit
    # The regressor of this client, relative to its expected score.
    regressor = 1 / expected_score - test.along
    shift = test.slope * regressor
    moved = dataclasses.replace(
        fit,
        scale=fit.scale + shift,
        low=fit.low + shift,
        high=fit.high + shift,
        ratio=1 + shift / fit.scale,
    )
    deviation = abs(regressor) * test.error * max(fit.width, 1.0)
    return _widened(moved, deviation, confidence)


def _at_any_reaction(
    fit: LadderFit, view: View, client: AuditedClient, confidence: float
) -> LadderFit:
    """The fit with an interval that holds whatever share of a contribution is reversed."""
    expected_score = client.expected_score(view)
    low = fit.low
    high = fit.high
    for rate in np.linspace(*RATES, _NUM_REACTIONS):
        moved_view = seen_by(view.record, view.adversary, Reaction(float(rate)))
        moved_fit = _fit_at_any_end(moved_view, confidence)
        relative = client.expected_score(moved_view) / expected_score
        low = min(low, moved_fit.low * relative)
        high = max(high, moved_fit.high * relative)
    return dataclasses.replace(fit, low=low, high=high)


def _widened(fit: LadderFit, deviation: float, confidence: float) -> LadderFit:
    """The fit with its interval widened by an independent error of κ with this deviation."""
    error = half_width(confidence) * deviation
    low = fit.scale - math.hypot(fit.scale - fit.low, error)
    high = fit.scale + math.hypot(fit.high - fit.scale, error)
    return dataclasses.replace(fit, low=low, high=high)


def _test(
    regressor: Floats,
    expected_scores: Floats,
    residual: Floats,
    effect: float,
) -> LadderTest | None:
    """A test of residuals against a regressor.

    Args:
        regressor: a value for each canary.
        expected_scores: the expected score of each canary, which are projected out of the
            regressor.
        residual: the scores minus the fitted ones.
        effect: coefficient of the regressor for which the power is computed.

    Returns:
        ``None`` if the regressor is proportional to the expected scores.
    """
    energy = max(float(expected_scores @ expected_scores), _TINY)
    along = float(regressor @ expected_scores) / energy
    orthogonal = regressor - along * expected_scores
    length = float(np.linalg.norm(orthogonal))
    if length < _COLLINEAR * max(float(np.linalg.norm(regressor)), _TINY):
        return None
    z = float(orthogonal @ residual) / length
    limit = float(-scipy.special.ndtri(LEVEL / 2))
    ndtr = scipy.special.ndtr
    mean_z = effect * length
    return LadderTest(
        p_value=float(2 * ndtr(-abs(z))),
        share=float(abs(z) / max(abs(mean_z), _TINY)),
        power=float(ndtr(mean_z - limit) + ndtr(-mean_z - limit)),
        slope=z / length,
        error=1 / length,
        along=along,
    )
