"""Error rates of an attack that compares scores with a threshold, and the ε that they rule out.

The attack says "took part" if a canary's score is at least the threshold. ``FNR`` is the share of
observed canaries that it misses, ``FPR`` the share of unobserved canaries for which it says "took
part". If there are no unobserved scores, the scores are cosines, whose exact null gives the
``FPR``.

Examples:
    >>> log_fpr, fnr = np.log([0.01]), np.array([0.5])
    >>> epsilon_from_rates(log_fpr, fnr, delta=0.0).round(2)
    array([3.91])
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np
import scipy

from fl_epe.checks import Floats, raise_invalid

UpperLimit = Callable[[Floats, int, float], Floats]
"""An upper limit of a binomial rate.

Its arguments are the number of events, the number of trials and the one-sided level.
"""

# The largest float below 1. The normal score of a cosine of 1 would be infinite.
_LARGEST_COSINE = 1 - 2**-53

# A tail probability below this one may have lost digits to underflow.
_MIN_TAIL = 1e-290

# The constant part of the seeds. Other values would change the bounds of all data sets.
_SEED_PREFIX = (0, 0)


@dataclasses.dataclass(frozen=True)
class Sample:
    """The scores of one audit, and the level of the bound that is computed from them.

    Attributes:
        observed: scores of the observed canaries, shape (k,). They are kept sorted, so that no
            bound depends on their order.
        unobserved: scores of unobserved canaries, shape (u,), sorted, or ``None`` for the exact
            null.
        dim: dimension of the exact null; not used if ``unobserved`` is given.
        delta: the δ of the ε that is bounded.
        alpha: one minus the one-sided confidence.
    """

    observed: Floats
    unobserved: Floats | None
    dim: int
    delta: float
    alpha: float

    def __post_init__(self) -> None:
        for name in ("observed", "unobserved"):
            scores = getattr(self, name)
            if scores is not None:
                # Adding 0.0 turns -0.0 into 0.0, as the bytes are hashed in `_rng`.
                object.__setattr__(self, name, np.sort(scores) + 0.0)

    def both(self) -> tuple[Floats, Floats]:
        """Observed and unobserved scores, for a bound that needs both.

        Raises:
            ValueError: if there are no unobserved scores.
        """
        if self.unobserved is None:
            raise_invalid("unobserved", None, "to be scores for this method")
        return self.observed, self.unobserved

    def with_finite_scores(self) -> Sample:
        """The sample with all scores transformed to finite ones in the same order.

        It is for bounds that need means of scores, which may be infinite.
        """
        observed, unobserved = self.both()
        return dataclasses.replace(
            self, observed=np.arctan(observed), unobserved=np.arctan(unobserved)
        )

    def split(self, share: float) -> tuple[Sample, Sample]:
        """Two disjoint random parts, the first with about ``share`` of each group of scores."""
        rng = self._rng()
        first, second = _split(self.observed, share, rng)
        first_unobserved = None
        second_unobserved = None
        if self.unobserved is not None:
            first_unobserved, second_unobserved = _split(
                self.unobserved, share, rng
            )
        return (
            dataclasses.replace(
                self, observed=first, unobserved=first_unobserved
            ),
            dataclasses.replace(
                self, observed=second, unobserved=second_unobserved
            ),
        )

    def _rng(self) -> np.random.Generator:
        """A random generator that differs from data set to data set.

        A generator with a fixed seed would choose the same ranks among sorted scores in every data
        set of the same size. This one is seeded with a hash. With the exact null, it is a hash of
        the cosines in float32, as their last digits in float64 depend on the machine. Otherwise
        it is a hash of the order of the scores of both groups, which is the same in any unit.
        """
        if self.unobserved is None:
            data = self.observed.astype("<f4")
        else:
            pooled = np.concatenate([self.observed, self.unobserved])
            values, ranks = np.unique(pooled, return_inverse=True)
            count = self.observed.size
            data = np.array(
                [
                    np.bincount(ranks[:count], minlength=values.size),
                    np.bincount(ranks[count:], minlength=values.size),
                ]
            ).astype("<u4")
        digest = hashlib.sha256(data.tobytes()).digest()
        return np.random.default_rng(
            (*_SEED_PREFIX, int.from_bytes(digest[:16], "big"))
        )


@dataclasses.dataclass(frozen=True)
class Errors:
    """Errors of the attack at each of ``j`` thresholds.

    Attributes:
        missed: number of observed canaries below the threshold, shape (j,); fractional if it
            was predicted instead of counted.
        observed: number of observed canaries.
        false_alarms: number of unobserved canaries at or above the threshold, shape (j,);
            ``None`` with the exact null.
        unobserved: number of unobserved canaries; 0 with the exact null.
        log_fpr: the known log FPR, shape (j,); used only with the exact null.
    """

    missed: Floats
    observed: int
    false_alarms: Floats | None = None
    unobserved: int = 0
    log_fpr: Floats = dataclasses.field(default_factory=lambda: np.empty(0))


def count_errors(sample: Sample, thresholds: Floats) -> Errors:
    """Errors of the attack at each of ``thresholds``, shape (j,)."""
    missed = _count_below(sample.observed, thresholds)
    observed = sample.observed.size
    if sample.unobserved is None:
        log_fpr = log_null_tail(thresholds, sample.dim)
        return Errors(missed, observed, log_fpr=log_fpr)
    unobserved = sample.unobserved.size
    false_alarms = unobserved - _count_below(sample.unobserved, thresholds)
    return Errors(missed, observed, false_alarms, unobserved)


def count_normal_errors(scores: Floats, thresholds: Floats) -> Errors:
    """Errors of the attack if unobserved scores are exactly N(0, 1), as `normal_scores` are."""
    missed = _count_below(scores, thresholds)
    log_fpr = scipy.special.log_ndtr(-thresholds)
    return Errors(missed, scores.size, log_fpr=log_fpr)


def normal_scores(cosines: Floats, dim: int) -> Floats:
    """Cosines transformed to scores whose null is exactly N(0, 1), in any dimension ≥ 2.

    A score is about √dim·cosine where ``dim`` is large, and finite for cosines of ±1.
    """
    magnitude = np.minimum(np.abs(cosines), _LARGEST_COSINE)
    deviate = -scipy.special.ndtri_exp(log_null_tail(magnitude, dim))
    return np.asarray(np.copysign(deviate, cosines))


def upper_rates(
    errors: Errors, upper: UpperLimit, alpha: float
) -> tuple[Floats, Floats]:
    """Upper limits of log FPR and of FNR, each at one-sided level ``alpha``, both of shape (j,).

    A known FPR is returned as it is.
    """
    fnr = upper(errors.missed, errors.observed, alpha)
    log_fpr = errors.log_fpr
    if errors.false_alarms is not None:
        log_fpr = np.log(upper(errors.false_alarms, errors.unobserved, alpha))
    return log_fpr, fnr


def clopper_pearson_upper(
    num_errors: Floats, total: int, alpha: float
) -> Floats:
    """Clopper–Pearson one-sided upper limit of a binomial rate: valid at every rate and size.

    Args:
        num_errors: number of events, any shape, in [0, total]; fractions are allowed.
        total: number of trials.
        alpha: largest probability that the limit is below the true rate.
    """
    correct = total - num_errors
    # Without a correct trial the limit is 1; any value > 0 keeps the function defined there.
    positive = np.where(correct > 0, correct, 1)
    limit = scipy.special.betaincinv(num_errors + 1, positive, 1 - alpha)
    return np.where(correct > 0, limit, 1.0)


def jeffreys_upper(num_errors: Floats, total: int, alpha: float) -> Floats:
    """Jeffreys one-sided upper limit: it keeps its level on average over rates, not at each rate.

    The arguments are those of `clopper_pearson_upper`.
    """
    return np.asarray(
        scipy.special.betaincinv(
            num_errors + 0.5, total - num_errors + 0.5, 1 - alpha
        )
    )


def epsilon_from_rates(log_fpr: Floats, fnr: Floats, delta: float) -> Floats:
    """The ε below which these error rates contradict (ε, δ)-DP; 0 if they contradict no ε."""
    return np.fmax(log_ratio(log_fpr, fnr, delta), 0.0)


def log_ratio(log_fpr: Floats, fnr: Floats, delta: float | Floats) -> Floats:
    """The smallest ε at which (ε, δ)-DP allows these error rates; it may be negative.

    (ε, δ)-DP implies 1 − FNR ≤ e^ε·FPR + δ and 1 − FPR ≤ e^ε·FNR + δ (Kairouz et al. 2015).
    A NaN, as of no hits at an FPR of 0, gives no bound, and `fmax` ignores it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log_hits = np.log(np.maximum(1 - delta - fnr, 0))
        log_rejections = np.log(np.maximum(1 - delta - np.exp(log_fpr), 0))
        return np.asarray(
            np.fmax(log_hits - log_fpr, log_rejections - np.log(fnr))
        )


