"""How wide scores are: overlapping canaries, and rounds that agree with each other."""

import dataclasses

import numpy as np
import pytest

from fl_epe import CanarySet, RoundFacts, RunAuditor, epsilon_from_record, epsilon_two_gaussians
from fl_epe.auditing import EVERY_ROUND, Adversary, Scores, epsilon_of, expected_score_fit, seen_by
from fl_epe.auditing.leave_one_out import all_canaries
from fl_epe.auditing.scores import mean_spread, null_interval, with_measured_null
from fl_epe.reporting.notes import notes
from fl_epe.reporting.summary import summarize

DELTA = 1e-5


def audited(seed, dim, count, z, rounds=1, times=1, unobserved=4, known=True, agree=0.0):
    """A run of sums of canaries and noise; ``agree`` is the share of it that is in every round."""
    auditor = RunAuditor(count, unobserved, seed=seed, delta=DELTA)
    canaries = CanarySet(dim, count, seed)
    rng, theta = np.random.default_rng((2, seed)), np.zeros(dim)
    auditor.begin(theta)
    present = np.array([rng.permutation(rounds) < times for _ in range(count)]).T
    always = rng.standard_normal(dim)
    for row in present:
        noise = np.sqrt(agree) * always + np.sqrt(1 - agree) * rng.standard_normal(dim)
        here = np.flatnonzero(row).tolist()
        total = canaries.combine(np.ones((1, len(here))), numbers=here)[0].astype(float)
        theta = theta + total + z * noise
        auditor.observe(theta, RoundFacts(here, 1.0, clip_norm=1.0, replies=1.0))
    facts = {"noise_multiplier": z, "sum_noise_multiplier": z} if known else {}
    return auditor.record(**facts)


@pytest.mark.slow
def test_the_mean_of_overlapping_canaries_varies_as_predicted():
    dim, count, z, runs = 400, 200, 0.3, 100
    means, spreads = [], []
    for seed in range(runs):
        scores = seen_by(audited(seed, dim, count, z), EVERY_ROUND).scores()
        means.append(scores.observed.mean())
        spreads.append(scores.spread)
    measured = np.std(means, ddof=1) * np.sqrt(count)
    assert np.mean(spreads) > 1.5
    error = 1 / np.sqrt(2 * runs)  # relative, of a standard deviation
    assert measured == pytest.approx(np.mean(spreads), rel=3 * error)
    shift = 1 / np.sqrt(z**2 + 1 / dim)
    assert np.mean(means) == pytest.approx(shift, abs=3 * measured / np.sqrt(count * runs))


@pytest.mark.parametrize("sees", ["final", "all"])
def test_the_interval_of_a_record_has_that_width(sees):
    record = audited(1, 400, 200, 0.3, rounds=2, times=1)
    statistic = {"final": "displacement", "all": "matched-filter"}[sees]
    spread = seen_by(record, Adversary(sees)).scores(statistic).spread
    assert spread > 1.1
    unknown = audited(1, 400, 200, 0.3, rounds=2, times=1, known=False)
    assert seen_by(unknown, Adversary(sees)).scores(statistic).spread == 1
    wide, narrow = (
        epsilon_from_record(each, adversary=Adversary(sees)) for each in (record, unknown)
    )
    assert wide.epsilon == narrow.epsilon
    assert wide.high - wide.low > 1.1 * (narrow.high - narrow.low)
    assert seen_by(all_canaries(record), Adversary(sees)).scores(statistic).spread == 1


def test_a_length_that_does_not_vary_moves_no_scores():
    shifts, noise = np.array([10.0]), np.ones(1)
    assert mean_spread(10, 10**9, shifts, noise) == pytest.approx(1)
    assert mean_spread(1000, 1000, shifts, np.zeros(1)) == 1  # nothing random hides them


def test_a_null_that_is_right_changes_nothing():
    rng = np.random.default_rng(0)
    runs, changed = 2000, 0
    for _ in range(runs):
        scores = Scores(np.ones(3), rng.standard_normal(40), standard_null=True)
        changed += with_measured_null(scores) is not scores
    assert changed <= 8  # 2 expected; a Poisson count above 8 has a chance of 0.02%
    assert with_measured_null(Scores(np.ones(3))).null is None


def test_intervals_with_a_measured_null_cover():
    count, others, shift, width, runs = 100, 60, 4.0, 2.0, 400
    rng = np.random.default_rng(0)
    truth, covered = float(epsilon_two_gaussians(0, 1, shift, 1, DELTA)), 0
    for _ in range(runs):
        observed = width * (shift + rng.standard_normal(count))
        scores = Scores(observed, width * rng.standard_normal(others), standard_null=True)
        found = epsilon_of(with_measured_null(scores), DELTA)
        assert "measured null" in found.method
        covered += int(found.low <= truth <= found.high)
    assert covered / runs == pytest.approx(0.95, abs=3 * np.sqrt(0.95 * 0.05 / runs))


def test_the_interval_of_a_standard_deviation():
    low, high = null_interval(2.0, 50, 0.95)
    assert low < 2 < high
    assert high / 2 - 1 == pytest.approx(0.2, abs=0.06)  # 1.96/√(2·50)


@pytest.mark.slow
def test_rounds_that_agree_are_found_and_corrected():
    same, other = (
        audited(3, 3000, 100, 0.5, rounds=6, times=3, unobserved=100, known=False, agree=agree)
        for agree in (0.9, 0.0)
    )
    scores = seen_by(same, EVERY_ROUND).scores()
    assert scores.null is not None
    assert scores.null[0] == pytest.approx(np.sqrt(1 + 2 * 0.9), abs=0.4)
    assert np.sqrt(np.mean(scores.both()[1] ** 2)) == pytest.approx(1)
    # Three rounds whose noise is the same say little more than one of them does.
    truth = epsilon_two_gaussians(0, 1, np.sqrt(3) * 2 / np.sqrt(1 + 2 * 0.9), 1, DELTA)
    found = epsilon_from_record(same, adversary=EVERY_ROUND)
    assert found.low < truth < found.high
    fit = expected_score_fit(seen_by(same, EVERY_ROUND))
    assert fit.mean.epsilon == pytest.approx(found.epsilon, rel=0.05)
    summary = summarize(same)
    assert "successive rounds were independent" in " ".join(notes(summary))
    assert summary.to_dict()["all"]["null_width"] == scores.null[0]
    assert seen_by(other, EVERY_ROUND).scores().null is None
    assert "successive rounds" not in " ".join(notes(summarize(other)))


def test_too_few_unobserved_canaries_to_tell_are_said():
    record = audited(3, 3000, 10, 0.5, rounds=6, times=3, known=False)
    assert "4 unobserved canaries are too few to tell" in " ".join(notes(summarize(record)))
    noisy = dataclasses.replace(
        record, mechanism=dataclasses.replace(record.mechanism, noise_multiplier=0.5)
    )
    assert "too few to tell" not in " ".join(notes(summarize(noisy)))


def test_a_round_that_is_mostly_canaries_is_warned_of():
    text = " ".join(notes(summarize(audited(1, 400, 200, 0.3))))
    assert "more than clients and noise together" in text
    assert "together" not in " ".join(notes(summarize(audited(1, 3000, 20, 1.0))))
