"""What is seen of a strategy's work: which replies it used, and whether canaries show up."""

import types

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict

from fl_epe import RoundFacts, RunAuditor
from fl_epe.auditing import EVERY_ROUND, ladder_fit, seen_by
from fl_epe.flower.audit_record import doubts
from fl_epe.flower.layout import Layout
from fl_epe.flower.replies import are_noise
from fl_epe.flower.round_state import Aggregation
from fl_epe.flower.watching import shares_of
from fl_epe.messages import pack

DIM = 2000
LAYOUT = Layout.of(pack(w=np.zeros(500, "f4")))


def _reply(vector, examples=1, **metrics):
    content = RecordDict(
        {
            "arrays": pack(w=vector),
            "m": MetricRecord({"n": examples, **metrics}),
        }
    )
    return types.SimpleNamespace(content=content)  # a Message needs a run


@pytest.fixture
def replies():
    rng = np.random.default_rng(1)
    theta = rng.normal(size=500).astype("f4")
    steps = 1e-2 * rng.normal(size=(9, 500)).astype("f4")
    return [_reply(theta + step, 1 + i % 3) for i, step in enumerate(steps)]


def _mean(given, shares):
    values = [
        next(iter(r.content.array_records.values()))["w"].numpy() for r in given
    ]
    return np.average(values, axis=0, weights=shares).astype("f4")


@pytest.mark.parametrize(
    ("way", "shares"), [("weighted", [1, 2, 3] * 3), ("equal", [1] * 9)]
)
def test_shares_of_an_average_are_found(replies, way, shares):
    aggregation = Aggregation(replies, pack(w=_mean(replies, shares)))
    result = shares_of(aggregation, "n", LAYOUT, "arrays")
    assert result is not None
    assert result[0] == way
    shown = [result[1][id(reply.content)] for reply in replies]
    # float32 rounds a model of 1 to 1e-7, and updates are 1e-2
    np.testing.assert_allclose(shown, np.array(shares) / sum(shares), atol=1e-3)
    assert [s == 0 for s in shown] == [s == 0 for s in shares]


def test_what_is_no_average_of_the_replies_has_no_shares(replies):
    noisy = _mean(replies, [1] * 9) + 1e-3 * np.random.default_rng(2).normal(
        size=500
    )
    aggregation = Aggregation(replies, pack(w=noisy.astype("f4")))
    assert shares_of(aggregation, "n", LAYOUT, "arrays") is None


def _updates(rng, noise, steps=0.0):
    slope = np.linspace(0.2, 2, DIM)
    return noise * rng.normal(size=(9, DIM)) + steps * slope * rng.normal(
        size=(9, DIM)
    )


def test_noise_of_clients_is_told_from_updates():
    rng = np.random.default_rng(3)
    result = [are_noise(list(_updates(rng, 1.0))) for _ in range(60)]
    assert np.mean(result) > 0.9  # five tests, each wrong in one of a thousand
    assert not any(are_noise(list(_updates(rng, 1.0, 1.0))) for _ in range(20))
    white = _updates(rng, 1.0)
    assert not are_noise(
        list(white / np.linalg.norm(white, axis=1)[:, None])
    )  # all as long
    assert not are_noise(
        list(white + 0.3 * white[0])
    )  # with a common direction


def _record(
    present=lambda t, i: 1.0, weights=(1.0,), rounds=20, canaries=5, noise=0.02
):
    """A mean of canaries, each times ``present``, and noise; everybody counts as present."""
    auditor = RunAuditor(rounds * canaries, 50, seed=7, delta=1e-3)
    rng, theta = np.random.default_rng(8), np.zeros(DIM, np.float32)
    auditor.begin(theta)
    for t in range(rounds):
        cohort = range(canaries * t, canaries * (t + 1))
        scales = np.resize(weights, canaries)
        scales = scales / np.sqrt(np.mean(scales**2))
        added = [
            0.1 * w * present(t, i) for w, i in zip(scales, cohort, strict=True)
        ]
        mean = sum(
            a * auditor.canaries.vector(i)
            for a, i in zip(added, cohort, strict=True)
        )
        theta = (theta + mean + noise * rng.normal(size=DIM)).astype("f4")
        facts = RoundFacts(
            cohort, 0.1, clip_norm=1.0, weights=scales if np.ptp(scales) else ()
        )
        auditor.observe(theta, facts)
    return auditor.record()


def test_honest_runs_are_not_in_doubt():
    assert not list(doubts(_record()))
    assert not list(doubts(_record(weights=(1, 1, 1, 1, 8))))


@pytest.mark.parametrize("missing", [0.2, 0.5])
def test_canaries_that_do_not_show_up_put_the_run_in_doubt(missing):
    chance = np.random.default_rng(9).random(100)
    (result,) = doubts(_record(lambda t, i: float(chance[i] > missing)))
    assert "do not show up" in result


def test_canaries_of_which_none_shows_up_put_the_run_in_doubt():
    (result,) = doubts(_record(lambda t, i: 0.0))
    assert "left canaries out" in result


def test_scores_of_unequal_canaries_are_what_their_weights_say():
    record = _record(weights=(1, 1, 1, 1, 8))
    fit = ladder_fit(seen_by(record, EVERY_ROUND))
    assert fit.low < 1 < fit.high
    heavy = 0.1 * 8 / np.sqrt(68 / 5)  # among noise of 0.02 in each entry
    result = seen_by(record, EVERY_ROUND).expected_scores.observed[
        4::5
    ]  # the heavy one of each round
    assert abs(result.mean() - heavy / 0.02) < 5 * result.std() / np.sqrt(
        len(result)
    )


def test_an_auditor_goes_on_with_unequal_canaries():
    auditor = RunAuditor(6, 4, seed=7, delta=1e-3)
    theta = np.zeros(DIM, np.float32)
    auditor.begin(theta)
    facts = [
        RoundFacts([0, 1, 2], 0.1, weights=[0.5, 1.0, 1.3]),
        RoundFacts([3, 4, 5], 0.1),
    ]
    rng = np.random.default_rng(1)
    models = [rng.normal(size=DIM).astype("f4") for _ in facts]
    for vector, round_facts in zip(models, facts, strict=True):
        auditor.observe(vector, round_facts)
    again = RunAuditor(6, 4, seed=7, delta=1e-3)
    again.restore(auditor.state(), 2, start=theta, last=models[-1])
    first, second = (
        a.record().mechanism.canary_weights for a in (auditor, again)
    )
    assert first is not None
    np.testing.assert_array_equal(first, second)
    assert first[0, :3].tolist() == [0.5, 1.0, 1.3]
