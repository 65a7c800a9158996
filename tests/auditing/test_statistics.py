"""The other statistics: unknown rounds, footprints, goodness of fit, and the limit they live in."""

import numpy as np
import pytest
from records import make_record
from scipy import stats

from fl_epe import (
    epsilon_from_cosines,
    epsilon_from_record,
    epsilon_from_scores,
    epsilon_two_gaussians,
)
from fl_epe.accounting import unknown_rounds_epsilon
from fl_epe.asymptotics import limit_record
from fl_epe.auditing import anderson_darling, footprint_fit, footprints, scores_from_record
from fl_epe.auditing.statistics import full_knowledge_spread
from fl_epe.mechanism import ServerSGD
from fl_epe.reporting import notes, write_report
from fl_epe.reporting.report import table_rows
from fl_epe.schedules import Poisson, ShuffledEpochs

DELTA = 341_000**-1.1
NOISES = (0.0496, 0.0986, 0.2317)


class TestLimit:
    """StackOverflow of the paper: T = 2048, one participation, 1,000 + 1,000 canaries."""

    @pytest.mark.parametrize("z", NOISES)
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_the_matched_filter_meets_the_analytical_value(self, z, momentum):
        clip_norms = 1.0 if momentum == 0 else np.geomspace(0.1, 3, 2048)
        schedule, server = ShuffledEpochs(2048, 1), ServerSGD(1.0, momentum)
        record = limit_record(schedule, z, DELTA, clip_norms=clip_norms, server=server)
        estimate = epsilon_from_record(record, threat="all")
        assert estimate.epsilon == pytest.approx(
            epsilon_two_gaussians(0, 1, 1 / z, 1, DELTA), rel=0.05
        )

    @pytest.mark.parametrize("z", NOISES)
    def test_the_final_model_is_one_gaussian_mechanism_with_all_the_noise(self, z):
        record = limit_record(ShuffledEpochs(2048, 1), z, DELTA)
        estimate = epsilon_from_record(record)
        shift = 1 / (z * np.sqrt(2048))
        low, high = (
            epsilon_two_gaussians(0, 1, shift + sign * 4 / np.sqrt(1000), 1, DELTA)
            for sign in (-1, 1)
        )
        assert low < estimate.epsilon < high

    @pytest.mark.parametrize(("z", "paper"), [(0.0986, 89.4), (0.2317, 2.693)])
    def test_the_maximum_with_server_momentum_is_what_the_paper_prints(self, z, paper):
        def epsilons(momentum):
            server = ServerSGD(1.0, momentum)
            records = (
                limit_record(ShuffledEpochs(2048, 1), z, DELTA, server=server, seed=seed)
                for seed in range(6)
            )
            return [
                epsilon_from_record(record, threat="all", statistic="maximum").epsilon
                for record in records
            ]

        with_momentum = epsilons(0.9)
        # the paper has one run, we have six
        error = np.std(with_momentum, ddof=1) * np.sqrt(1 + 1 / 6)
        assert abs(np.mean(with_momentum) - paper) < 3 * error
        # without momentum it is far above the theory, as no ε of an attack can be
        assert min(epsilons(0.0)) > 2 * epsilon_two_gaussians(0, 1, 1 / z, 1, DELTA)

    def test_scores_of_others_are_standard(self):
        record = limit_record(Poisson(40, 0.2), 0.5, 1e-3, num_canaries=500, unobserved=3000)
        for threat, statistic in (("final", "displacement"), ("all", "matched-filter")):
            _, unobserved = scores_from_record(record, threat, statistic).both()
            assert stats.kstest(unobserved, "norm").pvalue > 1e-3

    def test_needs_noise(self):
        with pytest.raises(ValueError, match="noise_multiplier=0 > 0"):
            limit_record(ShuffledEpochs(4, 1), 0, 1e-3)


class TestFootprints:
    def test_explain_the_scores_where_canaries_differ(self):
        rng = np.random.default_rng(0)
        clip_norms, server = rng.lognormal(0, 1, 50), ServerSGD(0.7, 0.8)
        record = limit_record(Poisson(50, 0.1), 0.3, 1e-3, clip_norms=clip_norms, server=server)
        for threat in ("final", "all"):
            fit = footprint_fit(record, threat=threat)
            # the standard error of κ is a quarter of its interval
            assert abs(fit.scale - 1) < 4 * (fit.high - fit.low) / 4
            assert fit.low < fit.scale < fit.high
            assert fit.most_exposed.epsilon > fit.mean.epsilon
        expected = footprints(record, "final")
        scores = scores_from_record(record, "final", "displacement").observed
        assert stats.kstest(scores - expected, "norm").pvalue > 1e-3

    def test_interval_of_the_scale_covers(self):
        inside = 0
        for seed in range(300):
            record = limit_record(
                ShuffledEpochs(6, 2), 0.5, 1e-3, num_canaries=40, unobserved=2, seed=seed
            )
            fit = footprint_fit(record)
            inside += fit.low <= 1 <= fit.high
        # 300 coins of 0.95
        assert abs(inside / 300 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 300)

    def test_errors(self):
        with pytest.raises(ValueError, match="to be sgd"):
            footprint_fit(make_record(server={"name": "adam"}))
        with pytest.raises(ValueError, match="confidence=2 in"):
            footprint_fit(make_record(), confidence=2)


