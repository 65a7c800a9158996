"""The limit with correlated noise: what theory says of clients, and comparisons of mechanisms."""

import dataclasses

import numpy as np
import pytest

from fl_epe.accounting import epsilon_two_gaussians, gaussian_epsilon
from fl_epe.auditing import Adversary
from fl_epe.limit import ComparisonPlan, carry_out, limit_record, noise_for_epsilon
from fl_epe.limit.simulated_record import RealUpdates, limit_scores, limit_weights
from fl_epe.mechanism import parse_strategy, sgd_weights
from fl_epe.schedules import ShuffledEpochs, make_schedule

ROUNDS, Z, DELTA = 64, 0.5, 1e-5
SPECS = ("tree", "banded:bands=8", "toeplitz", "blt")


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_participation_has_the_scores_of_theory(spec, momentum):
    strategy = parse_strategy(spec, ROUNDS).matrix()
    final, every_round = limit_weights(ROUNDS, Z, strategy=strategy, momentum=momentum)
    weights = sgd_weights(np.ones(ROUNDS), momentum)
    hidden = Z * np.linalg.norm(weights @ np.linalg.inv(strategy))
    np.testing.assert_allclose(final, weights / hidden)
    np.testing.assert_allclose(np.sqrt(every_round), np.linalg.norm(strategy, axis=0) / Z)


@pytest.mark.parametrize("spec", SPECS)
def test_several_participations_add_up_as_the_strategy_says(spec):
    strategy, rng = parse_strategy(spec, ROUNDS).matrix(), np.random.default_rng(0)
    here = rng.random((ROUNDS, 20)) < 0.2
    found = limit_scores(Z, strategy)(here)
    np.testing.assert_allclose(found, np.linalg.norm(strategy @ here, axis=0) / Z)
    real = RealUpdates(np.full(ROUNDS, 0.3), 0.3)
    assert np.all(limit_scores(Z, strategy, real)(here) < found)


def test_the_final_model_tells_more_the_more_noise_is_taken_back():
    epsilons = []
    for spec in ("banded:bands=1", "banded:bands=8", "banded:bands=64"):
        strategy = parse_strategy(spec, ROUNDS).matrix()
        final, every_round = limit_weights(ROUNDS, 0.25, strategy=strategy)
        epsilons.append(epsilon_two_gaussians(0, 1, final[0], 1, DELTA))
        assert every_round[0] == pytest.approx(0.25**-2)
    assert epsilons[0] == pytest.approx(gaussian_epsilon(0.25 * np.sqrt(ROUNDS), DELTA))
    assert np.all(np.diff(epsilons) > 1)


def test_mechanisms_are_compared(tmp_path):
    plan = ComparisonPlan(
        schedules=("cyclic", "poisson"),
        mechanisms=("independent", "banded:bands=8"),
        noise_multipliers=(1.0,),
        participations=(4.0,),
        rounds=ROUNDS,
        clients=640,
        server_momentum=0.0,
    )
    rows = {row.schedule: row for row in carry_out(plan, tmp_path, workers=1)}
    assert list(rows) == ["cyclic", "cyclic, banded:bands=8", "poisson", "poisson, banded:bands=8"]
    plain, banded = rows["cyclic"], rows["cyclic, banded:bands=8"]
    truth = gaussian_epsilon(1.0, plain.delta, 4)
    for row in (plain, banded):  # 16 rounds apart, so that 8 bands change nothing here
        assert row.every_round.epsilon == pytest.approx(truth, rel=1e-3)
        assert row.every_round.analytical.epsilon == pytest.approx(truth)
        assert not row.above
    assert banded.final.epsilon > 2 * plain.final.epsilon
    assert rows["poisson"].unknown_rounds is not None
    assert rows["poisson, banded:bands=8"].unknown_rounds is None


@pytest.mark.parametrize("spec", SPECS)
def test_real_updates_are_what_correlated_noise_does_not_explain(spec):
    strategy, momentum = parse_strategy(spec, ROUNDS).matrix(), 0.9
    weights, inverse = sgd_weights(np.ones(ROUNDS), momentum), np.linalg.inv(strategy)
    every_round, final = np.linspace(1, 2, ROUNDS), 5.0
    record = limit_record(
        ShuffledEpochs(ROUNDS, 1), Z, DELTA, num_canaries=2, unobserved=2, momentum=momentum
    )
    unit = np.sqrt(record.dim) / record.mechanism.cohort_size
    noise, moved = Z**2 * np.sum(inverse**2, axis=1), Z**2 * np.sum((weights @ inverse) ** 2)
    values = {
        "strategy": strategy,
        "norms.means": unit * np.sqrt(noise + every_round),
        "norms.displacement": unit * np.sqrt(moved + final * np.sum(weights**2)),
    }
    found = RealUpdates.of(record.with_values(**values))
    np.testing.assert_allclose(found.every_round, every_round, rtol=1e-2)
    assert found.final == pytest.approx(final, rel=1e-2)


@pytest.mark.parametrize("schedule", ["cyclic", "poisson", "balls-in-bins"])
@pytest.mark.parametrize("sees", ["final", "all"])
@pytest.mark.parametrize("worst_case", [False, True], ids=["random", "worst-case"])
def test_a_comparison_finds_the_epsilon_that_noise_was_advised_for(
    tmp_path, schedule, sees, worst_case
):
    mechanism, clients = "banded:bands=3", 640
    strategy = parse_strategy(mechanism, ROUNDS).matrix()
    advice = noise_for_epsilon(
        make_schedule(schedule, ROUNDS, 4.0),
        2.0,
        DELTA,
        adversary=Adversary(sees),
        worst_case=worst_case,
        population=clients,
        strategy=strategy,
    )
    plan = ComparisonPlan(
        schedules=(schedule,),
        mechanisms=(mechanism,),
        noise_multipliers=(advice.noise_multiplier,),
        participations=(4.0,),
        rounds=ROUNDS,
        clients=clients,
        delta=DELTA,
        server_momentum=0.0,
    )
    (row,) = carry_out(plan, tmp_path, workers=1)
    found = row.final if sees == "final" else row.every_round
    assert (found.worst_case if worst_case else found.epsilon) == pytest.approx(2.0, rel=1e-6)
    assert advice.analytical[0].rounds_known
    assert advice.analytical[0] == dataclasses.replace(found.analytical, adjacency="zero-out")
    if schedule == "balls-in-bins":
        unknown = row.analytical_unknown_rounds
        assert unknown is not None
        assert unknown < found.analytical.epsilon
        assert worst_case or advice.analytical[1].epsilon == unknown


@pytest.mark.parametrize("sees", ["final", "all"])
@pytest.mark.parametrize("real", [None, RealUpdates(np.linspace(1, 2, ROUNDS), 5.0)])
def test_the_identity_is_independent_noise(sees, real):
    found = [
        noise_for_epsilon(
            ShuffledEpochs(ROUNDS, 1),
            2.0,
            DELTA,
            adversary=Adversary(sees),
            strategy=strategy,
            real=real,
        ).noise_multiplier
        for strategy in (None, np.eye(ROUNDS))
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.parametrize("mechanism", ["band", "banded:bands=65"])
def test_a_mechanism_that_is_none_is_named(mechanism):
    with pytest.raises(ValueError, match=f"mechanisms='{mechanism}'"):
        ComparisonPlan(mechanisms=(mechanism,), rounds=ROUNDS)
