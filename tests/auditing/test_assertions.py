"""A privacy claim as a test: who is accused, who is not, and which tests are refused."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from records import make_record

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    AuditedClient,
    NotMeasured,
    RoundCorrelation,
    Scores,
    Undecided,
    analytical,
    assert_private,
    epsilon_from_record,
    epsilon_lower_bound,
    find_evidence,
    scores_of,
    seen_by,
)
from fl_epe.auditing.bounds import BOUNDS, ceiling, lower_bound
from fl_epe.auditing.claims.evidence import Evidence, run_scores
from fl_epe.auditing.claims.laws import laws_of_scores
from fl_epe.conformance.games import play
from fl_epe.limit import limit_record
from fl_epe.schedules import Poisson, ShuffledEpochs

DELTA = 1e-2
CLIP = 2.0
OTHERS = np.array([[3.0, 4.0, 0.0], [0.1, -0.2, 0.3]])
CANARY = np.array([0.0, 0.0, 50.0])
VALID = [name for name, bound in BOUNDS.items() if bound.valid]


def _gaussian(multiplier):
    """ε of one Gaussian mechanism."""
    return float(epsilon_two_gaussians(0, 1, 1 / multiplier, 1, DELTA))


def _aggregate(multiplier, seed, drift=0.0, clip=CLIP):
    """Clipped sum plus noise of ``multiplier·CLIP``; each call adds a little more ``drift``."""
    rng, calls = np.random.default_rng(seed), [0]

    def aggregate(updates):
        calls[0] += 1
        clipped = [
            u * min(1.0, clip / max(np.linalg.norm(u), 1e-12)) for u in updates
        ]
        noise = multiplier * CLIP * rng.standard_normal(len(updates[0]))
        return np.sum(clipped, axis=0) + noise + drift * calls[0]

    return aggregate


def _play(multiplier, seed, trials=400, **options):
    aggregate = _aggregate(
        multiplier, 1000 + seed, **options
    )  # not the game's own stream
    return play(aggregate, OTHERS, CANARY, trials=trials, seed=seed)


def _two_groups(shift, count=300, seed=0):
    rng = np.random.default_rng(seed)
    return Scores(rng.normal(shift, 1, count), rng.normal(0, 1, count))


# The result.


@pytest.mark.slow
def test_right_aggregate_passes_at_its_claim():
    for seed in range(4):
        evidence = assert_private(
            _play(1.5, seed, trials=2000), _gaussian(1.5), DELTA
        )
        assert evidence.verdict == "not violated"


def test_right_aggregate_with_few_trials_is_undecided():
    for method in (
        None,
        "clopper-pearson",
    ):  # whose law so few scores do not tell
        evidence = find_evidence(
            _play(1.5, 0), _gaussian(1.5), DELTA, method=method
        )
        assert evidence.verdict == "undecided"
    told = assert_private(_play(1.5, 0), _gaussian(1.5), DELTA, method="gdp")
    assert told.power is not None
    assert told.power > 0.95


@pytest.mark.slow
def test_aggregate_with_half_the_noise_is_found_out():
    with pytest.raises(AssertionError, match="violated"):
        assert_private(_play(0.75, 0), _gaussian(1.5), DELTA, method="gdp")
    with pytest.raises(AssertionError, match="violated"):
        assert_private(_play(0.75, 1, trials=4000), _gaussian(1.5), DELTA)


def test_aggregate_without_clipping_or_without_noise_is_found_out():
    for scores in (_play(1.5, 0, clip=np.inf), _play(0.0, 0)):
        with pytest.raises(AssertionError, match="violated"):
            assert_private(scores, _gaussian(1.5), DELTA)


@pytest.mark.parametrize("participations", [1, 4])
def test_record_with_half_the_noise_is_found_out(participations):
    schedule = ShuffledEpochs(20, participations)
    claim = _gaussian(1 / math.sqrt(participations))
    honest, false = (
        limit_record(
            schedule, z, DELTA, num_canaries=500, unobserved=500, seed=3
        )
        for z in (1, 0.5)
    )
    assert not assert_private(honest, claim, DELTA, method="gdp").violated
    with pytest.raises(AssertionError, match="violated"):
        assert_private(false, claim, DELTA, method="gdp")


def _tight_scores(method, epsilon, rng):
    """200 scores of a mechanism of just that ε, of the kind that ``method`` is sharpest for."""
    if (
        method == "gdp"
    ):  # Gaussians; 0.5 is the shift of 1/0.5 as a noise multiplier
        return Scores.from_cosines(rng.normal(0.5, 1, 200) / 1e4, 10**8)
    tell = 1 / (1 + math.exp(-epsilon))  # all that ε allows sits in one bit
    return Scores(
        *(
            (rng.random(200) < p) + 0.1 * rng.random(200)
            for p in (tell, 1 - tell)
        )
    )


@pytest.mark.weekly
@pytest.mark.parametrize("method", ["gdp", "clopper-pearson"])
def test_false_alarms_are_as_rare_as_the_confidence_says(method):
    claim, delta = (
        (_gaussian(1 / 0.5), DELTA) if method == "gdp" else (1.0, 1e-9)
    )
    runs = 300
    alarms = 0
    for run in range(runs):
        scores = _tight_scores(method, claim, np.random.default_rng((11, run)))
        alarms += find_evidence(scores, claim, delta, method=method).violated
    # 1 − confidence, and three standard errors of a share of 300 runs: 8 alarms.
    assert alarms <= runs * (0.01 + 3 * math.sqrt(0.01 * 0.99 / runs))


# The evidence.


@pytest.mark.parametrize("dim", [None, 10**6])
def test_evidence_is_what_bound_and_estimate_say(dim):
    scores = _two_groups(1.0)
    if dim:
        scores = Scores.from_cosines(scores.observed / math.sqrt(dim), dim)
    evidence = find_evidence(scores, 0.25, DELTA, 0.9, method="gdp")
    given = scores.cosines if dim else scores.observed
    expected = epsilon_lower_bound(
        given, scores.unobserved, DELTA, dim=dim, confidence=0.95, method="gdp"
    )
    assert evidence.lower_bound == expected > 0.25
    assert evidence.violated
    assert evidence.estimate is not None
    assert (
        evidence.estimate.low
        < evidence.estimate.epsilon
        < evidence.estimate.high
    )
    assert evidence.estimate.confidence == evidence.confidence == 0.9
    assert ("known variance" in evidence.estimate.method) == bool(dim)
    assert (evidence.observed, evidence.unobserved) == (300, 0 if dim else 300)
    assert evidence.assumption == BOUNDS["gdp"].assumption
    assert evidence.proof_confidence == 0.95
    least = max(expected, evidence.estimate.low)
    assert not dataclasses.replace(evidence, claimed=least).violated


def test_failure_shows_all_the_evidence():
    with pytest.raises(AssertionError) as failure:
        assert_private(_two_groups(3.0), 0.321, DELTA, 0.975)
    text = str(failure.value)
    evidence = find_evidence(_two_groups(3.0), 0.321, DELTA, 0.975)
    assert text == str(evidence)
    assert len(text.splitlines()) == 5
    found = evidence.estimate
    assert found is not None
    for number in (
        0.321,
        DELTA,
        found.epsilon,
        found.low,
        found.high,
        evidence.lower_bound,
    ):
        assert f"{number:.4g}" in text
    for words in (
        "97.5%",
        "98.75%",
        "clopper-pearson",
        evidence.assumption,
        "300 observed against 300",
    ):
        assert words in text
    assert text.endswith("violated: proved, whatever the law of the noise")


def test_pass_shows_what_would_have_been_found():
    cosines = Scores.from_cosines(_two_groups(0.0).observed / 1e3, 10**6)
    cosines = dataclasses.replace(cosines, statistic="of my own")
    text = str(assert_private(cosines, 1.0, DELTA, method="gdp"))
    assert "300 observed against the exact null: of my own" in text
    assert text.endswith(
        "not violated; an ε twice as large would be found in 100% of such runs"
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", VALID)
@pytest.mark.parametrize("counts", [(60, 60), (100, 30)])
def test_no_scores_pass_the_ceiling(method, counts):
    rng = np.random.default_rng(5)
    for shift in (3.0, 10.0, 1e3, 1e9):
        scores = Scores(
            rng.normal(shift, 1, counts[0]), rng.normal(0, 1, counts[1])
        )
        evidence = find_evidence(scores, 1.0, 1e-5, method=method)
        largest = ceiling(scores, 1e-5, evidence.proof_confidence, method)
        assert 0 <= evidence.lower_bound <= largest + 1e-9
    assert largest < math.inf
    if not BOUNDS[method].gaussian:
        ties = Scores(np.full(counts[0], 1.0), np.zeros(counts[1]))
        assert (
            find_evidence(ties, 1.0, 1e-5, method=method).lower_bound <= largest
        )


@pytest.mark.parametrize(
    "method", ["clopper-pearson", "simultaneous", "weighted", "gdp"]
)
def test_no_cosines_pass_the_ceiling(method):
    rng = np.random.default_rng(6)
    for shift in (1.0, 4.0, 30.0):
        cosines = np.minimum(rng.normal(shift, 1, 100) / 30, 1.0)
        scores = Scores.from_cosines(cosines, 900)
        evidence = find_evidence(scores, 1.0, 1e-5, method=method)
        largest = ceiling(scores, 1e-5, evidence.proof_confidence, method)
        assert 0 <= evidence.lower_bound <= largest + 1e-9


def test_noise_that_is_the_same_in_every_call_hides_nothing():
    scores = _play(0.0, 0, trials=50)
    evidence = find_evidence(scores, 1.0, DELTA)
    assert evidence.lower_bound == ceiling(
        scores, DELTA, evidence.proof_confidence, evidence.method
    )
    assert evidence.violated


def test_no_noise_at_all_never_passes():
    scores = _play(0.0, 0, trials=50)
    with pytest.raises(
        NotMeasured, match=r"without any spread .* method='gdp'"
    ):
        assert_private(scores, 30.0, DELTA, method="gdp")
    with pytest.raises(Undecided, match=r"undecided: .* in 0% of such runs"):
        assert_private(scores, 30.0, DELTA)


@pytest.mark.parametrize("method", VALID)
@pytest.mark.parametrize(
    "values", [(1.0, 1.0), (0.0, 1.0)], ids=["equal", "reversed"]
)
def test_scores_that_say_nothing_do_not_pass(method, values):
    observed, unobserved = (np.full(200, value) for value in values)
    scores = Scores(observed, unobserved, statistic="of my own")
    for call in (find_evidence, assert_private):
        with pytest.raises(
            NotMeasured, match=r"score \(of my own\) is .* cancels it"
        ):
            call(scores, 0.1, 1e-6, method=method)


def test_cosines_without_noise():
    assert find_evidence(
        Scores.from_cosines(np.ones(50), 10**6), 1.0, DELTA
    ).violated
    with pytest.raises(
        NotMeasured, match="is 0 for every observed canary: no canary reached"
    ):
        assert_private(Scores.from_cosines(np.zeros(50), 10**6), 1.0, DELTA)


# Mechanisms that are not Gaussian, and pure DP.


def _laplace(epsilon, count, seed):
    """Scores of the Laplace mechanism with that ε."""
    rng = np.random.default_rng(seed)
    return Scores(
        *(rng.laplace(mean, 1 / epsilon, count) for mean in (1.0, 0.0))
    )


@pytest.mark.parametrize("method", ["gdp"])
def test_noise_that_is_not_gaussian_is_not_convicted_as_if_it_were(method):
    """At ε = 1 the bound is above 2, and the scores refute what they assume."""
    for seed in range(20):
        evidence = find_evidence(
            _laplace(1.0, 400, seed), 1.0, 1e-5, method=method
        )
        assert evidence.lower_bound > 1.5
        assert evidence.estimate.low > 1.0
        assert evidence.laws.objection.startswith(
            "the scores are not Gaussian (p = "
        )
        assert evidence.verdict == "undecided"
    with pytest.raises(
        Undecided, match="by the bound alone, as the scores are not Gaussian"
    ):
        assert_private(_laplace(1.0, 400, 0), 1.0, 1e-5, method=method)


def test_a_conviction_says_that_it_assumes_gaussian_noise():
    evidence = find_evidence(_two_groups(3.0), 1.0, DELTA, method="gdp")
    assert (
        "result    violated, if the noise is Gaussian (Anderson–Darling: p = "
        in str(evidence)
    )
    few = find_evidence(_two_groups(30.0, count=50), 1.0, DELTA, method="gdp")
    assert few.lower_bound > 1.0
    assert (
        few.verdict == "undecided"
    )  # a law that was not tested refutes nothing


@pytest.mark.slow
def test_the_law_of_a_gaussian_mechanism_is_rarely_rejected():
    runs = 400
    rejected = sum(
        bool(laws_of_scores(_two_groups(1.0, 100, seed), "gdp").objection)
        for seed in range(runs)
    )
    # A level of 0.5%, and three standard errors of a share of 400 runs: 6 of them.
    assert rejected <= runs * (0.005 + 3 * math.sqrt(0.005 * 0.995 / runs))


def test_a_claim_of_pure_dp():
    evidence = assert_private(_laplace(1.0, 1000, 0), 1.0, 0.0)
    assert 0.3 < evidence.lower_bound < 1.0
    assert evidence.estimate is None
    assert (
        "measured  not measured: Gaussian noise has no finite ε at δ = 0"
        in str(evidence)
    )
    with pytest.raises(AssertionError, match="violated"):
        assert_private(_laplace(3.0, 1000, 0), 1.0, 0.0)


# Refusals.


def test_test_that_cannot_fail_is_refused():
    scores = Scores(np.arange(30.0), np.arange(40.0))
    for method in (None, "gdp"):
        with pytest.raises(
            Undecided, match=r"in 0% of such runs.*use more canaries"
        ):
            assert_private(scores, 5.0, DELTA, method=method)
        evidence = assert_private(
            scores, 5.0, DELTA, method=method, allow_undecided=True
        )
        assert evidence.verdict == "undecided"


def test_infinite_claim_has_evidence_and_no_test():
    assert not find_evidence(_two_groups(9.0), math.inf, DELTA).violated
    for method in ("clopper-pearson", "gdp"):
        with pytest.raises(ValueError, match="epsilon=inf"):
            assert_private(_two_groups(9.0), math.inf, DELTA, method=method)


def test_arguments_are_checked_before_the_run():
    def run():
        raise AssertionError("ran")

    wrong: dict[str, dict[str, object]] = {
        "epsilon=-1": {"epsilon": -1},
        "epsilon=nan": {"epsilon": math.nan},
        "delta=0 > 0: Gaussian noise": {"delta": 0, "method": "gdp"},
        "delta=nan": {"delta": math.nan},
        "confidence=1": {"confidence": 1},
        "method='jeffreys'.*one of clopper-pearson, simul": {
            "method": "jeffreys"
        },
        "method='jeffreys'": {"method": "jeffreys"},
        "method='best'": {"method": "best"},
    }
    for name, options in wrong.items():
        for call in (find_evidence, assert_private):
            with pytest.raises(ValueError, match=name):
                call(run, **({"epsilon": 1.0, "delta": DELTA} | options))


def test_coins_need_unobserved_scores():
    with pytest.raises(ValueError, match="unobserved"):
        find_evidence(
            Scores.from_cosines(np.arange(5.0) / 10, 100),
            1.0,
            DELTA,
            method="one-run",
        )
    assert find_evidence(_two_groups(9.0), 1.0, 1e-6, method="one-run").violated


def test_scores_are_checked():
    good = [0.1, 0.2]
    assert Scores(good, good).observed.dtype == np.float64
    for name, arguments in {
        "observed=nan to be a number": ([0.1, math.nan], good),
        "unobserved=nan to be a number": (good, [math.nan, 0.0]),
        "observed.shape": ([0.1], good),
        "unobserved.shape": (good, []),
        "dim=None": (good,),
        "dim=1 ": (good, None, 1),
    }.items():
        with pytest.raises(ValueError, match=name):
            find_evidence(Scores(*arguments), 1.0, DELTA)
    with pytest.raises(ValueError, match=r"1\.5 in \[-1, 1\]"):
        Scores.from_cosines([0.1, 1.5], 10)


# What can be tested.


@pytest.mark.parametrize(
    "schedule", [ShuffledEpochs(5, 1), ShuffledEpochs(5, 0.5)]
)
def test_single_participation_has_the_exact_null(schedule):
    record = limit_record(schedule, 0.5, DELTA, num_canaries=40, unobserved=0)
    scores = run_scores(record)
    assert scores.unobserved is None
    assert scores.dim == record.dim
    assert scores.statistic == "matched-filter"
    there = record.observed.means[
        record.presence
    ]  # a cosine each, round by round
    assert np.sort(scores.cosines) == pytest.approx(np.sort(there), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    [ShuffledEpochs(5, 2), ShuffledEpochs(5, 1.5), Poisson(5, 0.3)],
    ids=["epochs", "uneven", "poisson"],
)
def test_several_participations_have_the_exact_null(schedule):
    record = limit_record(schedule, 0.5, DELTA, num_canaries=40, unobserved=0)
    scores = run_scores(record)
    assert scores.dim is not None
    assert scores.unobserved is None
    assert find_evidence(record, 1.0, DELTA).unobserved == 0


def test_rounds_that_may_be_correlated_have_none():
    for schedule in (ShuffledEpochs(6, 3), Poisson(6, 0.5)):
        record = make_record(participation=schedule.law(40))
        assert record.correlation.factor is None
        assert record.presence.sum(axis=0).max() > 1
        scores = run_scores(record)
        assert scores.dim is None
        assert record.unobserved.count - len(scores.unobserved) in (
            0,
            1,
        )  # one for no round
    with pytest.raises(ValueError, match=r"unobserved=0 >= 2.*3 times"):
        run_scores(
            limit_record(
                ShuffledEpochs(6, 3), 0.5, DELTA, unobserved=0
            ).with_values(correlation=RoundCorrelation())
        )


def test_record_with_too_few_canaries_is_refused():
    nobody = make_record(presence=np.zeros((6, 40), bool))
    with pytest.raises(NotMeasured, match="no canary took part in 6 rounds"):
        run_scores(nobody)


# Whom a claim is about.


@pytest.mark.slow
def test_evidence_names_adversary_and_client():
    secret = limit_record(
        Poisson(20, 0.2), 1.0, 1e-5, num_canaries=40, unobserved=2, seed=1
    )
    evidence = find_evidence(secret, 1.0, 1e-5)
    assert evidence.adversary == Adversary("all", knows_rounds=False)
    assert evidence.participations == 4
    assert (
        "the adversary does not know when; every round's model is seen"
        in str(evidence)
    )
    assert evidence.estimate == epsilon_from_record(secret, confidence=0.99)
    knowing = find_evidence(secret, 1.0, 1e-5, adversary=FINAL_MODEL)
    assert "the adversary knows when; the final model is seen" in str(knowing)
    assert knowing.estimate.adversary == FINAL_MODEL
    with pytest.raises(ValueError, match=r"adversary=.* to be None"):
        find_evidence(_two_groups(1.0), 1.0, DELTA, adversary=EVERY_ROUND)


def test_a_canary_that_takes_part_more_often_than_any_client_convicts_nobody():
    """Half of the canaries take part in every round, the clients in one of 16."""
    record = limit_record(
        ShuffledEpochs(16, 1), 0.5, 1e-5, num_canaries=40, beside=64, seed=2
    )
    claim = analytical(
        record.mechanism, AuditedClient.of(record, worst_case=True), 1e-5
    ).epsilon
    assert claim is not None
    presence = record.presence.copy()
    presence[:, :20] = True
    means = record.observed.means + (
        presence & ~record.presence
    ) * 2.0 / math.sqrt(record.dim)
    loud = record.with_values(**{"presence": presence, "observed.means": means})
    scores = run_scores(loud)
    assert len(scores.observed) == record.num_canaries - 20
    assert not assert_private(loud, claim, 1e-5).violated
    whole = scores_of(seen_by(loud, EVERY_ROUND))
    assert lower_bound(whole, 1e-5, confidence=0.99, method="weighted") > claim


def test_a_heavier_canary_than_the_client_does_not_count():
    record = limit_record(
        ShuffledEpochs(4, 4), 1.0, 1e-5, num_canaries=12, seed=2
    )
    weights = np.ones((4, 12))
    assert (
        len(run_scores(record.with_values(canary_weights=weights)).observed)
        == 12
    )
    weights[:, :5] = 3.0
    assert (
        len(run_scores(record.with_values(canary_weights=weights)).observed)
        == 7
    )
    with pytest.raises(
        NotMeasured, match="only 0 of 12 canaries took part at most as often"
    ):
        find_evidence(
            record.with_values(canary_weights=3 * np.ones((4, 12))), 1.0, 1e-5
        )


def test_a_claim_that_rests_on_unknown_secret_rounds_is_not_tested_at_known_ones():
    record = make_record(
        participation=Poisson(6, 0.5).law(40), canary_weights=np.ones((6, 40))
    )
    with pytest.raises(
        NotMeasured, match="law of a client's secret rounds is not known"
    ):
        find_evidence(record, 1.0, 1e-2)
    assert (
        find_evidence(record, 1.0, 1e-2, adversary=EVERY_ROUND).lower_bound >= 0
    )


def test_whatever_has_or_makes_a_record_can_be_tested():
    record, scores = make_record(), _two_groups(1.0)
    assert run_scores(scores) is scores
    assert run_scores(lambda: scores) is scores
    recorded = SimpleNamespace(record=lambda: record)
    expected = run_scores(record).observed
    for run in (recorded, lambda: record, lambda: recorded):
        assert np.array_equal(run_scores(run).observed, expected)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(3, id="a-number"),
        pytest.param(None, id="nothing"),
        pytest.param("runs/a", id="a-path"),
        pytest.param(lambda: 3, id="gives-3"),
        pytest.param(lambda: lambda: 3, id="gives-a-function"),
    ],
)
def test_anything_else_is_named(run):
    found = run() if callable(run) else run
    with pytest.raises(TypeError, match=f"type {type(found).__name__} "):
        run_scores(run)


# The game.


def test_game_calls_the_aggregate_in_random_order_on_fresh_copies():
    calls = []

    def aggregate(updates):
        calls.append([u.copy() for u in updates])
        for u in updates:
            u *= np.nan
        return calls[-1][-1]

    scores = play(aggregate, OTHERS, CANARY, trials=30, seed=4)
    with_canary = [bool(updates[-1].any()) for updates in calls]
    assert len(calls) == 60
    assert sum(with_canary) == 30
    # In order there would be one change, or 59; at random 30 on average, with a deviation of 3.9.
    assert abs(np.sum(np.diff(with_canary)) - 30) < 3 * 3.9
    assert all(np.array_equal(updates[:2], OTHERS) for updates in calls)
    assert np.array_equal(scores.observed, np.full(30, 50.0))
    assert np.array_equal(scores.unobserved, np.zeros(30))
    assert scores.dim is None
    first = calls[:]
    calls.clear()
    play(aggregate, OTHERS, CANARY, trials=30, seed=4)
    assert np.array_equal(first, calls)
    calls.clear()
    play(aggregate, OTHERS, CANARY, trials=30, seed=5)
    assert not np.array_equal(first, calls)


@pytest.mark.slow
def test_drift_is_not_mistaken_for_a_leak():
    """The drift over the calls is 40 times the noise; the canary is clipped to nothing."""
    for seed in range(20):
        scores = _play(1.5, seed, clip=0.0, drift=0.1, trials=600)
        assert not find_evidence(scores, 0.1, DELTA).violated


def test_game_names_what_is_wrong():
    def release(updates):
        return np.sum(updates, axis=0)

    wrong: dict[str, dict[str, object]] = {
        r"norm=0\.0 > 0": {"canary": np.zeros(3)},
        r"canary\.shape=\(1, 3\) to be \(d,\)": {"canary": CANARY[None]},
        r"canary\.shape=\(3,\).*finite": {"canary": CANARY * np.nan},
        r"others\.shape=\(2, 2\) to be \(n, 3\)": {
            "updates": np.array(OTHERS)[:, :2]
        },
        r"released\.shape=\(\) to be \(3,\)": {"aggregate": np.sum},
        r"released.*finite": {"aggregate": lambda updates: updates[0] * np.nan},
        r"trials=1 >= 2": {"trials": 1},
    }
    for name, change in wrong.items():
        arguments = {
            "aggregate": release,
            "updates": OTHERS,
            "canary": CANARY,
            "trials": 3,
        }
        with pytest.raises(ValueError, match=name):
            play(**{**arguments, **change})


def test_evidence_is_plain_data():
    evidence = find_evidence(_two_groups(1.0), 1.0, DELTA)
    assert evidence == find_evidence(_two_groups(1.0), 1.0, DELTA)
    assert isinstance(evidence, Evidence)
    assert isinstance(evidence.violated, bool)


def test_the_default_bound_depends_on_how_many_canaries_there_are():
    rng = np.random.default_rng(3)
    for count, delta, method in (
        (1000, 1e-5, "weighted"),
        (1000, 1e-3, "clopper-pearson"),
    ):
        scores = Scores(
            rng.standard_normal(count) + 4, rng.standard_normal(count)
        )
        assert find_evidence(scores, 0.1, delta).method == method
