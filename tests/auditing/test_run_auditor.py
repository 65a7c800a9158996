"""`RunAuditor`: models in, record out, without any framework."""

import dataclasses
import functools

import numpy as np
import pytest

from fl_epe import CanarySet, RoundFacts, RunAuditor, epsilon_from_record
from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import (
    EVERY_ROUND,
    Adversary,
    AuditRecord,
    ServerStep,
    answers,
    ladder_fit,
    scores_of,
    seen_by,
)
from fl_epe.auditing.record.round_correlation import (
    SKETCH_PARTS,
    WINDOW,
    window_of,
)
from fl_epe.auditing.recorder.round_scores import score_round
from fl_epe.mechanism import ServerSGD

DIM = 5_000
COUNT = 200
UNOBSERVED = 100
ROUNDS = 20
SEED = 7
DELTA = 1e-5


def noisy_run(
    server=ServerSGD(),  # noqa: B008
    z=0.5,
    clip_norms=None,
    lost=(),
    dtype=np.float32,
    make=RunAuditor,
):
    """A mechanism that adds up canaries and noise; each canary takes part once."""
    auditor = make(COUNT, UNOBSERVED, seed=SEED, delta=DELTA, server=server)
    canaries = CanarySet(DIM, COUNT + UNOBSERVED, SEED)
    rng = np.random.default_rng(3)
    cohorts = rng.permutation(COUNT).reshape(ROUNDS, -1)
    theta = rng.standard_normal(DIM).astype(dtype)
    auditor.begin(theta)
    state = server.init(DIM)
    for t, cohort in enumerate(cohorts):
        clip_norm = 1.0 if clip_norms is None else clip_norms[t]
        facts = RoundFacts(
            cohort.tolist(), clip_norm / 10, clip_norm, replies=10
        )
        if t in lost:
            auditor.observe(None, facts)
            continue
        total = sum(clip_norm * canaries.vector(i) for i in cohort)
        mean = (total + z * clip_norm * rng.standard_normal(DIM)) / 10
        state, step = server.update(state, mean, t)
        theta = (theta + step).astype(dtype)
        auditor.observe(theta, facts)
    return auditor


@functools.cache
def state_of_a_run():
    return noisy_run().state()


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_gaussian_mechanism_is_found_through_the_optimizer(momentum, dtype):
    auditor = noisy_run(ServerSGD(0.5, momentum), dtype=dtype)
    record = auditor.record(noise_multiplier=0.5, sum_noise_multiplier=0.5)
    truth = gaussian_epsilon(np.sqrt(0.5**2 + 10 / DIM), DELTA)
    every = epsilon_from_record(record, adversary=EVERY_ROUND, confidence=0.999)
    for estimate in (every, auditor.epsilon_so_far()):
        assert estimate.low < truth < estimate.high
    fit = ladder_fit(seen_by(record))
    assert fit.low < 1 < fit.high
    # The deltas are what the models show.
    deltas = record.model_update_cosines()[0]
    assert deltas.shape == (ROUNDS, COUNT)
    if not momentum:
        np.testing.assert_allclose(deltas, record.observed.means, rtol=1e-9)


def test_rounds_that_weigh_differently():
    clip_norms = np.geomspace(0.1, 3, ROUNDS)
    record = noisy_run(clip_norms=clip_norms).record(sum_noise_multiplier=0.5)
    np.testing.assert_allclose(record.mechanism.contributions, clip_norms / 10)
    for sees in ("all", "final"):
        fit = ladder_fit(seen_by(record, Adversary(sees)))
        assert fit.low < 1 < fit.high


def test_unknown_contributions_weigh_every_round_the_same():
    auditor = RunAuditor(4, 3, seed=1, delta=0.1, server="median")
    auditor.begin(np.zeros(500, np.float32))
    rng = np.random.default_rng(1)
    theta = np.zeros(500, np.float32)
    for _ in range(3):
        theta = theta + rng.standard_normal(500).astype(np.float32)
        auditor.observe(theta, RoundFacts([0, 1, 2, 3]))
    record = auditor.record()
    assert not record.signal_known()
    from fl_epe.auditing.scoring.scores import shift_scores

    scores, others = scores_of(
        seen_by(record, EVERY_ROUND).with_all_canaries
    ).both()
    expected = shift_scores(record.observed.means, 500).sum(axis=0) / np.sqrt(3)
    np.testing.assert_allclose(scores, expected)
    assert others.shape == (3,)
    assert record.mechanism.server.name == "median"
    assert record.model_update_cosines()[0] is record.observed.model_updates


