"""ε for one canary among real clients: the other canaries are projected out of the residual."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy import stats

from fl_epe import CanarySet, RoundFacts, RunAuditor, epsilon_from_record
from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing import (
    EVERY_ROUND,
    Adversary,
    AuditRecord,
    answers,
    epsilon_of,
    ladder_fit,
    others_share,
    scores_of,
    seen_by,
)
from fl_epe.auditing.estimate.confidence_sequence import boundary
from fl_epe.auditing.scoring.leave_one_out import (
    keep_all_canaries,
    leave_one_out,
    measure_others,
    project_out,
)
from fl_epe.mechanism import ServerSGD

DIM = 3000
ROUNDS = 5
UNOBSERVED = 60
SEED = 4
NOISE = {  # the noise of `audited`, in the fields of a record
    "sum_noise_multiplier": 1.0,
    "cohort_size": 1.0,
    "clip_norms": np.full(ROUNDS, 1 / np.sqrt(DIM)),
}
SHIFT = 6.0  # √d times the norm of a canary's share, over that of its residual


def audited(count, times=1, server=ServerSGD(), told=1.0, shift=SHIFT):  # noqa: B008
    """A run whose every mean is ``hidden + Σ canaries``, and the shift of each canary's score."""
    auditor = RunAuditor(
        count, UNOBSERVED, seed=SEED, delta=1e-5, server=server
    )
    canaries = CanarySet(DIM, count, SEED).vectors(range(count)).astype(float)
    rng = np.random.default_rng(1)
    presence = np.array(
        [rng.permutation(ROUNDS) < times for _ in range(count)]
    ).T
    added = shift / np.sqrt(DIM)
    theta = np.zeros(DIM)
    auditor.begin(theta)
    state = server.init(DIM)
    shifts = np.zeros(ROUNDS)
    for t in range(ROUNDS):
        hidden = rng.standard_normal(DIM) / np.sqrt(DIM)
        shifts[t] = shift / np.sqrt(hidden @ hidden + added**2)
        state, step = server.update(
            state, hidden + added * canaries[presence[t]].sum(axis=0), t
        )
        theta = theta + step
        auditor.observe(
            theta,
            RoundFacts(np.flatnonzero(presence[t]).tolist(), told * added),
        )
    return auditor, np.sqrt(shifts**2 @ presence)


@functools.cache
def recorded(*arguments, **settings):
    """The record of such a run, and the shift of each canary's score."""
    auditor, shifts = audited(*arguments, **settings)
    return auditor.record(), shifts


def mean_score(record, sees="all", *, raw=False):
    statistic = {"all": "matched-filter", "final": "displacement"}[sees]
    view = seen_by(record, Adversary(sees))
    if raw:
        view = view.with_all_canaries
    return scores_of(view, statistic).observed.mean()


@pytest.mark.parametrize("count", [2, 7])
def test_the_sum_is_taken_out_and_each_canary_put_back(count):
    rng = np.random.default_rng(count)
    vectors = rng.standard_normal((count + 3, 50))
    mean = rng.standard_normal(50)
    vectors /= np.linalg.norm(vectors, axis=1)[:, None]
    own = np.r_[rng.random(count) + 0.5, np.zeros(3)]  # three took no part
    total = own @ vectors
    dots, length, share = project_out(
        vectors @ mean,
        vectors @ total,
        own,
        mean @ mean,
        mean @ total,
        total @ total,
    )
    rest = mean - total * (mean @ total) / (total @ total)
    assert rest @ total == pytest.approx(0, abs=1e-9)
    assert length == pytest.approx(np.linalg.norm(rest))
    wanted = [
        vector @ (rest + share * own * vector)
        for vector, own in zip(vectors, own, strict=True)
    ]
    np.testing.assert_allclose(dots, wanted)


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
def test_scores_are_those_of_one_canary_however_many_there_are(
    count, times, server
):
    record, shifts = recorded(count, times, server)
    # A mean of scores has the error 1/√k; 3 of them, and 1% for cosines that the others share.
    error = 3 / np.sqrt(count) + 0.01 * shifts.mean()
    assert mean_score(record) == pytest.approx(shifts.mean(), abs=error)
    fit = ladder_fit(seen_by(record, EVERY_ROUND), confidence=0.999)
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
    assert ladder_fit(seen_by(found[600]), confidence=0.999).low < 1.01
    assert mean_score(found[600], "final", raw=True) < 0.8 * few


