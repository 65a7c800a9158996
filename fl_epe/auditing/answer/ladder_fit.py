"""κ in ``score = κ · expected score + N(0, 1)``, and two tests of whether one κ fits all canaries.

The canaries' numbers of participations form a ladder (`fl_epe.canaries.ladder`), so that scores are
tested to grow with them as expected. Expected scores need to be known only up to a common factor.
A single κ may fail to fit in two ways: scores may have an intercept, so that they grow less than in
proportion to the expected ones; or they may have a trend over the time of participation, if the
final model forgets early rounds. Each test is of one regressor, of which the part orthogonal to the
expected scores is used. The power of the tests at level 1% depends on the run's canaries and is
reported. At level 5%, the test for an intercept also decides whether κ is moved to the client's
expected score (`client_fit`). Both tests are simulated in simulations/studies/answer_truth.py.

Training may reverse a share of a client's contribution in later rounds. This is called the reaction
of the other clients (`fl_epe.auditing.scoring.reaction`).
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

REPORTED_LEVEL = 0.01
"""The level for which the power of a test is reported."""

# Denominators are at least this large.
_TINY = 1e-9

# A significant effect is relevant if it is larger than this share of the effect for which the
# power is computed.
_MIN_RELATIVE_EFFECT = 0.2

# Relative error of a client's score that is extrapolated from canaries with fewer rounds, with the
# reaction of the other clients (docs/notes/few-nodes.md).
_EXTRAPOLATION_ERROR = 0.04

# If the reaction was fitted, this times the client's share of a round is added to the relative
# error, because the client is itself part of the residual (docs/notes/few-nodes.md).
_ERROR_PER_CLIENT_SHARE = 0.25

# A fitted reaction is used if κ is at least this many standard errors above 0
# (docs/notes/few-nodes.md).
_MIN_Z_FOR_REACTION = 4.0

# Otherwise the interval covers all reactions, tried at this many evenly spaced rates.
_NUM_REACTIONS = 6

# Level of the test for an intercept at which a line with an intercept replaces the single κ. In
# simulated runs that reverse a quarter of a frequent client's contribution, 95% intervals contain κ
# in 93% of the runs at level 5% (docs/notes/answer.md), and in 86% at level 1%.
_LEVEL_FOR_LINE = 0.05

# Largest expected score, relative to the largest of a canary, to which the line with an intercept
# is extrapolated.
_MAX_EXTRAPOLATION = 1.1

# The width of the scores about the fitted ones is relevant if it is more than this share of the
# root mean square of the fitted scores.
_MIN_RELEVANT_WIDTH = 0.1

# Level of the χ² test whether the width is larger than 1.
_WIDTH_LEVEL = 0.001

# The test for an intercept needs expected scores that differ by more than this share of the
# largest.
_MIN_RELATIVE_RANGE = 0.01

# A regressor is collinear to the expected scores if its part orthogonal to them is a smaller share
# of its length.
_COLLINEAR = 1e-6

# Effect for which the power of the test for a trend is computed: scores of the first round are half
# of those of the last. This is their slope over their mean, with times from −1/2 to 1/2.
_FORGETTING_EFFECT = (1 - 1 / 2) / (3 / 4)


@dataclasses.dataclass(frozen=True)
class LadderTest:
    """A test of whether one κ fits all canaries.

    Attributes:
        p_value: probability of as large an effect, or a larger one, by chance.
        relative_effect: the absolute value of the measured effect, divided by that of the effect
            for which the power is computed. A small one hardly changes ε, however significant it
            is.
        power: probability that the test rejects at level 1% if scores grew half as much with the
            number of participations as expected (test for an intercept), or if those of the first
            round were half of those of the last round (test for a trend).
        coefficient: coefficient of the regressor, which is fitted besides κ.
        standard_error: standard error of ``coefficient`` for scores of width 1.
        projection_coefficient: the regressor's projection on the expected scores is this number
            times the expected scores. It is subtracted from the regressor.
    """

    p_value: float
    relative_effect: float
    power: float
    coefficient: float
    standard_error: float
    projection_coefficient: float

    def rejects(self, level: float = REPORTED_LEVEL) -> bool:
        """Whether the test rejects a single κ.

        The effect must be significant at this level, and large enough to change ε.
        """
        return (
            self.p_value < level and self.relative_effect > _MIN_RELATIVE_EFFECT
        )


@dataclasses.dataclass(frozen=True)
class LadderFit:
    """Estimate of κ with its confidence interval, and the tests of the model's fit.

    Attributes:
        scale: κ.
        low: lower end of κ's interval.
        high: upper end of κ's interval.
        width: standard deviation of the scores about the fitted ones, where 1 is expected. If
            ``intercept_test`` rejects a single κ at level 5%, the fitted scores are on a line with
            an intercept.
        wide: whether ``width`` is significantly larger than 1, and larger than a tenth of the
            root mean square of the fitted scores.
        intercept_test: test for an intercept, which finds scores that do not grow with the number
            of participations as expected; ``None`` if the canaries' expected scores are about
            equal.
        trend_test: test for a trend of the scores over the time of participation; ``None`` if all
            canaries have the same mean time.
        ratio: the client's κ, divided by that of all canaries, if `client_fit` moved κ to the
            client's expected score; otherwise 1.
    """

    scale: float
    low: float
    high: float
    width: float
    wide: bool
    intercept_test: LadderTest | None
    trend_test: LadderTest | None
    ratio: float = 1.0


def ladder_fit(
    view: View, scores: Scores | None = None, confidence: float = 0.95
) -> LadderFit:
    """Fit κ to the scores of a view.

    κ is fitted by least squares; to scores that are cosines, so that their deviates are orthogonal
    to the expected scores (`Scores.deviates`). The interval includes the correlation of scores that
    share the random norm of the aggregate (`Scores.spread`), the error of the scores' unit, and the
    width of the scores if it is significantly larger than 1.

    Args:
        view: the view of an adversary who knows the rounds.
        scores: the scores; by default those of the view.
        confidence: confidence level of the interval.
    """
    scores = scores or scores_of(view)
    expected_scores = view.expected_scores.observed
    num_canaries = len(expected_scores)
    sum_of_squares = max(float(np.sum(expected_scores**2)), _TINY)
    scale = scores.shift(0.0, expected_scores)
    score_residuals = scores.deviates(scale * expected_scores)
    degrees_of_freedom = max(num_canaries - 1, 1)
    took_part = np.where(expected_scores > 0, 1.0, 0.0)
    intercept_test = _intercept_test(
        took_part, expected_scores, score_residuals, scale
    )
    if intercept_test is not None and intercept_test.rejects(_LEVEL_FOR_LINE):
        # The residuals, and so the width and the test for a trend, are then about a line with an
        # intercept. κ and its interval are still those of the line through 0;
        # `_at_expected_score` moves them.
        regressor = (
            took_part - intercept_test.projection_coefficient * expected_scores
        )
        score_residuals = (
            score_residuals - intercept_test.coefficient * regressor
        )
        degrees_of_freedom = max(degrees_of_freedom - 1, 1)
    parts = view.expected_scores.parts
    # The time of each round, from −1/2 to 1/2.
    times = (np.arange(len(parts)) + 0.5) / len(parts) - 0.5
    # If κ had a linear trend over time, it would add a multiple of this to the scores.
    trend_regressor = times @ parts
    forgetting = _FORGETTING_EFFECT * scale
    trend_test = _test(
        trend_regressor, expected_scores, score_residuals, forgetting
    )
    squared_residuals = float(np.sum(score_residuals**2))
    variance = squared_residuals / degrees_of_freedom
    width = float(np.sqrt(variance))
    p_value_of_width = scipy.stats.chi2.sf(
        squared_residuals, degrees_of_freedom
    )
    has_significant_width = p_value_of_width < _WIDTH_LEVEL
    # The part of the scores' deviations that is independent between canaries. A spread above 1 is
    # not in it, but in the common variance.
    independent_width = (
        width if has_significant_width else min(scores.spread, 1.0)
    )
    # All scores share the random norm of the aggregate. It adds (spread² − 1) / k to the variance
    # of the mean of k scores, and κ has this error, divided by the mean expected score.
    common_variance = max(scores.spread**2 - 1, 0.0) / (
        num_canaries * float(expected_scores.mean()) ** 2
    )
    standard_error = np.sqrt(
        independent_width**2 / sum_of_squares + common_variance
    )
    margin = half_width(confidence) * standard_error
    root_mean_square = math.sqrt(sum_of_squares / num_canaries)
    min_relevant_width = _MIN_RELEVANT_WIDTH * scale * root_mean_square
    fit = LadderFit(
        scale=scale,
        # `Scores.shift` gives the κ at which the deviates' weighted mean is its first argument.
        # A positive mean belongs to a κ below the estimate.
        low=scores.shift(margin, expected_scores),
        high=scores.shift(-margin, expected_scores),
        width=width,
        wide=bool(has_significant_width and width > min_relevant_width),
        intercept_test=intercept_test,
        trend_test=trend_test,
    )
    return _widened(fit, scores.unit_error * scale, confidence)


def _intercept_test(
    took_part: Floats,
    expected_scores: Floats,
    score_residuals: Floats,
    scale: float,
) -> LadderTest | None:
    """A test for an intercept: do scores grow in proportion to the expected ones?

    Args:
        took_part: 1 for each canary that took part, and 0 for others. This is the regressor, as a
            canary that took no part has no intercept.
        expected_scores: the expected score of each canary.
        score_residuals: the scores minus the fitted ones.
        scale: κ.

    Returns:
        ``None`` if the expected scores are all about the same.
    """
    largest = float(expected_scores.max(initial=0.0))
    if np.ptp(expected_scores) <= _MIN_RELATIVE_RANGE * largest:
        return None
    sum_of_squares = max(float(np.sum(expected_scores**2)), _TINY)
    positive = expected_scores[expected_scores > 0]
    smallest = float(np.min(positive, initial=np.inf))
    # The mean expected score, weighted by its square, as it weighs in the fit.
    typical = max(float(np.sum(expected_scores**3)) / sum_of_squares, _TINY)
    # With this intercept c·κ, scores grow about half as much as expected between the smallest
    # expected score s and a typical one t: (t + c) / (s + c) ≈ t / (2·s) if t is much larger.
    intercept = scale * smallest / (1 + smallest / typical)
    return _test(took_part, expected_scores, score_residuals, intercept)


def client_fit(
    view: View, client: AuditedClient, confidence: float = 0.95
) -> LadderFit:
    """κ for a client, with its interval: the client's mean score is κ times its expected score.

    The ends of the interval are those of the mean score, if multiplied likewise.

    If the record has fewer rounds than planned, the interval holds simultaneously after every
    round, whatever ended the run (`fl_epe.auditing.estimate.confidence_sequence`).

    If the client's rounds are secret, the interval includes the error of treating correlated rounds
    as independent.

    If the view has a reaction of the other clients, the interval includes the error of the
    client's extrapolated score. If the reaction was fitted, κ and the client's expected score both
    depend on it. If κ is not clearly above 0, the fitted reaction follows the noise, and the
    interval covers all reactions.

    Args:
        view: the client's view, see `AuditedClient.view`.
        client: the client.
        confidence: confidence level of the interval.

    Raises:
        NotMeasured: if the error of a fitted reaction changes the client's score by as much as
            the score itself.
    """
    fit = _anytime_fit(view, confidence)
    if client.secret is not None:
        error = client.error_of_secret_rounds(view)
        return _widened(fit, error * fit.scale, confidence)
    expected_score = client.expected_score(view)
    reaction = view.reaction
    if reaction is None:
        # The canaries' scores include the reaction, or it is not corrected for.
        return _at_expected_score(fit, view, expected_score, confidence)
    if reaction.rate is None:
        # Noise dominates. Whitening removes the reaction, so there is no rate to fit.
        fit = _at_expected_score(fit, view, expected_score, confidence)
        return _widened(fit, _EXTRAPOLATION_ERROR * fit.scale, confidence)
    # The reaction was fitted. Its rate is increased by the standard error, to compute how much the
    # client's score depends on it.
    moved_view = seen_by(
        view.record, view.adversary, Reaction(reaction.rate + reaction.error)
    )
    moved_fit = ladder_fit(moved_view, None, confidence)
    moved_score = moved_fit.scale * client.expected_score(moved_view)
    score_change = moved_score - fit.scale * expected_score
    # The condition is negated so that it also holds if a score is NaN.
    if not abs(score_change) < abs(fit.scale) * expected_score:
        raise NotMeasured(
            "canaries took part in fewer rounds than a client, and how later rounds react to one is"
            " too uncertain to predict a client's score: that needs more rounds or more canaries"
        )
    standard_error = (fit.scale - fit.low) / half_width(confidence)
    if fit.scale < _MIN_Z_FOR_REACTION * standard_error:
        return _at_any_reaction(fit, view, client, confidence)
    relative_error = (
        _EXTRAPOLATION_ERROR
        + _ERROR_PER_CLIENT_SHARE * view.signals.client_share
    )
    deviation = math.hypot(
        score_change / expected_score, relative_error * fit.scale
    )
    return _widened(fit, deviation, confidence)


def _anytime_fit(view: View, confidence: float) -> LadderFit:
    """`ladder_fit`; if the run has fewer rounds than planned, with an anytime-valid interval."""
    fit = ladder_fit(view, None, confidence)
    share_of_rounds = view.record.share_done
    if share_of_rounds >= 1:
        return fit
    factor = widening(share_of_rounds, confidence)
    low = fit.scale - factor * (fit.scale - fit.low)
    high = fit.scale + factor * (fit.high - fit.scale)
    return dataclasses.replace(fit, low=low, high=high)


def _at_expected_score(
    fit: LadderFit, view: View, expected_score: float, confidence: float
) -> LadderFit:
    """The fit with κ at a client's expected score, if κ depends significantly on it.

    It does if training reverses a larger share of a frequent client's contribution than of a rare
    client's. Scores are then fitted by a line with an intercept. Without significance, or if the
    client's expected score is far above those of all canaries, the fit is returned as it is.
    """
    test = fit.intercept_test
    if test is None or not test.rejects(_LEVEL_FOR_LINE):
        return fit
    if (
        expected_score
        > _MAX_EXTRAPOLATION * view.expected_scores.observed.max()
    ):
        return fit
    # The regressor of this client, relative to its expected score.
    relative_regressor = 1 / expected_score - test.projection_coefficient
    scale_change = test.coefficient * relative_regressor
    moved = dataclasses.replace(
        fit,
        scale=fit.scale + scale_change,
        low=fit.low + scale_change,
        high=fit.high + scale_change,
        ratio=1 + scale_change / fit.scale,
    )
    deviation = (
        abs(relative_regressor) * test.standard_error * max(fit.width, 1.0)
    )
    return _widened(moved, deviation, confidence)


def _at_any_reaction(
    fit: LadderFit, view: View, client: AuditedClient, confidence: float
) -> LadderFit:
    """The fit with an interval that covers all reactions with rates in `RATES`."""
    expected_score = client.expected_score(view)
    low = fit.low
    high = fit.high
    for rate in np.linspace(*RATES, _NUM_REACTIONS):
        moved_view = seen_by(view.record, view.adversary, Reaction(float(rate)))
        moved_fit = _anytime_fit(moved_view, confidence)
        # κ is relative to the client's expected score at the view's own reaction.
        score_ratio = client.expected_score(moved_view) / expected_score
        low = min(low, moved_fit.low * score_ratio)
        high = max(high, moved_fit.high * score_ratio)
    return dataclasses.replace(fit, low=low, high=high)


def _widened(fit: LadderFit, deviation: float, confidence: float) -> LadderFit:
    """The fit with its interval widened by an independent error of κ with this deviation."""
    margin = half_width(confidence) * deviation
    low = fit.scale - math.hypot(fit.scale - fit.low, margin)
    high = fit.scale + math.hypot(fit.high - fit.scale, margin)
    return dataclasses.replace(fit, low=low, high=high)


def _test(
    regressor: Floats,
    expected_scores: Floats,
    score_residuals: Floats,
    effect: float,
) -> LadderTest | None:
    """A test of the scores' residuals against a regressor.

    Args:
        regressor: a value for each canary.
        expected_scores: the expected score of each canary, which are projected out of the
            regressor.
        score_residuals: the scores minus the fitted ones.
        effect: coefficient of the regressor for which the power is computed.

    Returns:
        ``None`` if the regressor is proportional to the expected scores.
    """
    sum_of_squares = max(float(expected_scores @ expected_scores), _TINY)
    projection_coefficient = float(regressor @ expected_scores) / sum_of_squares
    orthogonal = regressor - projection_coefficient * expected_scores
    length = float(np.linalg.norm(orthogonal))
    if length < _COLLINEAR * max(float(np.linalg.norm(regressor)), _TINY):
        return None
    z = float(orthogonal @ score_residuals) / length
    critical_z = float(-scipy.special.ndtri(REPORTED_LEVEL / 2))
    ndtr = scipy.special.ndtr
    mean_z = effect * length
    return LadderTest(
        p_value=float(2 * ndtr(-abs(z))),
        relative_effect=float(abs(z) / max(abs(mean_z), _TINY)),
        power=float(ndtr(mean_z - critical_z) + ndtr(-mean_z - critical_z)),
        coefficient=z / length,
        standard_error=1 / length,
        projection_coefficient=projection_coefficient,
    )