class TestSecretRounds:
    @pytest.mark.parametrize("signal", [0.3, 1.0, 4.0, 20.0, 300.0])
    def test_one_round_is_known(self, signal):
        exact = epsilon_two_gaussians(0, 1, signal, 1, 1e-3)
        assert unknown_rounds_epsilon([np.array([signal])], 1e-3) == pytest.approx(exact, rel=1e-4)

    def test_epochs_of_one_round_compose(self):
        exact = epsilon_two_gaussians(0, 1, 2.0, 1, 1e-3)
        assert unknown_rounds_epsilon([np.ones(1)] * 4, 1e-3) == pytest.approx(exact, rel=1e-4)

    def test_equals_a_plain_simulation(self):
        """δ(ε) from 400,000 losses drawn with no formula but the likelihood ratio."""
        rng = np.random.default_rng(0)
        signal, rounds, draws = 1.5, 8, 400_000
        scores = rng.standard_normal((draws, rounds))
        scores[:, 0] += signal
        losses = np.log(np.mean(np.exp(signal * scores - signal**2 / 2), axis=1))
        epsilon = unknown_rounds_epsilon([np.full(rounds, signal)], 0.05)
        excess = np.maximum(-np.expm1(epsilon - losses), 0)
        error = excess.std() / np.sqrt(draws)
        # 2,000 draws of the background stand in for all: their share of the spread of one loss
        error = np.hypot(error, excess.std() / np.sqrt(2000))
        assert abs(excess.mean() - 0.05) < 4 * error

    def test_secrecy_helps_and_more_epochs_hurt(self):
        known = epsilon_two_gaussians(0, 1, 1.5, 1, 1e-3)
        once = unknown_rounds_epsilon([np.full(30, 1.5)], 1e-3)
        twice = unknown_rounds_epsilon([np.full(15, 1.5)] * 2, 1e-3)
        assert once < twice < epsilon_two_gaussians(0, 1, 1.5 * np.sqrt(2), 1, 1e-3)
        assert once < known

    def test_no_signal_is_no_loss(self):
        assert unknown_rounds_epsilon([np.full(30, 1e-4)], 1e-3) == 0

    def test_from_a_record(self):
        record = limit_record(ShuffledEpochs(60, 1), 0.5, 1e-3)
        estimate = epsilon_from_record(record, threat="all", statistic="likelihood-ratio")
        exact = unknown_rounds_epsilon([np.full(60, 2.0)], 1e-3)
        assert estimate.low < exact < estimate.high
        assert estimate.high < epsilon_from_record(record, threat="all").low

    def test_poisson_meets_its_accountant(self):
        from fl_epe.accounting import poisson_epsilon

        record = limit_record(Poisson(60, 0.1), 0.8, 1e-3)
        estimate = epsilon_from_record(record, threat="all", statistic="likelihood-ratio")
        assert estimate.low < poisson_epsilon(0.8, 0.1, 60, 1e-3) < estimate.high

    @pytest.mark.parametrize(
        ("epochs", "delta", "message"),
        [
            pytest.param([], 1e-3, r"epochs=\[\]", id="empty"),
            pytest.param([np.array([1.0, np.nan])], 1e-3, "positive and finite", id="nan"),
            pytest.param([np.array([0.0])], 1e-3, "positive and finite", id="zero"),
            pytest.param([np.ones(2)], 0.0, r"delta=0\.0 in \(0, 1\)", id="delta=0"),
        ],
    )
    def test_errors(self, epochs, delta, message):
        with pytest.raises(ValueError, match=message):
            unknown_rounds_epsilon(epochs, delta)


class TestAndersonDarling:
    @pytest.mark.filterwarnings("ignore::FutureWarning")
    def test_statistic_equals_scipy(self):
        scores = np.random.default_rng(3).standard_normal(137)
        expected = stats.anderson(scores, method="interpolate").statistic
        assert anderson_darling(scores).statistic == pytest.approx(expected, rel=1e-12)

    def test_p_values_are_uniform_for_gaussians(self):
        rng = np.random.default_rng(4)
        p = [anderson_darling(rng.normal(3, 7, 200)).p_value for _ in range(2000)]
        assert stats.kstest(p, "uniform").pvalue > 1e-3
        assert abs(np.mean(np.array(p) < 0.05) - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 2000)

    def test_finds_mixtures(self):
        rng = np.random.default_rng(5)
        mixed = np.concatenate([rng.standard_normal(500), rng.normal(4, 1, 500)])
        assert anderson_darling(mixed).p_value < 1e-6

    @pytest.mark.parametrize(
        ("scores", "message"),
        [
            pytest.param(np.zeros(3), r"scores\.shape=\(3,\)", id="scores.shape=3"),
            pytest.param(
                np.zeros(30),
                r"scores=0\.0 not to be all the same",
                id="scores=0.0-not-to-be-all-the-same",
            ),
            pytest.param(np.full(30, np.nan), "scores to be finite", id="scores-to-be-finite"),
        ],
    )
    def test_errors(self, scores, message):
        with pytest.raises(ValueError, match=message):
            anderson_darling(scores)


