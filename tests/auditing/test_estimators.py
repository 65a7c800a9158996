"""Estimates of ε from cosines, from scores and from a record."""

import dataclasses

import estimators
import numpy as np
import pytest
from records import make_record
from scipy import stats

from fl_epe import (
    CanarySet,
    epsilon_from_cosines,
    epsilon_from_record,
    epsilon_from_scores,
    epsilon_two_gaussians,
)
from fl_epe.auditing import (
    EVERY_ROUND,
    STATISTICS,
    NotMeasured,
    Scores,
    answer,
    epsilon_of,
    scores_of,
    seen_by,
)
from fl_epe.auditing.claims.score_file import bare_scores, summarize_scores
from fl_epe.auditing.scoring.assumptions import check_known_variance, check_sign
from fl_epe.auditing.scoring.scores import normal_deviates, shift_scores
from fl_epe.reporting import summarize

DELTA = 1e-6


def _grid(count, mean=0.0, std=1.0):
    """Quantiles of a Gaussian instead of draws from it, exact to the first two moments."""
    scores = stats.norm.ppf((np.arange(count) + 0.5) / count)
    return mean + std * (scores - scores.mean()) / scores.std(ddof=1)


@pytest.mark.parametrize(
    ("z", "epsilon"), [(4.22, 1.0), (1.54, 3.0), (0.541, 10.0)]
)
def test_cosines_of_the_gaussian_mechanism_give_its_epsilon(z, epsilon):
    cosines = _grid(1000, mean=1 / z) / np.sqrt(10**6)
    for variance in ("known", "fitted"):
        estimate = epsilon_from_cosines(
            cosines, 10**6, DELTA, variance=variance
        )
        # the published z are rounded to three digits
        assert estimate.epsilon == pytest.approx(epsilon, rel=5e-3)
        assert estimate.low < estimate.epsilon < estimate.high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "epsilon"),
    [
        pytest.param(4.22, 1.0, marks=pytest.mark.slow),
        (1.54, 3.0),
        pytest.param(0.541, 10.0, marks=pytest.mark.slow),
    ],
)
def test_real_canaries_in_the_gaussian_mechanism(z, epsilon):
    """The experiment of Andrew et al. (2024), Table 2, at d = 10^4 and k = 100, 50 times."""
    d, k, runs = 10_000, 100, 50
    estimates = []
    for run in range(runs):
        canaries = CanarySet(d, k, seed=run)
        noise = np.random.default_rng((1, run)).standard_normal(d) * z
        released = (
            sum(canaries.vector(i).astype(float) for i in range(k)) + noise
        )
        cosines = canaries.dot(released) / np.linalg.norm(released)
        estimates.append(epsilon_from_cosines(cosines, d, DELTA).epsilon)
    error = np.std(estimates, ddof=1) / np.sqrt(runs)
    # k canaries are part of what is released: its norm is √(d z² + k) instead of √d z
    shift = np.sqrt(1 / (1 + k / (d * z**2)))
    expected = epsilon_two_gaussians(0, 1, shift / z, 1, DELTA)
    assert abs(np.mean(estimates) - epsilon) < 3 * error
    assert abs(np.mean(estimates) - expected) < 3 * error


def test_known_variance_interval_is_exact():
    k, mean = 400, 1.5
    estimate = epsilon_from_cosines(
        _grid(k, mean) / 1e5, 10**10, DELTA, confidence=0.9
    )
    half = stats.norm.ppf(0.95) / np.sqrt(k)
    assert estimate.low == pytest.approx(
        epsilon_two_gaussians(0, 1, mean - half, 1, DELTA)
    )
    assert estimate.high == pytest.approx(
        epsilon_two_gaussians(0, 1, mean + half, 1, DELTA)
    )


@pytest.mark.slow
def test_known_variance_interval_covers():
    """1,000 draws at ε = 3: a share of 0.95 has a standard error of 0.7%."""
    rng = np.random.default_rng(2)
    shift, inside = 1 / 1.54, 0
    exact = epsilon_two_gaussians(0, 1, shift, 1, DELTA)
    for _ in range(1000):
        scores = rng.normal(shift, 1, 50) / 100
        estimate = epsilon_of(Scores.from_cosines(scores, 10_000), DELTA)
        inside += bool(estimate.low <= exact <= estimate.high)
    assert abs(inside / 1000 - 0.95) < 3 * np.sqrt(0.95 * 0.05 / 1000)


def test_scores_below_the_null_give_zero():
    estimate = epsilon_from_cosines(_grid(100, -0.4) / 100, 10_000, DELTA)
    assert (estimate.epsilon, estimate.low, estimate.high) == (0, 0, 0)