def test_unobserved_scores_stay_standard_normal():
    record = recorded(600)[0]
    for sees, statistic in (
        ("all", "matched-filter"),
        ("final", "displacement"),
    ):
        unobserved = scores_of(
            seen_by(record, Adversary(sees)), statistic
        ).both()[1]
        assert len(unobserved) == UNOBSERVED
        assert stats.kstest(unobserved, "norm").pvalue > 0.01  # of one seed


@pytest.mark.parametrize("told", [0.5, 2.0, np.nan])
def test_what_the_others_added_is_measured_and_not_assumed(told):
    right = recorded(200)[0]
    wrong = recorded(200, told=told)[0]
    assert wrong.signal_known() == np.isfinite(told)
    assert mean_score(wrong) == pytest.approx(mean_score(right), rel=1e-9)
    # Unknown contributions are replaced by measured ones, which differ a little between rounds.
    rel = 1e-9 if np.isfinite(told) else 0.01
    final = mean_score(right, "final")
    assert mean_score(wrong, "final") == pytest.approx(final, rel=rel)


def test_what_cannot_hide_a_canary_changes_nothing():
    record = recorded(20, shift=0.3)[0]
    assert others_share(record).max() < 1e-3
    alone, raw = (
        each.observed.means for each in (leave_one_out(record), record)
    )
    few = (
        record.presence.sum(axis=1) * (raw**2 * record.presence).mean(axis=1)
        < 1e-4
    )
    assert few.any()
    np.testing.assert_array_equal(alone[few], raw[few])
    record = recorded(100, shift=2.0)[
        0
    ]  # others are 2.5%: the score rises by half of it
    share = others_share(record).mean()
    assert 0.015 < share < 0.035
    ratio = mean_score(record) / mean_score(record, raw=True)
    assert ratio == pytest.approx(1 / np.sqrt(1 - share), abs=0.03)


def test_the_running_estimate_is_the_reports():
    auditor = audited(200, 3, ServerSGD(0.5, 0.9))[0]
    last = auditor.epsilon_so_far()
    record = auditor.record(**NOISE)
    assert last.epsilon == pytest.approx(
        answers(record)[1].estimate.epsilon, rel=1e-3
    )
    found = epsilon_from_record(record, adversary=EVERY_ROUND)
    assert last.low < found.low < found.high < last.high  # as it may be watched
    # Nobody said how many participations were planned. The lower end allows for the error with
    # which it is known that rounds do not agree.
    assert last.high - last.epsilon < 1.75 * (found.high - found.epsilon)
    # which adds to the error of the upper end as squares do, at most 5% of the value
    above = last.high - last.epsilon
    assert last.epsilon - last.low < math.hypot(above, 0.05 * last.epsilon)
    assert (
        found.epsilon
        > 1.2
        * epsilon_from_record(
            record, adversary=EVERY_ROUND, leave_one_out=False
        ).epsilon
    )


@pytest.mark.parametrize("sees", ["all", "final"])
def test_expected_score_regression_is_as_wide_as_the_mean_score_where_expected_scores_are_equal(
    sees,
):
    record = audited(600, 5)[0].record(**NOISE)  # all of them in all rounds
    view = seen_by(record, Adversary(sees))
    scores = scores_of(view)
    assert scores.spread > 1.5
    for error in (0.0, 0.03):
        one = dataclasses.replace(scores, unit_error=error)
        view.computed_scores[
            {"all": "matched-filter", "final": "displacement"}[sees]
        ] = one
        mean = epsilon_of(one, record.delta)
        fit = ladder_fit(view)
        shifts = (
            np.array([fit.low, fit.scale, fit.high])
            * one.unit
            * view.expected_scores.observed.mean()
        )
        assert epsilon_two_gaussians(
            0, 1, shifts, 1, record.delta
        ).tolist() == pytest.approx(
            [mean.low, mean.epsilon, mean.high], rel=1e-6
        )


