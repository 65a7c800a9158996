"""The laws that an estimate rests on where it tests a claim, and the power that is stated."""

import math

import numpy as np
import pytest
import scipy

from fl_epe.accounting import epsilon_of_shift, poisson_epsilon
from fl_epe.auditing import (
    EarlyStop,
    Scores,
    Undecided,
    answer,
    assert_private,
    evidence_against_theory,
    find_evidence,
    scores_for_claim,
)
from fl_epe.auditing.answer.audited_client import (
    AuditedClient,
    claim_adversary,
    hidden_events,
)
from fl_epe.auditing.bounds import lower_bound
from fl_epe.auditing.claims.laws import (
    MIN_BARE_SCORES,
    epsilon_of_one_variance,
    laws_of_scores,
    power_of_bound,
    power_of_estimate,
    sampling_p_value,
)
from fl_epe.limit import limit_record
from fl_epe.reporting import summarize
from fl_epe.schedules import Poisson, ShuffledEpochs, make_schedule

DELTA = 1e-5


def _shifted(shift, count, seed, others=None):
    rng = np.random.default_rng((29, seed))
    others = count if others is None else others
    return Scores(rng.normal(shift, 1, count), rng.normal(0, 1, others))


def _poisson(z, *, seed=0, claimed=1.0, rounds=60, rate=0.05, canaries=1000):
    """DP-SGD with Poisson sampling that claims another noise multiplier."""
    record = limit_record(
        Poisson(rounds, rate),
        z,
        DELTA,
        num_canaries=canaries,
        unobserved=250,
        seed=seed,
    )
    return record.with_values(
        noise_multiplier=claimed, sum_noise_multiplier=claimed
    )


# The estimate of bare scores.


def test_one_variance_estimates_the_shift():
    scores = _shifted(1.0, 5000, 0)
    found = epsilon_of_one_variance(scores, DELTA, 0.99)
    assert found.low < float(epsilon_of_shift(1.0, DELTA)) < found.high
    assert found.high < 1.2 * found.low
    same = epsilon_of_one_variance(
        Scores(3e200 * scores.observed, 3e200 * scores.unobserved), DELTA, 0.99
    )
    assert same.epsilon == pytest.approx(found.epsilon, rel=1e-12)
    flat = epsilon_of_one_variance(Scores(np.ones(5), np.zeros(5)), DELTA, 0.99)
    assert (flat.epsilon, flat.low, flat.high) == (math.inf, 0.0, math.inf)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.3, 2.0])
def test_each_end_of_its_interval_keeps_its_level(shift):
    truth, runs, level = float(epsilon_of_shift(shift, DELTA)), 400, 0.05
    ends = [
        (found.low > truth, found.high < truth)
        for seed in range(runs)
        if (
            found := epsilon_of_one_variance(
                _shifted(shift, 200, seed), DELTA, 1 - 2 * level
            )
        )
    ]
    most = runs * (level + 3 * math.sqrt(level * (1 - level) / runs))
    assert max(np.sum(ends, axis=0)) <= most


# The laws of bare scores.


