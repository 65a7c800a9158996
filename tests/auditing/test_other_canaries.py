"""ε for one canary among real clients: the other canaries are taken out of what hides one."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy import stats

from fl_epe import CanarySet, RoundFacts, RunAuditor, epsilon_from_record
from fl_epe.auditing import (
    AuditRecord,
    epsilon_of,
    footprint_fit,
    measure_others,
    others_share,
    scores_from_record,
    with_others,
    without_others,
)
from fl_epe.auditing.other_canaries import take_out
from fl_epe.mechanism import ServerSGD

DIM, ROUNDS, UNOBSERVED, SEED = 3000, 5, 60, 4
NOISE = {  # what hides canaries in `audited`, as a record says it
    "sum_noise_multiplier": 1.0,
    "cohort_size": 1.0,
    "clip_norms": np.full(ROUNDS, 1 / np.sqrt(DIM)),
}
SHIFT = 6.0  # √d times the norm of a canary's share, over that of what hides it


def audited(count, times=1, server=ServerSGD(), told=1.0, shift=SHIFT):  # noqa: B008
    """A run whose every mean is ``hidden + Σ canaries``, and the shift of each canary's score."""
    auditor = RunAuditor(count, UNOBSERVED, seed=SEED, delta=1e-5, server=server)
    canaries = CanarySet(DIM, count, SEED).vectors(range(count)).astype(float)
    rng = np.random.default_rng(1)
    presence = np.array([rng.permutation(ROUNDS) < times for _ in range(count)]).T
    added, theta = shift / np.sqrt(DIM), np.zeros(DIM)
    auditor.begin(theta)
    state, shifts = server.init(DIM), np.zeros(ROUNDS)
    for t in range(ROUNDS):
        hidden = rng.standard_normal(DIM) / np.sqrt(DIM)
        shifts[t] = shift / np.sqrt(hidden @ hidden + added**2)
        state, step = server.update(state, hidden + added * canaries[presence[t]].sum(axis=0))
        theta = theta + step
        auditor.observe(theta, RoundFacts(np.flatnonzero(presence[t]).tolist(), told * added))
    return auditor, np.sqrt(shifts**2 @ presence)


@functools.cache
def recorded(*arguments, **settings):
    """The record of such a run, and the shift of each canary's score."""
    auditor, shifts = audited(*arguments, **settings)
    return auditor.record(), shifts


def mean_score(record, threat="all", *, raw=False):
    statistic = {"all": "matched-filter", "final": "displacement"}[threat]
    return scores_from_record(record, threat, statistic, raw=raw).observed.mean()


@pytest.mark.parametrize("count", [2, 7])
def test_take_out_is_a_projection_off_the_sum_of_the_others(count):
    rng = np.random.default_rng(count)
    vectors, mean = rng.standard_normal((count + 3, 50)), rng.standard_normal(50)
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    own = np.r_[rng.random(count) + 0.5, np.zeros(3)]  # three took no part
    total = own @ vectors
    dots, squares = take_out(
        vectors @ mean, vectors @ total, own, mean @ mean, mean @ total, total @ total
    )
    for vector, weight, dot, square in zip(vectors, own, dots, squares, strict=True):
        others = total - weight * vector
        left = mean - others * (mean @ others) / (others @ others)
        np.testing.assert_allclose([dot, square], [left @ vector, left @ left], rtol=1e-9)


@pytest.mark.parametrize(
    ("count", "times", "server"),
    [
        (10, 1, ServerSGD()),
        (100, 1, ServerSGD()),
        (600, 1, ServerSGD()),
        (200, 3, ServerSGD()),
        (200, 3, ServerSGD(0.5, 0.9)),
    ],
)
def test_scores_are_those_of_one_canary_however_many_there_are(count, times, server):
    record, shifts = recorded(count, times, server)
    # A mean of scores has the error 1/√k; 3 of them, and 1% for cosines that the others share.
    error = 3 / np.sqrt(count) + 0.01 * shifts.mean()
    assert mean_score(record) == pytest.approx(shifts.mean(), abs=error)
    fit = footprint_fit(record, threat="all", confidence=0.999)
    assert fit.low < 1.01
    assert fit.high > 0.99
    if count * times >= 100:
        assert mean_score(record, raw=True) < shifts.mean() - error


@pytest.mark.parametrize("times", [1, 3])
def test_final_models_do_not_depend_on_the_count_either(times):
    found = {count: recorded(count, times)[0] for count in (60, 600)}
    error = 3 / np.sqrt(60) + 3 / np.sqrt(600)
    few, many = (mean_score(record, "final") for record in found.values())
    assert many == pytest.approx(few, abs=error)
    assert footprint_fit(found[600], confidence=0.999).low < 1.01
    assert mean_score(found[600], "final", raw=True) < 0.8 * few


def test_unobserved_scores_stay_standard_normal():
    record = recorded(600)[0]
    for threat, statistic in (("all", "matched-filter"), ("final", "displacement")):
        unobserved = scores_from_record(record, threat, statistic).both()[1]
        assert len(unobserved) == UNOBSERVED
        assert stats.kstest(unobserved, "norm").pvalue > 0.01  # of one seed


@pytest.mark.parametrize("told", [0.5, 2.0, np.nan])
def test_what_the_others_added_is_measured_and_not_assumed(told):
    right, wrong = recorded(200)[0], recorded(200, told=told)[0]
    assert wrong.signal_known() == np.isfinite(told)
    assert mean_score(wrong) == pytest.approx(mean_score(right), rel=1e-9)
    # Unknown contributions are replaced by measured ones, which differ a little between rounds.
    rel = 1e-9 if np.isfinite(told) else 0.01
    final = mean_score(right, "final")
    assert mean_score(wrong, "final") == pytest.approx(final, rel=rel)