def test_the_interval_so_far_knows_that_a_round_moves_all_its_scores_together():
    auditor, shifts = audited(600)  # 120 a round
    so_far = auditor._so_far
    energy = so_far._energy
    # Each round's length has the relative variance 1/(2d), and moves the sum of 120 scores of 6.
    wanted = 1 + 120 * np.mean(shifts**2) / (2 * DIM)
    assert wanted > 1.6
    assert so_far._variance / energy == pytest.approx(wanted, rel=0.05)
    _, (mean, low, high) = so_far._signal_and_scales(0.95)
    plain = (
        boundary(
            energy,
            0.025,
            100.0 * so_far._first_variance / wanted,
            planned=False,
        )
        / energy
    )
    assert low < mean < high
    assert high - low == pytest.approx(2 * np.sqrt(wanted) * plain, rel=0.05)


def test_a_restored_auditor_watches_with_the_same_interval():
    auditor = audited(600)[0]
    again = RunAuditor(
        600, UNOBSERVED, seed=SEED, delta=1e-5, server=ServerSGD()
    )
    start = np.zeros(DIM)
    last = auditor._last
    again.restore(auditor.state(), ROUNDS, start=start, last=last)
    assert again.epsilon_so_far() == auditor.epsilon_so_far()


def test_canaries_alone_have_a_cosine_of_one():
    auditor = RunAuditor(3, 2, seed=SEED, delta=1e-5)
    canaries = CanarySet(DIM, 3, SEED)
    auditor.begin(np.zeros(DIM))
    auditor.observe(
        sum(canaries.vector(i).astype(float) for i in range(3)),
        RoundFacts([0, 1, 2]),
    )
    cosines = leave_one_out(auditor.record()).observed.means
    # The other two are taken out as one sum; their difference is left, of length about 0.04 / d.
    np.testing.assert_allclose(cosines, 1, atol=0.01)


def test_records_keep_it_and_without_it_all_canaries_stay_in(tmp_path):
    record = recorded(200)[0]
    assert leave_one_out(leave_one_out(record)).norms.canary_sums is None
    loaded = AuditRecord.load(record.save(tmp_path / "record.npz"))
    assert mean_score(loaded) == mean_score(record)
    assert mean_score(loaded, "final") == mean_score(record, "final")
    old = keep_all_canaries(loaded)
    assert leave_one_out(old) is old
    assert mean_score(old) == mean_score(record, raw=True)


def test_an_optimizer_that_cannot_be_undone_leaves_the_final_model_raw():
    auditor = RunAuditor(4, 3, seed=SEED, delta=1e-5, server="median")
    auditor.begin(np.zeros(DIM))
    canaries = (
        CanarySet(DIM, 4, SEED).vectors(range(4)).sum(axis=0).astype(float)
    )
    auditor.observe(canaries + np.ones(DIM) / 30, RoundFacts([0, 1, 2, 3]))
    record = auditor.record()
    assert record.norms.canary_displacement is None
    assert mean_score(record, "final") == mean_score(record, "final", raw=True)
    assert mean_score(record) > 1.1 * mean_score(record, raw=True)


def test_a_part_that_no_float_can_hold_is_left_in():
    record = keep_all_canaries(recorded(200)[0])
    mechanism = dataclasses.replace(
        record.mechanism, contributions=np.full(record.rounds, 1e200)
    )
    record = dataclasses.replace(record, mechanism=mechanism)
    assert (
        measure_others(
            record, CanarySet(DIM, 200 + UNOBSERVED, SEED)
        ).norms.canary_displacement
        == 0.0
    )