def test_too_few_scores_are_no_test_of_their_law():
    few = laws_of_scores(_shifted(1.0, MIN_BARE_SCORES // 2 - 1, 0), "weighted")
    assert (
        few.objection
        == "fewer than 2000 scores cannot tell whether they are Gaussian"
    )
    assert not laws_of_scores(
        _shifted(1.0, MIN_BARE_SCORES // 2, 0), "weighted"
    ).objection


@pytest.mark.parametrize(
    "law", ["laplace", "logistic", "standard_t", "uniform"]
)
def test_laws_that_are_not_gaussian_are_rejected_by_as_many_as_are_asked_for(
    law,
):
    arguments = (5.0,) if law == "standard_t" else ()
    rejected = 0
    for seed in range(20):
        rng = np.random.default_rng((31, seed))
        draw = getattr(rng, law)
        count = MIN_BARE_SCORES // 2
        scores = Scores(
            draw(*arguments, size=count) + 1, draw(*arguments, size=count)
        )
        rejected += bool(laws_of_scores(scores, "weighted").objection)
    assert rejected >= 19


def test_another_variance_of_observed_scores_is_an_objection():
    scores = _shifted(1.0, 1000, 0)
    wider = Scores(1.3 * scores.observed, scores.unobserved)
    assert laws_of_scores(wider, "weighted").objection.startswith(
        ("observed scores have 1.", "the scores are not Gaussian")
    )


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_laplace_mechanism_at_its_claim_is_not_accused(epsilon):
    for count in (30, 100, 1000):
        for seed in range(8):
            rng = np.random.default_rng((37, seed))
            draws = (
                rng.laplace(mean, 1 / epsilon, count) for mean in (1.0, 0.0)
            )
            assert not find_evidence(
                Scores(*draws), epsilon, DELTA, power=False
            ).violated


# The law of participations.


def _sampling(record):
    return sampling_p_value(record, hidden_events(record))


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    [
        Poisson(60, 0.05),
        Poisson(100, 0.01),
        make_schedule("fixed-size", 60, 6),
        make_schedule("balls-in-bins", 60, 6),
    ],
    ids=["poisson", "once", "fixed-size", "balls-in-bins"],
)
def test_participations_by_their_law_are_not_rejected(schedule):
    found = [
        _sampling(
            limit_record(
                schedule, 1.0, DELTA, num_canaries=200, unobserved=2, seed=seed
            )
        )
        for seed in range(60)
    ]
    assert min(found) > 0.001


def test_participations_by_another_law_are_rejected():
    record = _poisson(1.0)
    rng = np.random.default_rng(1)
    shape = record.presence.shape
    whole = np.zeros(shape, bool)
    for start in range(0, 60, 20):  # once in each epoch
        whole[
            rng.integers(start, start + 20, shape[1]), np.arange(shape[1])
        ] = True
    bursts = (
        rng.random(shape) < np.where(np.arange(60) % 2, 0.02, 0.08)[:, None]
    )
    classes = rng.random(shape) < np.where(np.arange(shape[1]) % 2, 0.02, 0.08)
    other_laws = {
        "rarer": rng.random(shape) < 0.04,
        "more often": rng.random(shape) < 0.06,
        "epochs": whole,
        "bursts": bursts,
        "classes": classes,
    }
    for name, presence in other_laws.items():
        assert _sampling(record.with_values(presence=presence)) < 0.001, name
    bins = limit_record(
        make_schedule("balls-in-bins", 60, 6),
        1.0,
        DELTA,
        num_canaries=20,
        unobserved=2,
    )
    twice = bins.presence.copy()
    twice[:2, 0] = True
    assert _sampling(bins.with_values(presence=twice)) == 0


def test_members_at_secret_rounds_are_scored_in_all_rounds():
    """Scores that were kept during a run may be of a canary's own rounds alone."""
    record = _poisson(0.5)
    kept = record.with_values(
        **{
            "running.scores": np.where(
                record.presence,
                math.sqrt(record.dim) * record.observed.means,
                0.0,
            ),
            "running.signals": 2.0 * record.presence,
        }
    )
    found = [scores_for_claim(one) for one in (record, kept)]
    assert np.allclose(found[0].observed, found[1].observed)
    assert lower_bound(found[1], DELTA, confidence=0.99, method="weighted") > 4


# Verdicts about records.


@pytest.mark.slow
def test_too_little_noise_is_a_violation_whatever_proves_it():
    claim = poisson_epsilon(1.0, 0.05, 60, DELTA)
    record = _poisson(0.9, seed=1)
    evidence = find_evidence(record, claim, DELTA)
    assert not evidence.refuted_by_bound
    assert evidence.refuted_by_estimate
    assert evidence.verdict == "violated"
    assert (
        "violated, if the noise is Gaussian and sampling is as recorded"
        in str(evidence)
    )
    with pytest.raises(AssertionError, match="violated"):
        assert_private(record, claim, DELTA)


@pytest.mark.slow
def test_a_run_as_private_as_its_claim_or_more_is_not_violated():
    claim = poisson_epsilon(1.0, 0.05, 60, DELTA)
    evidence = assert_private(_poisson(1.0), claim, DELTA)
    assert evidence.verdict == "not violated"
    assert evidence.power is not None
    assert evidence.power > 0.99
    assert assert_private(_poisson(1.3), claim, DELTA).verdict == "not violated"


@pytest.mark.slow
def test_a_law_that_was_rejected_refutes_nothing():
    claim = poisson_epsilon(1.0, 0.05, 60, DELTA)
    record = _poisson(0.9, seed=1)
    estimate = answer(record, claim_adversary(record), DELTA, 0.99).estimate
    changes = {
        "clients add noise": {"findings.clients_add_noise": True},
        "ended the run by its scores": {
            "findings.stopped": EarlyStop(60, estimate)
        },
        "do not follow the recorded law": {
            "participation": Poisson(60, 2.5 / 60).law(100)
        },
    }
    for words, change in changes.items():
        evidence = find_evidence(record.with_values(**change), claim, DELTA)
        assert words in evidence.laws.objection
        assert evidence.verdict == "undecided"


def test_few_nodes_and_rounds_leave_a_claim_undecided():
    record = limit_record(
        ShuffledEpochs(60, 60), 6.0, DELTA, num_canaries=3, unobserved=250
    )
    truth = answer(record, claim_adversary(record), DELTA).analytical.epsilon
    assert truth is not None
    for claim in (truth, truth / 2):
        evidence = find_evidence(record, claim, DELTA)
        assert evidence.verdict == "undecided"
        assert evidence.power is not None
        assert evidence.power < 0.8
        with pytest.raises(
            Undecided, match=r"undecided: .*use more canaries, rounds or trials"
        ):
            assert_private(record, claim, DELTA)
        assert (
            assert_private(record, claim, DELTA, allow_undecided=True)
            == evidence
        )


def test_what_nobody_saw_is_not_judged():
    claim = poisson_epsilon(1.0, 0.05, 60, DELTA)
    record = _poisson(1.0).with_values(
        **{"findings.unchecked_assumptions": ("clipping in 60 of 60 steps",)}
    )
    with pytest.raises(
        Undecided, match="not judged: nobody saw clipping in 60 of 60 steps"
    ):
        assert_private(record, claim, DELTA)
    evidence = assert_private(record, claim, DELTA, allow_unseen=True)
    assert evidence.verdict == "not judged"
    with pytest.raises(AssertionError, match="violated"):
        assert_private(record, claim / 2, DELTA, allow_unseen=True)


@pytest.mark.slow
def test_a_fault_is_no_pass():
    record = _poisson(1.0).with_values(
        **{"findings.mechanism_faults": ("the noise is not as claimed",)}
    )
    with pytest.raises(
        AssertionError, match="fault     the noise is not as claimed"
    ):
        assert_private(record, 3.0, DELTA)
    assert find_evidence(record, 3.0, DELTA, power=False).verdict == "faulty"


# The report reads the same verdict.


@pytest.mark.slow
def test_report_and_assertion_agree():
    for z, status in ((1.0, "ok"), (0.9, "faulty")):
        record = _poisson(z, seed=1)
        adversary = claim_adversary(record)
        summary = summarize(record)
        against = evidence_against_theory(record, adversary, DELTA)
        assert against.violated == (status == "faulty")
        codes = {one.code for one in summary.warnings}
        assert ("exceeds-theory" in codes) == (status == "faulty")
        client = AuditedClient.of(record, adversary, worst_case=True)
        assert against.participations == client.participations
    no_noise = record.with_values(noise_multiplier=0.0)
    assert evidence_against_theory(no_noise, adversary, DELTA) is None


@pytest.mark.slow
def test_a_decay_that_the_audit_was_not_told_is_named():
    record = limit_record(
        ShuffledEpochs(60, 12), 1.0, DELTA, num_canaries=100, unobserved=250
    )
    told = summarize(record)
    assert "strength" not in {one.code for one in told.warnings}
    decays = 0.95 ** np.arange(60)
    untold = record.with_values(**{"norms.means": decays * record.norms.means})
    (warning,) = [
        one for one in summarize(untold).warnings if one.code == "strength"
    ]
    assert "times the expected ones" in warning.text
    assert "learning rate decays" in warning.text
    assert summarize(untold).status != "ok"


def test_a_run_that_takes_back_a_part_of_what_canaries_add_can_be_relied_on():
    record = limit_record(
        ShuffledEpochs(60, 12), 1.0, DELTA, num_canaries=100, unobserved=250
    )
    said = record.with_values(**{"norms.means": 1.2 * record.norms.means})
    found = {one.code: one.text for one in summarize(said).warnings}
    assert "strength" not in found
    assert "reverses a part" in found["caveat"]


# Power.


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "count"), [(0.4, 150), (1.0, 100)])
def test_the_power_of_an_estimate_is_what_is_stated(shift, count):
    claim = float(epsilon_of_shift(shift, DELTA))
    twice = scipy.optimize.brentq(
        lambda s: float(epsilon_of_shift(s, DELTA)) - 2 * claim, 0, 9
    )
    stated = power_of_estimate(
        epsilon_of_one_variance(_shifted(shift, count, 0), DELTA, 0.99), claim
    )
    runs = 250
    refuted = sum(
        epsilon_of_one_variance(_shifted(twice, count, seed), DELTA, 0.99).low
        > claim
        for seed in range(runs)
    )
    assert (
        abs(refuted / runs - stated) < 0.09
    )  # three standard errors; the stated one varies with its own run


@pytest.mark.slow
def test_the_power_of_a_bound_is_about_what_is_stated():
    claim, count, runs = 1.5, 500, 30
    likely = Scores(np.arange(float(count)), np.arange(float(count)))
    stated = power_of_bound(likely, DELTA, claim, 0.995, "weighted")
    twice = scipy.optimize.brentq(
        lambda s: float(epsilon_of_shift(s, DELTA)) - 2 * claim, 0, 9
    )
    bounds = [
        lower_bound(
            _shifted(twice, count, seed),
            DELTA,
            confidence=0.995,
            method="weighted",
        )
        for seed in range(runs)
    ]
    found = sum(bound > claim for bound in bounds) / runs
    assert abs(found - stated) < 0.05 + 3 * math.sqrt(
        max(found * (1 - found), 0.01) / runs
    )
    assert power_of_bound(likely, 0.0, 1.0, 0.995, "weighted") > 0.9
    assert power_of_bound(likely, DELTA, 50.0, 0.995, "weighted") == 0
