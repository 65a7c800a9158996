"""The limit of a large model against theory and the paper's numbers."""

import numpy as np
import pytest
from scipy import stats

from fl_epe import epsilon_from_record, epsilon_two_gaussians
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    scores_of,
    seen_by,
)
from fl_epe.limit import limit_record
from fl_epe.schedules import Poisson, ShuffledEpochs

DELTA = 341_000**-1.1


NOISES = (0.0496, 0.0986, 0.2317)


class TestLimit:
    """StackOverflow of the paper: T = 2048, one participation, 1,000 + 1,000 canaries."""

    @pytest.mark.slow
    @pytest.mark.parametrize("z", NOISES)
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_the_matched_filter_meets_the_analytical_value(self, z, momentum):
        clip_norms = 1.0 if momentum == 0 else np.geomspace(0.1, 3, 2048)
        schedule = ShuffledEpochs(2048, 1)
        record = limit_record(
            schedule, z, DELTA, clip_norms=clip_norms, momentum=momentum
        )
        estimate = epsilon_from_record(record, adversary=EVERY_ROUND)
        assert estimate.epsilon == pytest.approx(
            epsilon_two_gaussians(0, 1, 1 / z, 1, DELTA), rel=0.05
        )

    @pytest.mark.slow
    @pytest.mark.parametrize("z", NOISES)
    def test_the_final_model_is_one_gaussian_mechanism_with_all_the_noise(
        self, z
    ):
        record = limit_record(ShuffledEpochs(2048, 1), z, DELTA)
        estimate = epsilon_from_record(record, adversary=FINAL_MODEL)
        shift = 1 / (z * np.sqrt(2048))
        low, high = (
            epsilon_two_gaussians(
                0, 1, shift + sign * 4 / np.sqrt(1000), 1, DELTA
            )
            for sign in (-1, 1)
        )
        assert low < estimate.epsilon < high

    @pytest.mark.slow
    @pytest.mark.parametrize(("z", "paper"), [(0.0986, 89.4), (0.2317, 2.693)])
    def test_the_maximum_with_server_momentum_is_what_the_paper_prints(
        self, z, paper
    ):
        def epsilons(momentum, runs=6):
            records = (
                limit_record(
                    ShuffledEpochs(2048, 1),
                    z,
                    DELTA,
                    momentum=momentum,
                    seed=seed,
                )
                for seed in range(runs)
            )
            return [
                epsilon_from_record(
                    record, adversary=EVERY_ROUND, statistic="maximum"
                ).epsilon
                for record in records
            ]

        with_momentum = epsilons(0.9)
        # the paper has one run, we have six
        error = np.std(with_momentum, ddof=1) * np.sqrt(1 + 1 / 6)
        assert abs(np.mean(with_momentum) - paper) < 3 * error
        # without momentum it is far above the theory, as no ε of an attack can be
        assert min(epsilons(0.0, runs=2)) > 2 * epsilon_two_gaussians(
            0, 1, 1 / z, 1, DELTA
        )

    def test_scores_of_others_are_standard(self):
        record = limit_record(
            Poisson(40, 0.2), 0.5, 1e-3, num_canaries=500, unobserved=3000
        )
        for sees, statistic in (
            ("final", "displacement"),
            ("all", "matched-filter"),
        ):
            _, unobserved = scores_of(
                seen_by(record, Adversary(sees)), statistic
            ).both()
            assert stats.kstest(unobserved, "norm").pvalue > 1e-3

    def test_needs_noise(self):
        with pytest.raises(ValueError, match="noise_multiplier=0 > 0"):
            limit_record(ShuffledEpochs(4, 1), 0, 1e-3)
