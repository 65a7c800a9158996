"""How the others react to a client, where canaries take part less often than it does."""

import numpy as np
import pytest

from fl_epe.auditing import (
    EVERY_ROUND,
    AuditedClient,
    ClientLog,
    NotMeasured,
    RoundFacts,
    RunAuditor,
    answers,
    seen_by,
)
from fl_epe.auditing.answer.ladder_fit import client_fit, ladder_fit
from fl_epe.auditing.record.parts import ServerStep
from fl_epe.auditing.scoring.reaction import Reaction, model_response

DIM = 4000
ROUNDS = 60
RATE = 0.05
CLIENTS = 10
NOISE = 0.5  # of a round's mean, as a vector


def run(rate, kind="rotation", noise_multiplier=None, seed=3, reaching=1.0):
    """Means of quadratic losses about 0 with gradient noise; a canary in every third round.

    Args:
        rate: of the quadratic losses.
        kind: of the canaries.
        noise_multiplier: that the record has.
        seed: of everything.
        reaching: part of the canaries' contributions that is in the means.
    """
    rng = np.random.default_rng(seed)
    theta = np.zeros(DIM)
    auditor = RunAuditor(6, 20, seed=seed, delta=1e-5, kind=kind)
    auditor.begin(theta.astype("f4"))
    numbers = rng.permutation(np.repeat(np.arange(6), [10, 5, 2, 1, 1, 1]))
    for t in range(ROUNDS):
        mean = rng.standard_normal(DIM) * NOISE / np.sqrt(DIM) - rate * theta
        present = [int(numbers[t // 3])] if t % 3 == 0 else []
        if present:
            mean = (
                mean + reaching * auditor.canaries.vector(present[0]) / CLIENTS
            )
        theta = theta + mean
        auditor.observe(
            theta.astype("f4"),
            RoundFacts(
                present,
                contribution=1 / CLIENTS,
                clip_norm=1.0,
                replies=CLIENTS,
            ),
        )
    log = ClientLog(
        np.tile(np.arange(CLIENTS), ROUNDS), np.arange(0, 601, CLIENTS)
    )
    record = auditor.record(clients=log, noise_multiplier=noise_multiplier)
    return record.with_values(sum_noise_multiplier=noise_multiplier)


def true_size(rate):
    """Of a client in all rounds, among so much noise that is pulled back as it is."""
    return np.sqrt(DIM * ROUNDS) / CLIENTS / NOISE


def test_a_share_of_the_position_is_taken_back():
    step = ServerStep("sgd", np.full(3, 0.5), 0.5)
    moved = model_response(
        np.array([[1.0], [0.0], [1.0]]), np.full((3, 1), 0.2), step
    )
    # positions 0.5, 0.5 + 0.5·(0.5 − 0.1) = 0.7, 0.7 + 0.5·(0.2 + 0.86) = 1.23
    np.testing.assert_allclose(moved.updates.ravel(), [1.0, -0.1, 0.86])
    np.testing.assert_allclose(moved.positions, [1.23])


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, RATE, 0.2])
def test_the_rate_is_found(rate):
    found = [
        seen_by(run(rate, seed=seed), EVERY_ROUND).fitted_reaction
        for seed in range(6)
    ]
    errors = [one.error for one in found]
    mean = np.mean([one.rate for one in found])
    assert abs(mean - rate) < 3 * np.sqrt(np.sum(np.square(errors))) / len(
        found
    )
    assert max(errors) < 0.1


def test_noise_that_is_known_to_prevail_shows_the_reaction_without_a_fit():
    z = NOISE / np.sqrt(DIM) * CLIENTS  # all of the residual
    record = run(RATE, noise_multiplier=z)
    client = AuditedClient.of(record)
    view = client.view(record, EVERY_ROUND)
    assert view.reaction == Reaction()
    assert client.expected_score(view) == pytest.approx(
        true_size(RATE), rel=0.1
    )
    plain = client.expected_score(seen_by(record, EVERY_ROUND))
    assert plain > 1.4 * true_size(
        RATE
    )  # as if nobody pulled the client's updates back


def test_a_fitted_reaction_gives_the_same_client_a_score_near_it():
    record = run(RATE)
    client = AuditedClient.of(record)
    view = client.view(record, EVERY_ROUND)
    assert view.reaction is not None
    assert view.reaction.rate is not None
    # One of ten is not hidden by its own tenth.
    assert client.expected_score(view) == pytest.approx(
        true_size(RATE) / np.sqrt(0.9), rel=0.15
    )
    final, every = answers(record)
    assert final.estimate is not None
    assert every.estimate is not None
    assert every.estimate.low < every.estimate.epsilon < every.estimate.high


def test_canaries_that_are_scored_in_their_own_rounds_alone_do_not_tell():
    record = run(RATE, kind="sphere")
    with pytest.raises(
        NotMeasured, match="how later rounds react to one is not known"
    ):
        AuditedClient.of(record).view(record, EVERY_ROUND)
    assert answers(record)[1].estimate is None


@pytest.mark.slow
def test_scores_of_noise_alone_have_the_interval_of_any_rate():
    """ρ is fitted where noise looks most like canaries: an interval at that ρ is too short."""
    measured = 0
    for seed in range(12):
        record = run(RATE, seed=seed, reaching=0.0)
        client = AuditedClient.of(record)
        view = client.view(record, EVERY_ROUND)
        try:
            fit = client_fit(view, client)
        except NotMeasured:
            continue
        measured += 1
        for rate in (-0.1, 0.3, 0.9):
            other = seen_by(record, EVERY_ROUND, Reaction(rate))
            alone = ladder_fit(other)
            lowest, highest = (
                end * client.expected_score(other)
                for end in (alone.low, alone.high)
            )
            size = client.expected_score(view)
            assert fit.low * size < lowest + 1e-6
            assert fit.high * size > highest - 1e-6
    assert measured > 4


def test_the_interval_of_any_rate_of_an_unfinished_run_holds_whenever_it_ended():
    whole = run(RATE, seed=3, reaching=0.0)
    part = whole.with_values(num_rounds=2 * ROUNDS)
    client = AuditedClient.of(whole)
    ends = []
    for record in (whole, part):
        fit = client_fit(client.view(record, EVERY_ROUND), client)
        ends.append((fit.low, fit.high))
    assert ends[1][0] < 1.3 * ends[0][0] < 0
    assert ends[1][1] > 1.3 * ends[0][1] > 0
