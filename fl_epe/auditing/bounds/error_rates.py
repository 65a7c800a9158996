"""Error rates of an attack that compares scores with a threshold, and the ε that they rule out.

The attack says "took part" if a canary's score is at least the threshold. ``FNR`` is the share of
observed canaries that it misses, ``FPR`` the share of unobserved canaries for which it is wrong.
The unobserved scores are given, or the scores are cosines, whose exact null gives the ``FPR``.

Examples:
    >>> log_fpr, fnr = np.log([0.01]), np.array([0.5])
    >>> epsilon_from_rates(log_fpr, fnr, delta=0.0).round(2)
    array([3.91])
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.checks import Floats, raise_invalid

UpperLimit = Callable[[Floats, int, float], Floats]


@dataclasses.dataclass(frozen=True)
class Sample:
    """The scores of one audit and what is asked of them; made by ``epsilon_lower_bound``.

    Attributes:
        observed: scores of the observed canaries, shape (k,); kept sorted, so that no bound
            depends on their order.
        unobserved: scores of unobserved canaries, shape (u,), sorted, or ``None`` for the exact
            null.
        dim: dimension of the exact null; not used if ``unobserved`` is given.
        delta: δ of the ε that is bounded.
        alpha: one minus the one-sided confidence.
    """

    observed: Floats
    unobserved: Floats | None
    dim: int
    delta: float
    alpha: float

    def __post_init__(self) -> None:
        for name in ("observed", "unobserved"):
            if (scores := getattr(self, name)) is not None:
                object.__setattr__(self, name, np.sort(scores) + 0.0)  # without a -0.0

    def rng(self, stream: int) -> np.random.Generator:
        """Random numbers for a split or for ties, drawn anew for every other data set.

        A generator of a fixed seed would choose the same places among sorted scores in every data
        set of a size. This one is seeded with a hash of the scores: of how the two groups
        interleave, with ties, which no unit changes, or of the cosines in float32.
        """
        if self.unobserved is None:
            data = self.observed.astype("<f4")
        else:
            pooled = np.concatenate([self.observed, self.unobserved])
            place = np.unique(pooled, return_inverse=True)[1]
            groups = place[: self.observed.size], place[self.observed.size :]
            data = np.array(
                [np.bincount(group, minlength=place.max() + 1) for group in groups]
            )
            data = data.astype("<u4")
        digest = hashlib.sha256(data.tobytes()).digest()
        return np.random.default_rng((0, stream, int.from_bytes(digest[:16], "big")))

    def both(self) -> tuple[Floats, Floats]:
        """Observed and unobserved scores, for a bound that needs both.

        Raises:
            ValueError: if there are no unobserved scores.
        """
        if self.unobserved is None:
            raise_invalid("unobserved", None, "to be scores for this method")
        return self.observed, self.unobserved

    def in_finite_units(self) -> Sample:
        """The same order of scores, which are given, in a fixed unit in which all are finite."""
        observed, unobserved = self.both()
        return dataclasses.replace(
            self, observed=np.arctan(observed), unobserved=np.arctan(unobserved)
        )

    def split(self, share: float) -> tuple[Sample, Sample]:
        """Two disjoint random parts, the first with about ``share`` of each group of scores."""
        rng = self.rng(0)
        first, second = _split(self.observed, share, rng)
        others = self.unobserved
        left, right = (None, None) if others is None else _split(others, share, rng)
        make = functools.partial(dataclasses.replace, self)
        return make(observed=first, unobserved=left), make(
            observed=second, unobserved=right
        )


@dataclasses.dataclass(frozen=True)
class Errors:
    """Errors of the attack at each of ``j`` thresholds.

    Attributes:
        missed: observed canaries below the threshold, shape (j,); fractions are allowed.
        observed: number of observed canaries.
        false_alarms: unobserved canaries at or above the threshold, shape (j,); ``None`` with the
            exact null.
        unobserved: number of unobserved canaries; 0 with the exact null.
        log_fpr: the known log FPR, shape (j,); used only with the exact null.
    """

    missed: Floats
    observed: int
    false_alarms: Floats | None
    unobserved: int
    log_fpr: Floats


def count_errors(sample: Sample, thresholds: Floats) -> Errors:
    """Errors of the attack at each of ``thresholds``, shape (j,)."""
    missed = _count_below(sample.observed, thresholds)
    if sample.unobserved is None:
        return Errors(
            missed, sample.observed.size, None, 0, log_null_tail(thresholds, sample.dim)
        )
    total = sample.unobserved.size
    false_alarms = total - _count_below(sample.unobserved, thresholds)
    return Errors(missed, sample.observed.size, false_alarms, total, np.empty(0))


def count_normal_errors(scores: Floats, thresholds: Floats) -> Errors:
    """Errors of the attack if unobserved scores are exactly N(0, 1), as `normal_scores` are."""
    missed = _count_below(scores, thresholds)
    return Errors(missed, scores.size, None, 0, scipy.special.log_ndtr(-thresholds))


def normal_scores(cosines: Floats, dim: int) -> Floats:
    """Cosines in another unit, in which the null is exactly N(0, 1) in any dimension ≥ 2.

    About √dim·cosine where ``dim`` is large; finite for cosines of ±1.
    """
    size = np.minimum(np.abs(cosines), 1 - 2**-53)
    return np.asarray(
        np.copysign(-scipy.special.ndtri_exp(log_null_tail(size, dim)), cosines)
    )


def upper_rates(
    errors: Errors, upper: UpperLimit, alpha: float
) -> tuple[Floats, Floats]:
    """Upper limits of log FPR and of FNR, each at one-sided level ``alpha``, both of shape (j,).

    A known FPR is returned as it is.
    """
    fnr = upper(errors.missed, errors.observed, alpha)
    if errors.false_alarms is None:
        return errors.log_fpr, fnr
    return np.log(upper(errors.false_alarms, errors.unobserved, alpha)), fnr


def clopper_pearson_upper(errors: Floats, total: int, alpha: float) -> Floats:
    """Clopper–Pearson one-sided upper limit of a binomial rate: valid at every rate and size.

    Args:
        errors: number of events, any shape, in [0, total]; fractions are allowed.
        total: number of trials.
        alpha: largest probability that the limit is below the true rate.
    """
    rest = total - errors
    limit = scipy.special.betaincinv(errors + 1, np.where(rest > 0, rest, 1), 1 - alpha)
    return np.where(rest > 0, limit, 1.0)


def jeffreys_upper(errors: Floats, total: int, alpha: float) -> Floats:
    """Jeffreys one-sided upper limit: it keeps its level on average over rates, not at each rate.

    Args and returns as for ``clopper_pearson_upper``.
    """
    return np.asarray(
        scipy.special.betaincinv(errors + 0.5, total - errors + 0.5, 1 - alpha)
    )


def epsilon_from_rates(log_fpr: Floats, fnr: Floats, delta: float) -> Floats:
    """The ε below which these error rates contradict (ε, δ)-DP; 0 if they contradict none."""
    return np.fmax(log_ratio(log_fpr, fnr, delta), 0.0)


def log_ratio(log_fpr: Floats, fnr: Floats, delta: float | Floats) -> Floats:
    """The smallest ε of either sign at which (ε, δ)-DP allows these error rates.

    (ε, δ)-DP implies 1 − FNR ≤ e^ε·FPR + δ and 1 − FPR ≤ e^ε·FNR + δ (Kairouz et al. 2015).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        members = np.log(np.maximum(1 - delta - fnr, 0)) - log_fpr
        others = np.log(np.maximum(1 - delta - np.exp(log_fpr), 0)) - np.log(fnr)
    return np.asarray(np.fmax(members, others))


