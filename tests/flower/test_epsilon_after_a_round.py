"""ε after a round is said once: every engine's record and report have what the run said."""

import numpy as np
import pytest
from flower_audits import run
from flwr.serverapp import strategy as flower
from tiny import Tiny

from fl_epe import RoundFacts, RunAuditor, audit_dp_sgd
from fl_epe.auditing import answers, epsilon_by_round
from fl_epe.config import RunConfig
from fl_epe.dp_sgd import PlainDPSGD
from fl_epe.reporting.chart_rounds import rounds_chart
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate

CONFIG = RunConfig(
    clients=20,
    rounds=6,
    clients_per_round=8,
    num_canaries=20,
    unobserved=20,
    canary_participations=2,
    noise_multiplier=0.5,
)


ALL = ("epsilon-all", "epsilon-all-low", "epsilon-all-high")


def own_loop():
    rng, theta, reported = (
        np.random.default_rng(1),
        np.zeros(2000, np.float32),
        [],
    )
    auditor = RunAuditor(20, 20, seed=1, delta=1e-5, planned=30.0)
    auditor.begin(theta)
    for t in range(6):
        present = [i for i in range(20) if (i + t) % 4 == 0]
        mean = auditor.canaries.combine(
            np.ones((1, len(present))), numbers=present
        )[0]
        theta = (theta + mean + rng.standard_normal(2000) / 50).astype(
            np.float32
        )
        auditor.observe(theta, RoundFacts(present, contribution=1.0))
        reported.append(auditor.epsilon_so_far())
    return auditor.record(), reported


def in_process():
    reported = []
    record = simulate(
        Job(Tiny(), CONFIG, Seeds.derive(7)),
        on_round=lambda now: reported.append(now.epsilons),
    )
    measured = [now for now in reported if not np.isnan(now[ALL[0]])]
    return record, [tuple(now[name] for name in ALL) for now in measured]


def _in_metrics(result):
    rounds = result.train_metrics_clientapp
    return [
        tuple(rounds[t][name] for name in ALL)
        for t in rounds
        if ALL[0] in rounds[t]
    ]


def around_a_strategy():
    strategy = flower.FedAvgM(
        fraction_evaluate=0,
        min_train_nodes=2,
        min_available_nodes=2,
        server_momentum=0.9,
    )
    # In every round, as clients: without noise nothing is said before the end otherwise.
    audit, result = run(strategy, participations=6, num_canaries=20, rounds=6)
    reported = _in_metrics(result)
    for name, answer in zip(
        ("final", "all"), answers(audit.record()), strict=True
    ):
        epsilon = pytest.approx(answer.estimate.epsilon, rel=1e-14)
        assert result.train_metrics_clientapp[6][f"epsilon-{name}"] == epsilon
    return audit.record(), [
        *reported[:-1],
        audit._run.recording.auditor.epsilon_so_far(),
    ]


def dp_sgd():
    optimizer = PlainDPSGD(
        np.zeros(2000),
        learning_rate=0.1,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=8,
        seed=0,
    )
    reported, rng = [], np.random.default_rng(2)
    with audit_dp_sgd(
        optimizer, num_canaries=40, delta=1e-5, sample_rate=0.2, seed=1
    ) as audit:
        for _ in range(6):
            optimizer.step(rng.standard_normal((8, 2000)))
            reported.append(audit._auditor.epsilon_so_far())
    return audit.record(), reported


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [own_loop, in_process, around_a_strategy, dp_sgd]
)
def test_it_is_the_same_during_the_run_and_in_the_record_and_the_report(engine):
    record, reported = engine()
    reported = [
        e if e is None or isinstance(e, tuple) else (e.epsilon, e.low, e.high)
        for e in reported
    ]
    estimates = epsilon_by_round(record)
    intervals = [
        (e.estimate.epsilon, e.estimate.low, e.estimate.high) for e in estimates
    ]
    assert len(intervals) >= 4
    assert (
        intervals[:-1]
        == [values for values in reported if values is not None][
            -len(intervals) : -1
        ]
    )
    every = answers(record)[1]
    assert intervals[-1] == (
        every.estimate.epsilon,
        every.estimate.low,
        every.estimate.high,
    )
    chart = rounds_chart(record, every, record.delta)
    assert chart is not None
    drawn = next(trace for trace in chart.traces if trace["name"] == "ε so far")
    # A page keeps five digits.
    np.testing.assert_allclose(
        drawn["y"], [epsilon for epsilon, _, _ in intervals], rtol=1e-4
    )
