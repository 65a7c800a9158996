"""The limit with correlated noise: what theory says of clients, and comparisons of mechanisms."""

import numpy as np
import pytest
from limit_settings import limit_weights

from fl_epe.accounting import epsilon_two_gaussians, gaussian_epsilon
from fl_epe.auditing import EVERY_ROUND, Adversary, answer, scores_of, seen_by
from fl_epe.auditing.answer.ladder_fit import ladder_fit
from fl_epe.limit import (
    ComparisonPlan,
    carry_out,
    expected_record,
    limit_record,
    median_client,
    noise_for_epsilon,
)
from fl_epe.limit.client import expected_epsilon
from fl_epe.limit.simulated_record import RealUpdates
from fl_epe.mechanism import parse_strategy, sgd_weights
from fl_epe.schedules import ShuffledEpochs, make_schedule

ROUNDS, Z, DELTA = 64, 0.5, 1e-5
SPECS = ("tree", "banded:bands=8", "toeplitz", "blt")
REAL = RealUpdates(np.linspace(1, 2, ROUNDS), 5.0)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_participation_has_the_scores_of_theory(spec, momentum):
    strategy = parse_strategy(spec, ROUNDS).matrix()
    schedule = ShuffledEpochs(ROUNDS, 1)
    final, every = limit_weights(
        schedule, Z, strategy=strategy, momentum=momentum
    )
    weights = sgd_weights(np.ones(ROUNDS), momentum)
    hidden = Z * np.linalg.norm(weights @ np.linalg.inv(strategy))
    np.testing.assert_allclose(final, weights / hidden)
    np.testing.assert_allclose(
        np.sqrt(every), np.linalg.norm(strategy, axis=0) / Z, rtol=1e-6
    )


@pytest.mark.parametrize("spec", SPECS)
def test_several_participations_add_up_as_the_strategy_says(spec):
    strategy = parse_strategy(spec, ROUNDS).matrix()
    schedule = ShuffledEpochs(ROUNDS, 4)
    options = {"num_canaries": 20, "strategy": strategy}
    record = limit_record(schedule, Z, DELTA, **options)
    found = seen_by(record, EVERY_ROUND).expected_scores.observed
    np.testing.assert_allclose(
        found, np.linalg.norm(strategy @ record.presence, axis=0) / Z, rtol=1e-6
    )
    hidden = limit_record(schedule, Z, DELTA, real=REAL, **options)
    assert np.all(seen_by(hidden, EVERY_ROUND).expected_scores.observed < found)


@pytest.mark.parametrize("real", [None, REAL], ids=["noise", "real"])
@pytest.mark.parametrize("sees", ["final", "all"])
def test_scores_have_the_means_and_the_width_that_are_expected(sees, real):
    count = 2000
    strategy = parse_strategy("banded:bands=8", ROUNDS).matrix()
    record = limit_record(
        ShuffledEpochs(ROUNDS, 4),
        Z,
        DELTA,
        num_canaries=count,
        unobserved=count,
        strategy=strategy,
        momentum=0.9,
        real=real,
    )
    view = seen_by(record, Adversary(sees))
    scores = scores_of(view)
    for rest in (
        scores.observed - view.expected_scores.observed,
        scores.unobserved,
    ):
        assert abs(rest.mean()) < 4 / np.sqrt(count)
        assert abs(rest.std() - 1) < 4 / np.sqrt(2 * count)
    again = RealUpdates.of(record)
    np.testing.assert_allclose(
        again.every_round, 0 if real is None else real.every_round, 0, 1e-6
    )
    assert again.final == pytest.approx(
        0 if real is None else real.final, abs=1e-6
    )


def test_server_steps_are_those_of_its_rounds():
    strategy = parse_strategy("tree", ROUNDS).matrix()
    record = limit_record(
        ShuffledEpochs(ROUNDS, 1),
        Z,
        DELTA,
        num_canaries=3,
        strategy=strategy,
        momentum=0.5,
    )
    velocity = np.zeros(3)
    for t, mean in enumerate(
        record.observed.means * record.norms.means[:, None]
    ):
        velocity = 0.5 * velocity + mean
        cosines = velocity / record.norms.model_updates[t]
        np.testing.assert_allclose(
            record.model_update_cosines()[0][t], cosines, rtol=1e-9
        )


