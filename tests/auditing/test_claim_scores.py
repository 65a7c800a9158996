"""Scores by which a claim is tested: their null is N(0, 1), or below."""

import dataclasses
import time

import numpy as np
import pytest
from scipy import stats

from fl_epe.auditing import (
    EVERY_ROUND,
    Adversary,
    AuditedClient,
    Design,
    NotMeasured,
    client_epsilon,
    scores_for_claim,
    scores_of,
    seen_by,
)
from fl_epe.auditing.answer.audited_client import hidden_events
from fl_epe.auditing.answer.claim_scores import _ratio_draws, _scores_of_ratios
from fl_epe.auditing.bounds import lower_bound, method_by_design
from fl_epe.auditing.scoring.statistics import mixture_ratios
from fl_epe.limit import limit_record
from fl_epe.schedules import Events, make_schedule

SECRET = [
    ("poisson", 60, 6),
    ("fixed-size", 60, 6),
    ("balls-in-bins", 60, 6),
    ("poisson", 500, 5),
]
IDS = ["poisson", "fixed-size", "balls-in-bins", "long"]


def record_of(
    kind, rounds, participations, canaries=100, z=1.0, seed=0, **options
):
    schedule = make_schedule(kind, rounds, participations)
    return limit_record(
        schedule,
        z,
        1e-5,
        num_canaries=canaries,
        unobserved=2,
        seed=seed,
        **options,
    )


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_canaries_have_no_scores(count):
    record = record_of("poisson", 24, 3, canaries=10)
    presence = np.zeros_like(record.presence)
    presence[3, :count] = True
    record = dataclasses.replace(record, presence=presence)
    with pytest.raises(NotMeasured, match="took part in 24 rounds"):
        scores_for_claim(record)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rounds", "participations"), SECRET, ids=IDS)
def test_who_took_no_part_has_scores_of_the_standard_normal_law_or_below(
    kind, rounds, participations
):
    record = record_of(kind, rounds, participations)
    secret, signal = (
        hidden_events(record),
        seen_by(record, EVERY_ROUND).signals.participant_scores,
    )
    law = _ratio_draws(signal.astype("<f4").tobytes(), secret)
    rng, draws = np.random.default_rng(5), 40_000 if rounds < 100 else 10_000
    found = []
    for _ in range(draws // 2000):
        noise = rng.standard_normal((rounds, 2000))
        found.append(
            _scores_of_ratios(
                mixture_ratios(noise, secret, signal[:, None]), *law
            )
        )
    scores = np.concatenate(found)
    for tail in (0.1, 0.01, 1e-3, 1e-4):
        share = np.mean(scores > -stats.norm.ppf(tail))
        error = np.sqrt(tail / draws)
        assert share < tail + 3 * error
        assert share > 0.5 * tail - 3 * error  # and not far below


@pytest.mark.slow
def test_far_tails_are_those_of_the_ratio_itself():
    """With one round and one place to hide, L is a Gaussian shift: a closed form at any depth."""
    signal = np.array([1.5], "<f4")
    law = _ratio_draws(signal.tobytes(), Events.blocks([(0, np.ones(1))]))
    scores = np.array([2.0, 4.0, 5.0])
    found = _scores_of_ratios(1.5 * scores - 1.5**2 / 2, *law)
    assert np.all(found <= scores + 0.01)
    assert np.all(found > scores - [0.05, 0.1, 0.4])
    beyond = _scores_of_ratios(
        np.array([1.5 * 20 - 1.5**2 / 2]), *law
    )  # P[L ≥ x] ≤ e^(−x)
    assert beyond[0] > -stats.norm.ppf(np.exp(-(1.5 * 20 - 1.5**2 / 2)))


def test_a_ratio_without_a_signal_proves_nothing():
    law = _ratio_draws(
        np.zeros(10, "<f4").tobytes(), Events.coins(np.full(10, 0.1))
    )
    assert np.all(_scores_of_ratios(np.zeros(5), *law) < 0)


@pytest.mark.slow
def test_it_takes_bounded_memory_and_work():
    started = time.process_time()
    _ratio_draws(
        np.full(2048, 0.7, "<f4").tobytes(), Events.coins(np.full(2048, 0.01))
    )
    assert time.process_time() - started < 20  # a tenth of that on an idle core


@pytest.mark.parametrize("sees", ["final", "all"])
def test_canaries_that_were_drawn_for_no_round_are_members(sees):
    record = record_of("poisson", 20, 1, canaries=200, seed=3)
    adversary = Adversary(sees, knows_rounds=False)
    whole = scores_for_claim(record, adversary)
    assert len(whole.observed) == 200
    here = np.flatnonzero(record.presence.any(axis=0))
    values = {
        name: getattr(record.observed, name)[..., here]
        for name in ("means", "final", "displacement")
    }
    cut = record.with_values(
        presence=record.presence[:, here],
        **{f"observed.{n}": v for n, v in values.items()},
    )
    expected = round(len(here) / (1 - 0.95**20))
    assert (
        len(scores_for_claim(cut, adversary).observed) == expected > len(here)
    )
    planned = cut.with_values(design=Design(num_canaries=200))
    found = scores_for_claim(planned, adversary)
    assert len(found.observed) == 200
    assert found.dim is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["epochs", pytest.param("poisson", marks=pytest.mark.slow)]
)
def test_proofs_exceed_the_truth_as_rarely_as_they_say(kind):
    record = record_of(kind, 60, 6, canaries=13, beside=60)
    client = AuditedClient.of(record)
    truth = client_epsilon(
        seen_by(record, EVERY_ROUND), client, 1.0, record.delta
    )
    above = 0
    for seed in range(300):
        scores = scores_for_claim(
            record_of(kind, 60, 6, canaries=13, seed=seed, beside=60)
        )
        method = method_by_design(scores, record.delta, 0.95)
        above += lower_bound(scores, record.delta, method=method) > truth
    # 5%, and three standard errors of a share of 300 runs.
    assert above <= 300 * (0.05 + 3 * np.sqrt(0.05 * 0.95 / 300))


def test_known_rounds_count_only_canaries_that_the_client_covers():
    record = record_of("epochs", 60, 12, canaries=13, beside=60)
    client = AuditedClient.of(record)
    taken = record.presence.sum(axis=0)
    scores, whole = (
        scores_for_claim(record),
        scores_of(seen_by(record, EVERY_ROUND)).observed,
    )
    np.testing.assert_array_equal(scores.observed, whole[taken >= 6])
    less = AuditedClient(2, client.patterns)
    few = scores_for_claim(record, EVERY_ROUND, less).observed
    np.testing.assert_array_equal(few, whole[(taken <= 2) & (taken >= 1)])
