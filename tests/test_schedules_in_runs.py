"""Every schedule in a run and in the limit of a large model."""

import numpy as np
import pytest

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import EVERY_ROUND, AuditedClient, scores_of, seen_by
from fl_epe.auditing.answer.theory import analytical
from fl_epe.config import RunConfig
from fl_epe.limit import limit_record
from fl_epe.schedules import make_schedule, parse_schedule
from fl_epe.seeding import generator

RUN_SPECS = [
    "fixed-size",
    "min-separation:separation=3",
    "cyclic",
    "balls-in-bins",
    "k-out-of-t",
    "b-min-sep:separation=3",
    pytest.param(
        'device-classes:{"rates": [1, 3], "shares": [0.5, 0.5]}',
        id="device-classes",
    ),
    "drop-out:of=poisson,rate=0.25",
    "capped:of=poisson,per_run=2",
]


@pytest.mark.slow
@pytest.mark.parametrize("spec", RUN_SPECS)
def test_a_run_follows_any_schedule_and_knows_what_to_expect(spec):
    config = RunConfig(
        clients=40,
        rounds=12,
        clients_per_round=10,
        num_canaries=60,
        canary_participations=2,
        participation=spec,
    )
    for schedule, population in (
        (config.client_schedule(), 40),
        (config.canary_schedule(), 60),
    ):
        sizes = [
            np.mean(
                [
                    len(cohort)
                    for cohort in schedule.cohorts(population, generator(seed))
                ]
            )
            for seed in range(200)
        ]
        error = np.std(sizes) / np.sqrt(len(sizes))
        # "capped" is expected from a simulation of its own, see `Capped.participations`.
        assert (
            abs(np.mean(sizes) - schedule.cohort_size(population))
            < 4 * error + 0.05
        )
    assert config.cohort_size == config.client_schedule().cohort_size(40)
    assert config.canaries_per_round == pytest.approx(
        config.canary_schedule().cohort_size(60)
    )


def test_a_run_refuses_a_recorded_trace():
    with pytest.raises(ValueError, match="no recorded trace"):
        RunConfig(
            clients=40,
            rounds=12,
            clients_per_round=10,
            participation="trace:path=x.csv",
        )


@pytest.mark.parametrize("spec", RUN_SPECS)
def test_the_limit_meets_theory_at_known_rounds(spec):
    """Each canary's matched filter is N(√R/z, 1) for its own R participations."""
    kind, options = parse_schedule(spec)
    record = limit_record(
        make_schedule(kind, 24, 3, **options), 0.5, 1e-3, num_canaries=800
    )
    assert record.mechanism.participation.name == kind
    scores = scores_of(seen_by(record, EVERY_ROUND)).observed
    counts = record.presence.sum(axis=0)
    standard = scores - np.sqrt(counts[counts > 0]) / 0.5
    assert abs(standard.mean()) < 4 / np.sqrt(len(standard))
    assert abs(standard.std() - 1) < 4 / np.sqrt(2 * len(standard))
    client = AuditedClient(
        float(counts.max()), record.presence[:, counts == counts.max()]
    )
    theory = analytical(record.mechanism, client, 1e-3).epsilon
    assert theory == pytest.approx(
        gaussian_epsilon(0.5, 1e-3, int(counts.max()))
    )