def test_the_final_model_tells_more_the_more_noise_is_taken_back():
    epsilons = []
    for spec in ("banded:bands=1", "banded:bands=8", "banded:bands=64"):
        strategy = parse_strategy(spec, ROUNDS).matrix()
        final, every = limit_weights(
            ShuffledEpochs(ROUNDS, 1), 0.25, strategy=strategy
        )
        epsilons.append(epsilon_two_gaussians(0, 1, final[0], 1, DELTA))
        assert every[0] == pytest.approx(0.25**-2)
    assert epsilons[0] == pytest.approx(
        gaussian_epsilon(0.25 * np.sqrt(ROUNDS), DELTA)
    )
    assert np.all(np.diff(epsilons) > 1)


@pytest.mark.slow
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
    assert list(rows) == [
        "cyclic",
        "cyclic, banded:bands=8",
        "poisson",
        "poisson, banded:bands=8",
    ]
    plain, banded = rows["cyclic"], rows["cyclic, banded:bands=8"]
    truth = gaussian_epsilon(1.0, plain.delta, 4)
    for row in (
        plain,
        banded,
    ):  # 16 rounds apart, so that 8 bands change little
        assert row.of("median", "all").epsilon == pytest.approx(truth, rel=0.02)
        assert row.of("median", "all").theory.epsilon == pytest.approx(
            truth, rel=0.02
        )
    assert (
        banded.of("median", "final").epsilon
        > 2 * plain.of("median", "final").epsilon
    )
    assert not any(row.above for row in rows.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "sees"),
    [("cyclic", "final"), ("cyclic", "all"), ("balls-in-bins", "final")],
    ids=["cyclic-final", "cyclic-all", "balls-in-bins"],
)
def test_runs_with_correlated_noise_say_what_noise_was_advised_for(
    schedule, sees
):
    runs, made, scales = 40, make_schedule(schedule, ROUNDS, 4.0), []
    strategy = parse_strategy("banded:bands=3", ROUNDS).matrix()
    advice = noise_for_epsilon(
        made, 4.0, DELTA, 120, sees=sees, strategy=strategy
    )
    for seed in range(runs):
        record = limit_record(
            made,
            advice.noise_multiplier,
            DELTA,
            num_canaries=13,
            unobserved=2,
            beside=120,
            strategy=strategy,
            seed=seed,
        )
        view = seen_by(record, Adversary(sees))
        scales.append(ladder_fit(view, scores_of(view)).scale)
    assert abs(np.mean(scales) - 1) < 4 * np.std(scales, ddof=1) / np.sqrt(runs)
    report = answer(
        record, Adversary(sees, knows_rounds=advice.answer.theory.knows_rounds)
    )
    assert report.analytical.epsilon == pytest.approx(
        advice.answer.theory.epsilon, rel=0.05
    )
    assert expected_epsilon(record, sees) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("sees", ["final", "all"])
@pytest.mark.parametrize("real", [None, REAL], ids=["noise", "real"])
def test_the_identity_is_independent_noise(sees, real):
    schedule = ShuffledEpochs(ROUNDS, 1)
    first, second = (
        median_client(
            expected_record(
                schedule, Z, DELTA, 64, strategy=strategy, real=real
            ),
            sees,
        )
        for strategy in (None, np.eye(ROUNDS))
    )
    assert second.epsilon == pytest.approx(first.epsilon, rel=1e-6)
    assert second.theory.epsilon == pytest.approx(
        first.theory.epsilon, rel=1e-6
    )


@pytest.mark.parametrize("mechanism", ["band", "banded:bands=65"])
def test_a_mechanism_that_is_none_is_named(mechanism):
    with pytest.raises(ValueError, match=f"mechanisms='{mechanism}'"):
        ComparisonPlan(mechanisms=(mechanism,), rounds=ROUNDS)