class TestSign:
    """Losses instead of scores, or sides that were swapped."""

    @pytest.mark.parametrize(
        "call",
        [
            pytest.param(
                lambda s: epsilon_from_cosines(-s / 100, 10_000, DELTA),
                id="cosines",
            ),
            pytest.param(
                lambda s: epsilon_from_scores(s - 3, s, DELTA), id="scores"
            ),
            pytest.param(
                lambda s: epsilon_from_scores(s - 9, 0 * s, DELTA),
                id="constant",
            ),
            pytest.param(
                lambda s: summarize_scores(bare_scores(s - 3, s, None), DELTA),
                id="summary",
            ),
        ],
    )
    def test_members_far_below_others_are_refused(self, call):
        with pytest.raises(
            NotMeasured, match=r"far below unobserved ones.*negate them"
        ):
            call(_grid(100, 3.0))

    def test_chance_is_not_refused(self):
        rng = np.random.default_rng(5)
        for count in (2, 3, 10, 100):
            for _ in range(50):
                check_sign(Scores(*rng.standard_normal((2, count))))
                check_sign(Scores(*rng.standard_cauchy((2, count))))
                check_sign(
                    Scores(rng.standard_normal(count), standard_null=True)
                )


class TestSmallDimensions:
    """A canary in Gaussian noise: its cosine is never above 1, however large its shift is."""

    @pytest.mark.slow
    @pytest.mark.parametrize("dim", [10, 100, 650])
    def test_shift_and_coverage(self, dim):
        shift, count, runs = 5.0, 200, 300  # ε = 32
        rng, exact = (
            np.random.default_rng(dim),
            epsilon_two_gaussians(0, 1, 5.0, 1, DELTA),
        )
        along = shift + rng.standard_normal((runs, count))
        cosines = along / np.sqrt(
            along**2 + rng.chisquare(dim - 1, (runs, count))
        )
        found = [Scores.from_cosines(row, dim) for row in cosines]
        errors = np.array([scores.shift() for scores in found]) - shift
        assert abs(errors.mean()) < 3 * errors.std() / np.sqrt(runs) + 0.002
        estimates = [
            epsilon_from_cosines(row, dim, DELTA) for row in cosines[:100]
        ]
        covered = np.mean([e.low <= exact <= e.high for e in estimates])
        assert covered >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 100)

    def test_deviates_are_those_of_the_noncentral_t(self):
        """Where the approximation is worst, and in tails on both sides."""
        t = stats.nct.ppf([0.01, 0.2, 0.5, 0.8, 0.99], 99, 5.0)
        cosines = t / np.sqrt(t**2 + 99)
        expected = stats.norm.ppf([0.01, 0.2, 0.5, 0.8, 0.99])
        np.testing.assert_allclose(
            normal_deviates(cosines, 100, 5.0), expected, atol=5e-4
        )

    def test_large_dimensions_do_not_change(self):
        """Beside the mean of √d·cos: a relative μ²/(2d), here 2·10⁻⁶."""
        scores = Scores.from_cosines(_grid(1000, 2.0) / 1e3, 10**6)
        assert scores.shift() == pytest.approx(2.0, rel=5e-6)

    def test_too_few_dimensions_are_refused(self):
        with pytest.raises(
            NotMeasured, match="in 9 dimensions; an estimate needs at least 10"
        ):
            epsilon_from_cosines([0.1, 0.2], 9, DELTA)