def mu_from_rates(log_fpr: Floats, fnr: Floats) -> Floats:
    """The μ below which these error rates contradict μ-GDP: Φ⁻¹(1 − FPR) − Φ⁻¹(FNR), or 0.

    Source: Nasr et al. 2023; the trade-off curve of Dong et al. 2019 solved for μ.
    """
    with np.errstate(invalid="ignore"):
        mu = -scipy.special.ndtri_exp(log_fpr) - scipy.special.ndtri(fnr)
    return np.asarray(np.fmax(mu, 0.0))


def log_null_tail(cosines: Floats, dim: int) -> Floats:
    """Log of P[C ≥ c] for the cosine C of a uniform direction in ``dim`` ≥ 2 dimensions.

    (C + 1)/2 ~ Beta((d−1)/2, (d−1)/2). Where this underflows, the upper bound
    density(c)·(1 − c²)/((d − 1)·c) replaces it, which is less than 0.1% too large there.

    Args:
        cosines: values in [−1, 1], any shape.
        dim: number of dimensions.
    """
    a = (dim - 1) / 2
    size = np.minimum(np.abs(cosines), 1.0)
    square = (1 - size) * (1 + size)
    tail = scipy.special.betainc(a, 0.5, square) / 2
    with np.errstate(divide="ignore"):
        log_norm = (
            scipy.special.gammaln(dim / 2)
            - scipy.special.gammaln(a)
            - 0.5 * np.log(np.pi)
        )
        far = log_norm + a * np.log(square) - np.log((dim - 1) * size)
        log_tail = np.where(tail > 1e-290, np.log(tail), far)
    return np.asarray(np.where(cosines >= 0, log_tail, np.log1p(-tail)))


def _count_below(scores: Floats, thresholds: Floats) -> Floats:
    return np.searchsorted(np.sort(scores), thresholds, side="left").astype(np.float64)


def _split(
    scores: Floats, share: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    first = min(max(1, round(share * scores.size)), scores.size - 1)
    shuffled = rng.permutation(scores)
    return shuffled[:first], shuffled[first:]
