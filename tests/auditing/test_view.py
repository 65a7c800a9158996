"""ExpectedScores, fitted Gaussians and what a useless attack is worth."""

import numpy as np
import pytest
from records import make_record
from scipy import stats

from fl_epe import (
    epsilon_from_cosines,
    epsilon_from_scores,
    epsilon_two_gaussians,
)
from fl_epe.auditing import (
    EVERY_ROUND,
    Adversary,
    NotMeasured,
    ServerStep,
    ladder_fit,
    scores_of,
    seen_by,
)
from fl_epe.limit import limit_record
from fl_epe.schedules import Poisson, ShuffledEpochs


class TestExpectedScores:
    def test_explain_the_scores_where_canaries_differ(self):
        rng = np.random.default_rng(0)
        clip_norms = rng.lognormal(0, 1, 50)
        record = limit_record(
            Poisson(50, 0.1), 0.3, 1e-3, clip_norms=clip_norms, momentum=0.8
        )
        for sees in ("final", "all"):
            fit = ladder_fit(seen_by(record, Adversary(sees)))
            # the standard error of κ is a quarter of its interval
            assert abs(fit.scale - 1) < 4 * (fit.high - fit.low) / 4
            assert fit.low < fit.scale < fit.high
        expected = seen_by(record).expected_scores.observed
        scores = scores_of(seen_by(record)).observed
        assert stats.kstest(scores - expected, "norm").pvalue > 1e-3

    @pytest.mark.slow
    def test_interval_of_the_scale_covers(self):
        inside = 0
        for seed in range(300):
            record = limit_record(
                ShuffledEpochs(6, 2),
                0.5,
                1e-3,
                num_canaries=40,
                unobserved=2,
                seed=seed,
            )
            fit = ladder_fit(seen_by(record))
            inside += fit.low <= 1 <= fit.high
        # 300 coins of 0.95
        assert abs(inside / 300 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 300)

    def test_rounds_weigh_alike_where_the_server_adds_up_nothing(self):
        sizes = seen_by(make_record(server=ServerStep("adam"))).expected_scores
        np.testing.assert_array_equal(sizes.observed, 3)


@pytest.mark.weekly
def test_interval_of_fitted_gaussians_covers():
    """600 draws at ε = 3: a share of 0.95 has a standard error of 0.9%; 1 in 1,000 is refused."""
    rng = np.random.default_rng(6)
    shift = 1 / 1.54
    inside = 0
    refused = 0
    exact = epsilon_two_gaussians(0, 1, shift, 1, 1e-6)
    for _ in range(600):
        observed = rng.normal(shift, 1, 400)
        unobserved = rng.standard_normal(400)
        try:
            estimate = epsilon_from_scores(
                observed, unobserved, 1e-6, confidence=0.95
            )
        except NotMeasured:
            refused += 1
            continue
        inside += bool(estimate.low <= exact <= estimate.high)
    assert refused <= 5
    assert 0.95 - 3 * 0.009 < inside / (600 - refused) < 0.98


class TestDegenerate:
    """What an attack that sees nothing, or is wrong, is worth."""

    def test_ties_are_no_proof(self):
        same = epsilon_from_scores([0.1] * 3, [0.1] * 5, 1e-5)
        assert (same.epsilon, same.low, same.high) == (0, 0, 0)
        apart = epsilon_from_scores([0.2, 0.2], np.linspace(-1, 1, 50), 1e-5)
        assert apart.low == 0
        assert apart.high == np.inf

    @pytest.mark.parametrize("variance", ["known", "fitted"])
    def test_scores_below_the_null_by_chance_are_worth_little(self, variance):
        quantiles = stats.norm.ppf((np.arange(500) + 0.5) / 500)
        cosines = (quantiles / quantiles.std(ddof=1) - 0.15) / 100
        estimate = epsilon_from_cosines(
            cosines, 10_000, 1e-5, variance=variance
        )
        assert estimate.low == 0
        assert estimate.low <= estimate.epsilon <= estimate.high
        assert estimate.epsilon == pytest.approx(0, abs=0.01)


def test_an_adversary_sees_the_final_model_or_every_round():
    with pytest.raises(ValueError, match="sees='some' to be one of"):
        Adversary("some")


def test_a_statistic_needs_an_adversary_who_knows_enough():
    record = make_record()
    unaware = Adversary("all", knows_rounds=False)
    assert (
        scores_of(seen_by(record, unaware)).statistic == "maximum over rounds"
    )
    with pytest.raises(
        ValueError, match="'matched-filter' to be one of maximum"
    ):
        scores_of(seen_by(record, unaware), "matched-filter")
    with pytest.raises(
        ValueError, match="'full-knowledge' to be one of matched-filter"
    ):
        scores_of(seen_by(record, EVERY_ROUND), "full-knowledge")


def test_everything_is_derived_once():
    record = make_record()
    view = seen_by(record, EVERY_ROUND)
    assert seen_by(record, EVERY_ROUND) is view
    assert scores_of(view) is scores_of(view, "matched-filter")
    assert (
        seen_by(
            record, Adversary("all", knows_rounds=False)
        ).signals.leave_one_out
        is view.signals.leave_one_out
    )
