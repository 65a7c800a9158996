"""κ in ``score = κ · expected score + N(0, 1)``, and two tests of whether one κ fits all canaries.

Expected scores need be known only in proportion. One κ may fail in two ways: scores may not grow
with the number of participations as they should, or they may depend on when a canary took part (a
final model that forgets). Each test is of one regressor, orthogonal to the expected scores, at
level 1%. What it can find depends on the run's canaries, so that each has a power:
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

_LEAST = 1e-9

# Share of the effect of a test that matters.
_MATTERS = 0.2

# Relative error of a client's expected score where it follows from a reaction. The second, if that
# was fitted, is times the client's share of a round: a client of few is a part of the residual, and
# of the clients that react.
_EXTRAPOLATED = 0.04
_CROWDED = 0.25

# Standard errors of κ above 0 from which on a reaction can be fitted, and rates tried otherwise.
_CLEARLY = 4.0
_RATES_TRIED = 6

# Level at which κ is taken to change with the expected score: at 1% intervals of 95% would hold in
# 86% of small models that take back a quarter of what a frequent client adds, at 5% in 93%.
_LEVEL_OF_CHANGE = 0.05

# Times the largest expected score of a canary up to which a line may be followed.
_REACHED = 1.1

# Share of the scores by which they may vary more than assumed.
_ROUGH = 0.1


@dataclasses.dataclass(frozen=True)
class LadderTest:
    """A test of whether one κ fits all canaries.

    Attributes:
        p_value: probability of as large an effect, or a larger one, by chance.
        share: of the effect that the power is for; a small one hardly moves ε, however sure it is.
        power: probability of finding it at level 1% if scores grew half as much from one
            participation to many, or if the first round left half of what the last one does.
        slope: coefficient of the regressor, beside κ's.
        error: its standard error.
        along: coefficient of the expected scores in the regressor, which is projected out.
    """

    p_value: float
    share: float
    power: float
    slope: float
    error: float
    along: float

    def found(self, level: float = LEVEL) -> bool:
        """Whether one κ does not fit, by so much that it matters."""
        return self.p_value < level and self.share > _MATTERS


@dataclasses.dataclass(frozen=True)
class LadderFit:
    """κ with its interval, and what speaks against it.

    Attributes:
        scale: κ.
        low: lower end of κ's interval.
        high: upper end of κ's interval.
        width: deviation of the scores about their expected ones, where 1 is expected; about a line
            with an intercept where `number` finds that one κ does not fit.
        wide: whether it is certainly larger than 1, and by more than a tenth of the scores.
        number: test against the number of participations; ``None`` if all have the same.
        time: test against the time of participation.
        ratio: of the client's κ to that of all canaries, where `number` finds that they differ.
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

    By least squares (of deviates, for cosines). The interval is wider where canaries overlap
    (`Scores.spread`), has the error of the scores' unit, and is as wide as the scores where these
    are certainly wider than N(0, 1).

    Args:
        view: of an adversary who knows the rounds.
        scores: its own ones, by default.
        confidence: of the interval.
    """
    scores = scores or scores_of(view)
    sizes = view.sizes.observed
    energy = max(float(np.sum(sizes**2)), _LEAST)
    scale = scores.shift(0.0, sizes)
    residual = scores.deviates(scale * sizes)
    freedom = max(len(sizes) - 1, 1)
    number = None
    if np.ptp(sizes) > 0.01 * float(sizes.max(initial=0.0)):
        smallest = float(np.min(sizes[sizes > 0], initial=np.inf))
        typical = max(float(np.sum(sizes**3)) / energy, _LEAST)
        growth = scale * smallest / (1 + smallest / typical)
        took_part = np.where(sizes > 0, 1.0, 0.0)
        number = _test(took_part, sizes, residual, growth)
        if number is not None and number.found(_LEVEL_OF_CHANGE):
            residual = residual - number.slope * (
                took_part - number.along * sizes
            )
            freedom = max(freedom - 1, 1)
    parts = view.sizes.parts
    times = (np.arange(len(parts)) + 0.5) / len(parts) - 0.5
    time = _test(times @ parts, sizes, residual, 2 / 3 * scale)
    variance = float(np.sum(residual**2)) / freedom
    width = float(np.sqrt(variance))
    is_wide = scipy.stats.chi2.sf(variance * freedom, freedom) < 0.001
    # All scores share the random norm of the residual, which moves κ as it moves their mean.
    common = max(scores.spread**2 - 1, 0.0) / (
        len(sizes) * float(sizes.mean()) ** 2
    )
    own_width = width if is_wide else min(scores.spread, 1.0)
    deviation = np.sqrt(own_width**2 / energy + common)
    half = half_width(confidence) * deviation
    root_mean_square = math.sqrt(energy / len(sizes))
    fit = LadderFit(
        scale=scale,
        low=scores.shift(half, sizes),
        high=scores.shift(-half, sizes),
        width=width,
        wide=bool(is_wide and width > _ROUGH * scale * root_mean_square),
        number=number,
        time=time,
    )
    return _widened(fit, scores.unit_error * scale, confidence)


def client_fit(
    view: View, client: AuditedClient, confidence: float = 0.95
) -> LadderFit:
    """The fit whose interval, times the client's expected score, is that of the client's score.

    The interval of a record with fewer rounds than planned holds after every round at once, whoever
    or whatever ended the run (`fl_epe.auditing.estimate.confidence_sequence`).

    Where the fit depends on how the other clients react to canaries
    (`fl_epe.auditing.scoring.reaction`), the reaction has an error of its own. If it was fitted, κ
    and the client's expected score depend on it together. Scores that hardly tell whether κ is
    above 0 cannot tell the reaction: ρ is then fitted to their noise, and the interval is that of
    any ρ.

    Args:
        view: of the client, see `AuditedClient.view`.
        client: the client.
        confidence: of the interval.

    Raises:
        NotMeasured: if that error is larger than the score.
    """
    fit = _fit_at_any_end(view, confidence)
    if client.secret is not None:
        error = client.error_of_secret_rounds(view)
        return _widened(fit, error * fit.scale, confidence)
    size = client.size(view)
    reaction = view.reaction
    if reaction is None:
        return _at_size(fit, view, size, confidence)
    if reaction.rate is None:
        fit = _at_size(fit, view, size, confidence)
        return _widened(fit, _EXTRAPOLATED * fit.scale, confidence)
    moved = seen_by(
        view.record, view.adversary, Reaction(reaction.rate + reaction.error)
    )
    moved_fit = ladder_fit(moved, None, confidence)
    shift = moved_fit.scale * client.size(moved) - fit.scale * size
    if not abs(shift) < abs(fit.scale) * size:
        raise NotMeasured(
            "canaries took part in fewer rounds than a client, too few to tell how the others react"
            " to one"
        )
    if fit.scale < _CLEARLY / half_width(confidence) * (fit.scale - fit.low):
        return _at_any_rate(fit, view, client, confidence)
    error = _EXTRAPOLATED + _CROWDED * view.client_share
    return _widened(
        fit, math.hypot(shift / size, error * fit.scale), confidence
    )


def _fit_at_any_end(view: View, confidence: float) -> LadderFit:
    """`ladder_fit`, for an unfinished run with the interval that holds whenever it ended."""
    fit = ladder_fit(view, None, confidence)
    share = view.record.share_done
    if share >= 1:
        return fit
    wider = widening(share, confidence)
    low = fit.scale - wider * (fit.scale - fit.low)
    high = fit.scale + wider * (fit.high - fit.scale)
    return dataclasses.replace(fit, low=low, high=high)


def _at_size(
    fit: LadderFit, view: View, size: float, confidence: float
) -> LadderFit:
    """The fit at a client's expected score, where κ is found to change with it.

    Training takes back more of a client that takes part often. Scores are then fitted by a line
    with an intercept, which is not followed beyond the canary with the largest expected score.
    """
    test = fit.number
    if test is None or not test.found(_LEVEL_OF_CHANGE):
        return fit
    if size > _REACHED * view.sizes.observed.max():
        return fit
    regressor = 1 / size - test.along
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


def _at_any_rate(
    fit: LadderFit, view: View, client: AuditedClient, confidence: float
) -> LadderFit:
    """The fit with the interval that holds whatever share of a contribution is taken back."""
    size = client.size(view)
    low = fit.low
    high = fit.high
    for rate in np.linspace(*RATES, _RATES_TRIED):
        moved = seen_by(view.record, view.adversary, Reaction(float(rate)))
        moved_fit = _fit_at_any_end(moved, confidence)
        relative = client.size(moved) / size
        low = min(low, moved_fit.low * relative)
        high = max(high, moved_fit.high * relative)
    return dataclasses.replace(fit, low=low, high=high)


def _widened(fit: LadderFit, deviation: float, confidence: float) -> LadderFit:
    """The fit with the interval that it has if κ has an error of this deviation besides."""
    error = half_width(confidence) * deviation
    low = fit.scale - math.hypot(fit.scale - fit.low, error)
    high = fit.scale + math.hypot(fit.high - fit.scale, error)
    return dataclasses.replace(fit, low=low, high=high)


def _test(
    regressor: Floats, sizes: Floats, residual: Floats, effect: float
) -> LadderTest | None:
    """A test of residuals against a regressor.

    Args:
        regressor: one value for each canary.
        sizes: expected scores, which are projected out of the regressor.
        residual: scores less the fitted ones.
        effect: the coefficient of the regressor that the power is for.

    Returns:
        ``None`` if the regressor is in proportion to the expected scores.
    """
    along = float(regressor @ sizes) / max(float(sizes @ sizes), _LEAST)
    orthogonal = regressor - along * sizes
    length = float(np.linalg.norm(orthogonal))
    if length < 1e-6 * max(float(np.linalg.norm(regressor)), _LEAST):
        return None
    z = float(orthogonal @ residual) / length
    limit = float(-scipy.special.ndtri(LEVEL / 2))
    ndtr = scipy.special.ndtr
    shift = effect * length
    return LadderTest(
        p_value=float(2 * ndtr(-abs(z))),
        share=float(abs(z) / max(abs(shift), _LEAST)),
        power=float(ndtr(shift - limit) + ndtr(-shift - limit)),
        slope=z / length,
        error=1 / length,
        along=along,
    )