class TestUnequalCanaries:
    @pytest.mark.parametrize("width", [1.18, 2.0])
    def test_wide_scores_have_no_estimate_with_known_variance(self, width):
        cosines = _grid(1000, 1.4, width) / 1e3
        with pytest.raises(
            NotMeasured, match=f"{width:.2f} times as wide as known variance"
        ):
            epsilon_from_cosines(cosines, 10**6, DELTA)
        summary = summarize_scores(bare_scores(cosines, None, 10**6), DELTA)
        assert [e.method for e in summary.estimates] == [
            "cosines, fitted variance"
        ]
        assert summary.refusal is not None
        assert "times as wide as known variance" in summary.refusal

    def test_equal_canaries_are_hardly_ever_refused(self):
        rng, refused, runs = np.random.default_rng(0), 0, 2000
        for row in rng.normal(3, 1, (runs, 50)):
            try:
                check_known_variance(Scores.from_cosines(row / 1e3, 10**6))
            except NotMeasured:
                refused += 1
        assert (
            refused <= 8
        )  # 2 expected; a Poisson count above 8 has a chance of 0.02%

    def test_the_benchmark_prints_coverage_and_what_is_found(self, capsys):
        estimators.print_dimensions(2)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 1 + 6 * 4 + 1 + 5
        assert lines[-1].split() == [
            "deviation",
            "2.0",
            "1.000",
            "1.000",
            "1.000",
            "1.000",
        ]

    def test_known_differences_are_taken_out(self):
        sizes = np.repeat([1.0, 5.0], 500)
        scores = Scores(_grid(1000) + sizes, standard_null=True)
        assert np.isinf(epsilon_of(scores, DELTA).high)
        known = epsilon_of(
            dataclasses.replace(scores, expected=2 * sizes), DELTA
        )
        assert (
            known.method
            == "scores, known variance, of the mean of unequal canaries"
        )
        assert known.epsilon == pytest.approx(
            epsilon_two_gaussians(0, 1, 3, 1, DELTA)
        )

    @pytest.mark.parametrize("dim", [None, 10**4])
    def test_expected_scores_whose_squares_vanish_explain_nothing(self, dim):
        cosines = _grid(100) / 100
        made = (
            Scores.from_cosines(cosines, dim)
            if dim
            else Scores(cosines, standard_null=True)
        )
        tiny = dataclasses.replace(made, expected=np.full(100, 1e-200))
        assert epsilon_of(tiny, DELTA) == epsilon_of(made, DELTA)

    def test_a_report_says_that_canaries_are_unequal(self):
        """Two thirds of the canaries were dropped, which the expected scores do not know."""
        rng = np.random.default_rng(0)
        cosines = (
            rng.standard_normal((6, 40)) + 30.0 * (np.arange(40) % 3 == 0)
        ) / 100
        record = make_record(**{"observed.means": cosines})
        found = epsilon_from_record(record, statistic="matched-filter")
        assert found.high == np.inf
        assert found.method.endswith(
            "fitted variance as wider than known, no upper end"
        )
        whole = answer(record, EVERY_ROUND)
        assert whole.fit.width > 5
        assert whole.estimate.high > 2 * epsilon_from_record(make_record()).high
        summary = summarize(record)
        assert summary.status == "unreliable"
        assert "width" in [one.code for one in summary.warnings]


def test_two_fitted_gaussians():
    estimate = epsilon_from_scores(
        _grid(500, 3, 1.2), _grid(500, 0, 0.9), DELTA
    )
    assert estimate.epsilon == pytest.approx(
        epsilon_two_gaussians(0, 0.9, 3, 1.2, DELTA), rel=1e-9
    )
    assert estimate.low < estimate.epsilon < estimate.high
    assert estimate == epsilon_from_scores(
        _grid(500, 3, 1.2), _grid(500, 0, 0.9), DELTA
    )


def test_affine_changes_of_the_scores_do_not_matter():
    a, b = _grid(300, 2), _grid(300)
    base = epsilon_from_scores(a, b, DELTA).epsilon
    assert epsilon_from_scores(
        5 * a - 3, 5 * b - 3, DELTA
    ).epsilon == pytest.approx(base)


class TestMatchedFilter:
    def test_equals_a_plain_loop(self):
        record = make_record()
        observed, unobserved = scores_of(seen_by(record, EVERY_ROUND)).both()
        scale = np.sqrt(record.dim)
        for scores, cosines, count in (
            (observed, record.observed.means, 40),
            (unobserved, record.unobserved.means, 30),
        ):
            for i in range(count):
                signals, total = [], 0.0
                for t in range(record.rounds):
                    if record.presence[t, i % 40]:
                        n = record.mechanism.cohort_size
                        own = record.mechanism.clip_norms[t] / n
                        a = (
                            scale
                            * own
                            / np.sqrt(record.norms.means[t] ** 2 - own**2)
                        )
                        signals.append(a)
                        total += a * shift_scores(cosines[t, i], record.dim)
                assert scores[i] == pytest.approx(
                    total / np.linalg.norm(signals)
                )

    def test_null_and_signal_are_as_predicted(self):
        rng = np.random.default_rng(1)
        z, k, T = 0.5, 4000, 6
        presence = rng.random((T, k)) < 0.5
        presence[0] |= ~presence.any(axis=0)
        noise = rng.standard_normal((2, T, k))
        record = make_record(
            **{
                "observed.means": (noise[0] + presence / z) / 100,
                "unobserved.means": noise[1] / 100,
            },
            presence=presence,
            **{
                "observed.final": np.zeros(k),
                "unobserved.final": np.zeros(k),
                "observed.displacement": np.zeros(k),
                "unobserved.displacement": np.zeros(k),
            },
        )
        observed, unobserved = scores_of(seen_by(record, EVERY_ROUND)).both()
        assert stats.kstest(unobserved, "norm").pvalue > 1e-3
        expected_score = np.sqrt(presence.sum(axis=0)) / z
        assert stats.kstest(observed - expected_score, "norm").pvalue > 1e-3

    def test_canaries_that_never_took_part_are_left_out(self):
        presence = make_record().presence.copy()
        presence[:, 3] = False
        observed, unobserved = scores_of(
            seen_by(make_record(presence=presence), EVERY_ROUND)
        ).both()
        assert len(observed) == 39
        assert len(unobserved) == 30