def test_lost_rounds_and_canaries_that_never_took_part():
    auditor = noisy_run(lost=(4, 11))
    record = auditor.record()
    assert record.num_canaries == COUNT - 20
    assert record.unobserved.means.shape == (ROUNDS, UNOBSERVED + 20)
    assert np.all(record.norms.means[[4, 11]] == 0)
    assert np.all(record.presence.sum(axis=0) == 1)
    assert set(record.observed.ids) | set(record.unobserved.ids) == set(
        range(COUNT + UNOBSERVED)
    )


@pytest.mark.slow
def test_a_record_in_the_middle_does_not_disturb_the_end():
    auditor = noisy_run()
    same = noisy_run()
    auditor.record()
    first = auditor.record()
    second = same.record()
    np.testing.assert_array_equal(first.observed.final, second.observed.final)
    np.testing.assert_array_equal(first.observed.means, second.observed.means)


def test_record_survives_the_disk(tmp_path):
    record = noisy_run().record(noise_multiplier=0.5, task="elsewhere")
    loaded = AuditRecord.load(record.save(tmp_path / "record.npz"))
    np.testing.assert_array_equal(
        loaded.mechanism.contributions, record.mechanism.contributions
    )
    assert loaded.design.task == "elsewhere"


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="canaries=1 >= 2"):
        RunAuditor(1, 0, seed=0, delta=0.1)
    with pytest.raises(ValueError, match="unobserved=-1 >= 0"):
        RunAuditor(2, -1, seed=0, delta=0.1)
    with pytest.raises(ValueError, match="delta=2 in"):
        RunAuditor(2, 0, seed=0, delta=2)
    auditor = RunAuditor(2, 0, seed=0, delta=0.1)
    with pytest.raises(ValueError, match="begin"):
        auditor.observe(np.zeros(3), RoundFacts())
    assert auditor.epsilon_so_far() is None
    with pytest.raises(ValueError, match=r"theta.shape=\(2, 3\)"):
        auditor.begin(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="finite"):
        auditor.begin(np.full(3, np.inf))
    auditor.begin(np.zeros(3))
    with pytest.raises(ValueError, match="has seen 0 rounds"):
        auditor.begin(np.zeros(3))
    with pytest.raises(ValueError, match=r"theta.shape=\(4,\) to be \(3,\)"):
        auditor.observe(np.zeros(4), RoundFacts())
    with pytest.raises(IndexError, match="present=2 in"):
        auditor.observe(np.zeros(3), RoundFacts([2]))
    assert (auditor.record().num_canaries, auditor.record().rounds) == (0, 0)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "rounds",
    [
        *(
            pytest.param(rounds, marks=pytest.mark.slow)
            for rounds in (0, 1, ROUNDS)
        ),
        12,
    ],
)
def test_an_auditor_goes_on_from_any_round_of_its_state(momentum, rounds):
    """The first rounds from the state of a later one, the others seen again."""
    server = ServerSGD(0.5, momentum)
    models = []
    told = []

    class Seen(RunAuditor):
        def begin(self, theta):
            models.append(theta)
            super().begin(theta)

        def observe(self, theta, facts, vectors=None, **known):
            models.append(models[-1] if theta is None else theta)
            told.append((theta, facts))
            super().observe(theta, facts, vectors)

    whole = noisy_run(server, lost=(3, 15), make=Seen)
    state = whole.state()
    numbers = ROUNDS * (
        2 * (COUNT + UNOBSERVED + 1) + 9 + 3 * COUNT + ROUNDS
    )  # and no vector
    presence = ROUNDS * COUNT
    sketches = state["sketches"].nbytes
    assert sketches == 4 * ROUNDS * (
        min(DIM, SKETCH_PARTS) + window_of(DIM, WINDOW)
    )
    kept = sum(array.nbytes for array in state.values())
    assert kept <= 8 * numbers + sketches + presence
    again = RunAuditor(COUNT, UNOBSERVED, seed=SEED, delta=DELTA, server=server)
    velocity = (
        (models[rounds] - models[rounds - 1]) / np.float32(0.5)
        if rounds
        else None
    )
    again.restore(
        state, rounds, start=models[0], last=models[rounds], velocity=velocity
    )
    assert again.rounds == rounds
    for theta, facts in told[rounds:]:
        again.observe(theta, facts)
    ours = again.record()
    theirs = whole.record()
    np.testing.assert_array_equal(ours.presence, theirs.presence)
    np.testing.assert_allclose(
        ours.observed.means, theirs.observed.means, atol=1e-6
    )
    np.testing.assert_allclose(
        ours.observed.displacement, theirs.observed.displacement, atol=1e-6
    )
    np.testing.assert_array_equal(
        ours.mechanism.contributions, theirs.mechanism.contributions
    )
    estimates = again.epsilon_so_far(), whole.epsilon_so_far()
    for name in ("epsilon", "low", "high"):
        assert getattr(estimates[0], name) == pytest.approx(
            getattr(estimates[1], name), rel=1e-5
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": ROUNDS + 1}, "rounds=21 to be from 0 to 20"),
        ({"rounds": -1}, "rounds=-1 to be from 0"),
        ({"count": COUNT - 1}, r"presence.shape=\(20, 200\) to be \(20, 199\)"),
        (
            {"unobserved": UNOBSERVED + 1},
            r"dots.mean.shape=\(20, 300\) to be at least \(20, 301\)",
        ),
        ({"signals": np.zeros((2, 3))}, r"signals.shape=\(2, 3\)"),
        ({"factor": np.zeros(3)}, r"factor.shape=\(3,\) to be"),
        ({"sketches": np.zeros((20, 3))}, r"sketches.shape=\(20, 3\) to be"),
        ({"replies": np.zeros(3)}, r"replies.shape=\(3,\) to be \(20,\)"),
    ],
    ids=[
        "late",
        "negative",
        "count",
        "unobserved",
        "signals",
        "factor",
        "sketches",
        "replies",
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, message):
    given = {
        "count": COUNT,
        "unobserved": UNOBSERVED,
        "rounds": ROUNDS,
    } | change
    state = {
        **state_of_a_run(),
        **{k: v for k, v in change.items() if k not in ("rounds",)},
    }
    again = RunAuditor(
        given["count"], given["unobserved"], seed=SEED, delta=DELTA
    )
    theta = np.zeros(DIM, np.float32)
    with pytest.raises(ValueError, match=message):
        again.restore(state, given["rounds"], start=theta, last=theta)


