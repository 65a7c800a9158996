"""How wide the mean score of overlapping canaries is."""

import numpy as np
import pytest

from fl_epe import CanarySet, RoundFacts, RunAuditor, epsilon_from_record
from fl_epe.auditing import EVERY_ROUND, Adversary, scores_of, seen_by
from fl_epe.auditing.scoring.leave_one_out import keep_all_canaries
from fl_epe.auditing.scoring.scores import mean_spread

DELTA = 1e-5


def audited(
    seed, dim, count, z, rounds=1, times=1, unobserved=4, known=True, agree=0.0
):
    """A run of sums of canaries and noise; ``agree`` is the share of it that is in every round."""
    auditor = RunAuditor(count, unobserved, seed=seed, delta=DELTA)
    canaries = CanarySet(dim, count, seed)
    rng = np.random.default_rng((2, seed))
    theta = np.zeros(dim)
    auditor.begin(theta)
    present = np.array(
        [rng.permutation(rounds) < times for _ in range(count)]
    ).T
    always = rng.standard_normal(dim)
    for row in present:
        noise = np.sqrt(agree) * always + np.sqrt(
            1 - agree
        ) * rng.standard_normal(dim)
        here = np.flatnonzero(row).tolist()
        total = canaries.combine(np.ones((1, len(here))), numbers=here)[
            0
        ].astype(float)
        theta = theta + total + z * noise
        auditor.observe(
            theta, RoundFacts(here, 1.0, clip_norm=1.0, replies=1.0)
        )
    facts = {"noise_multiplier": z, "sum_noise_multiplier": z} if known else {}
    return auditor.record(**facts)


@pytest.mark.slow
def test_the_mean_of_overlapping_canaries_varies_as_predicted():
    dim = 400
    count = 200
    z = 0.3
    runs = 100
    means = []
    spreads = []
    for seed in range(runs):
        scores = scores_of(seen_by(audited(seed, dim, count, z), EVERY_ROUND))
        means.append(scores.observed.mean())
        spreads.append(scores.spread)
    measured = np.std(means, ddof=1) * np.sqrt(count)
    assert np.mean(spreads) > 1.5
    error = 1 / np.sqrt(2 * runs)  # relative, of a standard deviation
    assert measured == pytest.approx(np.mean(spreads), rel=3 * error)
    # A score is against the noise alone, without the part of the canary itself.
    assert np.mean(means) == pytest.approx(
        1 / z, abs=3 * measured / np.sqrt(count * runs)
    )


@pytest.mark.parametrize("sees", ["final", "all"])
def test_the_interval_of_a_record_has_that_width(sees):
    record = audited(1, 400, 200, 0.3, rounds=2, times=1)
    statistic = {"final": "displacement", "all": "matched-filter"}[sees]
    spread = scores_of(seen_by(record, Adversary(sees)), statistic).spread
    assert spread > 1.1
    unknown = audited(1, 400, 200, 0.3, rounds=2, times=1, known=False)
    assert scores_of(seen_by(unknown, Adversary(sees)), statistic).spread == 1
    wide, narrow = (
        epsilon_from_record(each, adversary=Adversary(sees))
        for each in (record, unknown)
    )
    assert wide.epsilon == narrow.epsilon
    assert wide.high - wide.low > 1.1 * (narrow.high - narrow.low)
    assert (
        scores_of(
            seen_by(keep_all_canaries(record), Adversary(sees)), statistic
        ).spread
        == 1
    )


def test_a_length_that_does_not_vary_moves_no_scores():
    shifts = np.array([10.0])
    noise = np.ones(1)
    assert mean_spread(10, 10**9, shifts, noise) == pytest.approx(1)
    assert (
        mean_spread(1000, 1000, shifts, np.zeros(1)) == 1
    )  # nothing random hides them


@pytest.mark.parametrize("sees", ["final", "all"])
def test_the_noise_that_overlap_shares_is_that_of_the_strategy(sees):
    record = audited(1, 400, 200, 0.3, rounds=3)
    adversary = Adversary(sees)
    spread = scores_of(seen_by(record, adversary)).spread
    independent = record.with_values(strategy=np.eye(3))
    assert scores_of(seen_by(independent, adversary)).spread == pytest.approx(
        spread
    )
    assert spread > 1
    halved = record.with_values(strategy=2 * np.eye(3))
    assert 1 < scores_of(seen_by(halved, adversary)).spread < spread