def test_what_cannot_hide_a_canary_changes_nothing():
    record = recorded(20, shift=0.3)[0]
    assert others_share(record).max() < 1e-3
    assert mean_score(record) == mean_score(record, raw=True)
    record = recorded(100, shift=2.0)[0]  # others are 2.5%: the score rises by half of it
    share = others_share(record).mean()
    assert 0.015 < share < 0.035
    ratio = mean_score(record) / mean_score(record, raw=True)
    assert ratio == pytest.approx(1 / np.sqrt(1 - share), abs=0.03)


def test_the_running_estimate_is_the_reports():
    auditor = audited(200, 3, ServerSGD(0.5, 0.9))[0]
    last, record = auditor.epsilon_so_far(), auditor.record(**NOISE)
    found = epsilon_from_record(record, threat="all")
    assert last.epsilon == pytest.approx(found.epsilon, rel=1e-4)
    assert last.low < found.low < found.high < last.high  # as it may be watched
    # Nobody said how many participations were planned. The lower end allows for the error with
    # which it is known that rounds do not agree.
    assert last.high - last.epsilon < 1.75 * (found.high - found.epsilon)
    # which adds to the error of the upper end as squares do, at most 5% of the value
    above = last.high - last.epsilon
    assert last.epsilon - last.low < math.hypot(above, 0.05 * last.epsilon)
    assert found.epsilon > 1.2 * epsilon_from_record(record, threat="all", raw=True).epsilon


@pytest.mark.parametrize("threat", ["all", "final"])
def test_footprint_regression_is_as_wide_as_the_mean_score_where_footprints_are_equal(threat):
    record = audited(600, 5)[0].record(**NOISE)  # all of them in all rounds
    scores = scores_from_record(
        record, threat, {"all": "matched-filter"}.get(threat, "displacement")
    )
    assert scores.spread > 1.5
    measured = dataclasses.replace(scores, null=(1.3, 30))
    for one in (scores, measured):
        mean = epsilon_of(one, record.delta)
        fit = footprint_fit(record, threat=threat, scores=one).mean
        assert [fit.low, fit.epsilon, fit.high] == pytest.approx(
            [mean.low, mean.epsilon, mean.high], rel=1e-6
        )


def test_the_interval_so_far_knows_that_a_round_moves_all_its_scores_together():
    auditor, shifts = audited(600)  # 120 a round
    watched = auditor._running.watched()
    # Each round's length has the relative variance 1/(2d), and moves the sum of 120 scores of 6.
    wanted = 1 + 120 * np.mean(shifts**2) / (2 * DIM)
    assert wanted > 1.6
    assert watched.variance / watched.information == pytest.approx(wanted, rel=0.05)
    low, high = watched.interval()
    plain_low, plain_high = dataclasses.replace(
        watched, variance=None, horizon=watched.horizon / wanted
    ).interval()
    assert high - low == pytest.approx(np.sqrt(wanted) * (plain_high - plain_low), rel=0.05)


def test_a_restored_auditor_watches_with_the_same_interval():
    auditor = audited(600)[0]
    again = RunAuditor(600, UNOBSERVED, seed=SEED, delta=1e-5, server=ServerSGD())
    start, last = np.zeros(DIM), auditor._last
    again.restore(auditor.state(), ROUNDS, start=start, last=last)
    assert again.epsilon_so_far() == auditor.epsilon_so_far()


def test_canaries_alone_have_a_cosine_of_one():
    auditor = RunAuditor(3, 2, seed=SEED, delta=1e-5)
    canaries = CanarySet(DIM, 3, SEED)
    auditor.begin(np.zeros(DIM))
    auditor.observe(sum(canaries.vector(i).astype(float) for i in range(3)), RoundFacts([0, 1, 2]))
    cosines = without_others(auditor.record()).observed.means
    # The other two are taken out as one sum; their difference is left, of length about 0.04 / d.
    np.testing.assert_allclose(cosines, 1, atol=0.01)


def test_records_keep_it_and_old_ones_are_read_as_they_were(tmp_path):
    record = recorded(200)[0]
    assert without_others(without_others(record)).norms.sums is None
    loaded = AuditRecord.load(record.save(tmp_path / "record.npz"))
    assert mean_score(loaded) == mean_score(record)
    assert mean_score(loaded, "final") == mean_score(record, "final")
    old = with_others(loaded)
    assert without_others(old) is old
    assert mean_score(old) == mean_score(record, raw=True)
    mended = measure_others(old)
    assert mean_score(mended) == pytest.approx(mean_score(record), rel=1e-12)
    strange = dataclasses.replace(
        old, provenance=dataclasses.replace(old.provenance, seeds={"limit": 1})
    )
    with pytest.raises(ValueError, match="canary seed"):
        measure_others(strange)


def test_an_optimizer_that_cannot_be_undone_leaves_the_final_model_raw():
    auditor = RunAuditor(4, 3, seed=SEED, delta=1e-5, server="median")
    auditor.begin(np.zeros(DIM))
    canaries = CanarySet(DIM, 4, SEED).vectors(range(4)).sum(axis=0).astype(float)
    auditor.observe(canaries + np.ones(DIM) / 30, RoundFacts([0, 1, 2, 3]))
    record = auditor.record()
    assert record.norms.part is None
    assert mean_score(record, "final") == mean_score(record, "final", raw=True)
    assert mean_score(record) > 1.1 * mean_score(record, raw=True)


def test_a_part_that_no_float_can_hold_is_left_in():
    record = with_others(recorded(200)[0])
    mechanism = dataclasses.replace(record.mechanism, contributions=np.full(record.rounds, 1e200))
    assert measure_others(dataclasses.replace(record, mechanism=mechanism)).norms.part == 0.0