def mu_from_rates(log_fpr: Floats, fnr: Floats) -> Floats:
    """The μ below which these error rates contradict μ-GDP: Φ⁻¹(1 − FPR) − Φ⁻¹(FNR), or 0.

    Source: Nasr et al. 2023; the trade-off curve of Dong et al. 2019 solved for μ.
    """
    with np.errstate(invalid="ignore"):
        mu = -scipy.special.ndtri_exp(log_fpr) - scipy.special.ndtri(fnr)
    return np.asarray(np.fmax(mu, 0.0))


def log_null_tail(cosines: Floats, dim: int) -> Floats:
    """Log of P[C ≥ c] for the cosine C of a uniform direction in ``dim`` ≥ 2 dimensions.

    1 − C² ~ Beta((d−1)/2, 1/2). So P[C ≥ c] is half of that law's CDF at 1 − c² for c ≥ 0, and
    one minus that for c < 0. Where the CDF underflows, the tail is replaced by the upper bound
    density(c)·(1 − c²)/((d − 1)·c), which is less than 0.1% too large there.

    Args:
        cosines: values c in [−1, 1], any shape.
        dim: number of dimensions d.
    """
    a = (dim - 1) / 2
    magnitude = np.minimum(np.abs(cosines), 1.0)
    one_minus_square = (1 - magnitude) * (1 + magnitude)
    tail_of_magnitude = scipy.special.betainc(a, 0.5, one_minus_square) / 2
    log_norm = (
        scipy.special.gammaln(dim / 2)
        - scipy.special.gammaln(a)
        - 0.5 * np.log(np.pi)
    )
    with np.errstate(divide="ignore"):
        log_bound = (
            log_norm
            + a * np.log(one_minus_square)
            - np.log((dim - 1) * magnitude)
        )
        log_tail = np.where(
            tail_of_magnitude > _MIN_TAIL, np.log(tail_of_magnitude), log_bound
        )
    return np.asarray(
        np.where(cosines >= 0, log_tail, np.log1p(-tail_of_magnitude))
    )


def _count_below(scores: Floats, thresholds: Floats) -> Floats:
    """The number of scores below each threshold, shape (j,)."""
    return np.searchsorted(np.sort(scores), thresholds, side="left").astype(
        np.float64
    )


def _split(
    scores: Floats, share: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Two disjoint random parts of scores, neither of them empty."""
    size = min(max(1, round(share * scores.size)), scores.size - 1)
    shuffled = rng.permutation(scores)
    return shuffled[:size], shuffled[size:]
