"""The limit with correlated noise: what theory says of clients, and comparisons of mechanisms."""

import numpy as np
import pytest

from fl_epe.accounting import epsilon_two_gaussians, gaussian_epsilon
from fl_epe.limit import ComparisonPlan, carry_out, limit_record
from fl_epe.limit.simulated_record import RealUpdates, limit_scores, limit_weights
from fl_epe.mechanism import parse_strategy, sgd_weights
from fl_epe.schedules import ShuffledEpochs

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


def test_a_run_with_correlated_noise_is_no_setting_of_the_limit():
    record = limit_record(ShuffledEpochs(ROUNDS, 1), Z, DELTA, num_canaries=10, unobserved=10)
    RealUpdates.of(record)
    with pytest.raises(ValueError, match="mechanism='correlated noise'"):
        RealUpdates.of(record.with_values(strategy=parse_strategy("tree", ROUNDS).matrix()))


@pytest.mark.parametrize("mechanism", ["band", "banded:bands=65"])
def test_a_mechanism_that_is_none_is_named(mechanism):
    with pytest.raises(ValueError, match=f"mechanisms='{mechanism}'"):
        ComparisonPlan(mechanisms=(mechanism,), rounds=ROUNDS)