def test_interval_of_fitted_gaussians_covers():
    """600 draws at ε = 3 of each kind: a share of 0.95 has a standard error of 0.9%."""
    rng = np.random.default_rng(6)
    shift, inside = 1 / 1.54, 0
    exact = epsilon_two_gaussians(0, 1, shift, 1, 1e-6)
    for _ in range(600):
        estimate = epsilon_from_scores(
            rng.normal(shift, 1, 400), rng.standard_normal(400), 1e-6, confidence=0.95
        )
        inside += estimate.low <= exact <= estimate.high
    assert 0.95 - 3 * 0.009 < inside / 600 < 0.98


class TestDegenerate:
    """What an attack that sees nothing, or is wrong, is worth."""

    def test_ties_are_no_proof(self):
        same = epsilon_from_scores([0.1] * 3, [0.1] * 5, 1e-5)
        assert (same.epsilon, same.low, same.high) == (0, 0, 0)
        apart = epsilon_from_scores([0.2, 0.2], np.linspace(-1, 1, 50), 1e-5)
        assert apart.low == 0
        assert apart.high == np.inf

    @pytest.mark.parametrize("variance", ["known", "fitted"])
    def test_scores_on_the_wrong_side_are_worth_little(self, variance):
        quantiles = stats.norm.ppf((np.arange(500) + 0.5) / 500)
        cosines = (quantiles / quantiles.std(ddof=1) - 3) / 100
        estimate = epsilon_from_cosines(cosines, 10_000, 1e-5, variance=variance)
        assert estimate.low == 0
        assert estimate.low <= estimate.epsilon <= estimate.high
        assert estimate.epsilon == pytest.approx(0, abs=1e-6)

    def test_full_knowledge_interval_knows_the_overlap(self):
        record = make_record(dim=400)
        # 20 canaries a round at z = 0.5 in 400 dimensions
        assert full_knowledge_spread(record) == pytest.approx(np.sqrt(1 + 19 / (400 * 0.25)))


class TestReports:
    """Every kind of record has a report, and no sentence in it that is not true of it."""

    RECORDS = {  # noqa: RUF012 - made once
        "epochs": lambda: limit_record(
            ShuffledEpochs(6, 2), 0.5, 1e-3, num_canaries=40, unobserved=40
        ),
        "part-of-an-epoch": lambda: limit_record(
            ShuffledEpochs(6, 1.5), 0.5, 1e-3, num_canaries=40, unobserved=40
        ),
        "poisson": lambda: limit_record(Poisson(6, 0.3), 0.5, 1e-3, num_canaries=40, unobserved=40),
        "no-unobserved": lambda: limit_record(
            ShuffledEpochs(6, 2), 0.5, 1e-3, num_canaries=40, unobserved=0
        ),
        "no-clip-norms": lambda: make_record(clip_norms=np.full(6, np.nan)),
        "unknown-schedule": lambda: make_record(participation="other"),
        "no-noise": lambda: make_record(noise_multiplier=0.0, sum_noise_multiplier=0.0),
        "unknown-noise": lambda: make_record(noise_multiplier=None, sum_noise_multiplier=None),
        "an-empty-round": lambda: make_record(
            mean_norms=np.array([0.0, *make_record().norms.means[1:]])
        ),
        "nobody-took-part": lambda: make_record(presence=np.zeros((6, 40), bool)),
        "nothing-moved": lambda: make_record(displacement_norm=0.0),
        "lost-updates": lambda: make_record(absent=np.array([0, 3, 0, 0, 1, 0]), faults=("x",)),
        "coins": lambda: make_record(inclusion="coin"),
    }

    @pytest.mark.parametrize("kind", RECORDS)
    def test_is_written(self, kind, tmp_path):
        summary = write_report(self.RECORDS[kind](), tmp_path)
        page = (tmp_path / "report.html").read_text()
        rows = {(row[0], row[1]): row for row in table_rows(summary)}
        assert ("final model", "displacement") in rows
        text = " ".join(notes(summary))
        if kind == "no-unobserved":
            assert rows["every round", "matched filter"][4] == "–"
        if kind == "poisson":
            assert "on average" in text
            assert "does not know the rounds" in text
        if kind == "part-of-an-epoch":
            assert "1.5 times, counted as 2" in text
        if kind in ("unknown-schedule", "unknown-noise"):
            assert "none known" in text
            assert "none known" in page
        if kind in ("unknown-schedule", "part-of-an-epoch"):
            assert summary.every_round.unknown_rounds is None
        if kind == "lost-updates":
            assert "4 updates were lost" in text
        methods = {bound.method for bound in summary.every_round.bounds}
        assert ("one-run" in methods) == (kind == "coins")