def test_final_scores_have_unit_null():
    record = make_record()
    observed = scores_of(seen_by(record), "model").observed
    np.testing.assert_allclose(observed, record.observed.final * 100)
    observed = scores_of(seen_by(record)).observed
    np.testing.assert_allclose(observed, record.observed.displacement * 100)


def test_delta_can_be_changed_afterwards():
    record = make_record()
    looser = epsilon_from_record(record, 0.1, adversary=EVERY_ROUND)
    assert looser.delta == 0.1
    assert (
        looser.epsilon
        < epsilon_from_record(record, adversary=EVERY_ROUND).epsilon
    )


def test_maximum_uses_the_model_deltas():
    record = make_record()
    observed, unobserved = record.model_update_cosines()
    expected = epsilon_from_scores(
        observed.max(axis=0), unobserved.max(axis=0), record.delta
    )
    estimate = epsilon_from_record(
        record, adversary=EVERY_ROUND, statistic="maximum"
    )
    assert estimate.adversary == STATISTICS["maximum"]
    assert (
        dataclasses.replace(estimate, method=expected.method, adversary=None)
        == expected
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(
            lambda: epsilon_from_cosines([0.1, np.nan], 9, DELTA),
            "cosines=nan to be finite",
            id="cosines-to-be-finite,got-nan",
        ),
        pytest.param(
            lambda: epsilon_from_cosines([0.1, np.inf], 9, DELTA),
            "cosines=inf to be finite",
            id="cosines-to-be-finite,got-inf",
        ),
        pytest.param(
            lambda: epsilon_from_cosines([0.1], 9, DELTA),
            r"cosines\.shape=\(1,\)",
            id="cosines.shape=1",
        ),
        pytest.param(
            lambda: epsilon_from_cosines([[0.1, 0.2]], 9, DELTA),
            r"cosines\.shape=\(1, 2\)",
            id="cosines.shape=1,2",
        ),
        pytest.param(
            lambda: epsilon_from_cosines([0.1, 3.0], 9, DELTA),
            r"cosines=3\.0 in \[-1, 1\]",
            id="cosines=3.0-in-1,1",
        ),
        pytest.param(
            lambda: epsilon_from_cosines([0.1, 0.2], 0, DELTA),
            "dim=0 >= 1",
            id="dim=0-at-least-1",
        ),
        pytest.param(
            lambda: epsilon_from_cosines([0.1, 0.2], 9, 0.0),
            r"delta=0\.0 in \(0, 1\)",
            id="delta=0.0-in-0,1",
        ),
        pytest.param(
            lambda: epsilon_from_scores([1, 2], [1, np.nan], DELTA),
            "unobserved=nan to be a number",
            id="unobserved-to-be-a-number",
        ),
        pytest.param(
            lambda: epsilon_from_scores([1], [1, 2], DELTA),
            r"observed\.shape=\(1,\)",
            id="observed.shape=1",
        ),
        pytest.param(
            lambda: epsilon_from_scores([1, 2], [1, 2], 1.0),
            r"delta=1\.0 in \(0, 1\)",
            id="delta=1.0-in-0,1",
        ),
        pytest.param(
            lambda: epsilon_from_scores([1, 2], [1, 2], DELTA, confidence=0),
            "confidence=0 in",
            id="confidence=0-in",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("exponent", [-1000, 1020])
def test_scores_whose_squares_overflow_or_vanish(exponent):
    """Another unit of the scores changes nothing."""
    rng = np.random.default_rng(0)
    observed, unobserved = rng.normal(3, 1, 200), rng.normal(0, 1, 200)
    found, expected = (
        epsilon_from_scores(
            np.ldexp(observed, e), np.ldexp(unobserved, e), 1e-5
        )
        for e in (exponent, 0)
    )
    assert found.epsilon == pytest.approx(expected.epsilon, rel=1e-9)
    assert found.low == pytest.approx(expected.low, rel=1e-9)
    assert found.high == pytest.approx(expected.high, rel=1e-9)


def test_infinite_epsilon_of_huge_standard_scores():
    scores = Scores(np.array([1e308, 1.2e308, 1.7e308]), standard_null=True)
    assert np.isinf(epsilon_of(scores, 1e-5).epsilon)
    fitted = epsilon_of(scores, 1e-5, variance="fitted")
    assert np.isinf(fitted.epsilon)