@pytest.mark.parametrize(
    ("score_absent", "taken_out"), [(True, True), (False, False)]
)
def test_canaries_of_little_energy_are_projected_out_where_rounds_are_whitened(
    score_absent, taken_out
):
    """Else they are in the rounds' correlations: κ of 200 rounds in 4,000 dimensions was 0.97."""
    canaries = CanarySet(4000, 3, SEED)
    mean = np.random.default_rng(0).standard_normal(4000)
    facts = RoundFacts([0, 1], 0.1, 1.0, replies=1)
    *_, residual = score_round(
        canaries, 3, mean, facts, score_absent=score_absent
    )
    assert (residual.canaries is not None) == taken_out


def decaying_run(contribution=0.1):
    """A server whose steps fall from 1 to 0.01, which the auditor is not told during the run."""
    rng = np.random.default_rng(0)
    count = 24
    dim = 3000
    rates = np.geomspace(1, 0.01, ROUNDS)
    canaries = CanarySet(dim, count, SEED)
    vectors = np.stack([canaries.vector(i) for i in range(count)])
    auditor = RunAuditor(count, 0, seed=SEED, delta=DELTA, series=("mean",))
    theta = np.zeros(dim, np.float32)
    auditor.begin(theta)
    for rate in rates:
        present = np.flatnonzero(rng.random(count) < 0.4)
        mean = (
            vectors[present].sum(axis=0) + 0.5 * rng.standard_normal(dim)
        ) / 10
        theta = np.asarray(theta + rate * mean, np.float32)
        facts = RoundFacts(present.tolist(), contribution, 1.0, replies=10)
        auditor.observe(
            theta, facts, released={"mean": np.asarray(mean, np.float32)}
        )
    return auditor, rates


def epsilons_of(record):
    return [found.estimate.epsilon for found in answers(record)]


def test_what_is_known_better_counts_before_canaries_are_projected_out():
    """The final ε was 9.4 for 12.3, as the others were projected out by equal steps."""
    auditor, rates = decaying_run()
    server = ServerStep("sgd", rates, 0.0)
    mechanism = dataclasses.replace(auditor.record().mechanism, server=server)
    known = epsilons_of(auditor.record(learning_rates=rates))
    assert known == epsilons_of(auditor.record(mechanism=mechanism))
    late = answers(auditor.record().with_values(learning_rates=rates))
    assert late[0].estimate is None
    assert "pass the changed values to RunAuditor.record" in late[0].reason
    fit = answers(auditor.record(learning_rates=rates))[0].fit
    assert fit.low < 1 < fit.high


def test_contributions_that_are_known_at_the_end():
    """ε of every round was 104 for 37: canaries' signals were those of an unknown unit."""
    auditor, rates = decaying_run(contribution=float("nan"))
    told = epsilons_of(decaying_run()[0].record(learning_rates=rates))
    facts = {"contributions": np.full(ROUNDS, 0.1), "learning_rates": rates}
    assert epsilons_of(auditor.record(**facts)) == pytest.approx(told)
    late = auditor.record().with_values(contributions=facts["contributions"])
    assert epsilons_of(late)[1] == pytest.approx(told[1])
