"""A run that is shorter than an epoch is measured: its canaries take part once each."""

import numpy as np
import pytest

from fl_epe.auditing import EVERY_ROUND, answer
from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.simulation.dp_fedavg import draw_plan
from fl_epe.tasks import find_task

WITHOUT_DOWNLOADS = ["digits", "synthetic-emnist", "synthetic-stackoverflow"]
CLIENTS = {"emnist": 3_383, "fashion-mnist": 500, "stackoverflow": 342_477}


def presence_of(**settings):
    return draw_plan(RunConfig(**settings), Seeds.derive(1)).presence


@pytest.mark.parametrize("clients", [100, 3_383, 342_477])
@pytest.mark.parametrize("rounds", [1, 3, 50])
def test_canaries_take_part_once_each_where_clients_take_part_less(
    clients, rounds
):
    per_round = 20 if rounds * 20 < clients else 1
    here = presence_of(
        clients=clients,
        rounds=rounds,
        clients_per_round=per_round,
        noise_multiplier=0.0,
    )
    assert here.shape[1] == int(rounds * per_round / 9 + 1e-9)
    assert here.shape[1] < 2 or (here.sum(axis=0) == 1).all()
    assert np.ptp(here.sum(axis=1)) <= 1  # spread over the run


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WITHOUT_DOWNLOADS, *CLIENTS])
@pytest.mark.parametrize("rounds", [3, None], ids=["three-rounds", "default"])
def test_every_task_has_canaries_that_take_part(name, rounds):
    kind = find_task(name).make
    clients = (
        CLIENTS[name] if name in CLIENTS else find_task(name).task().num_clients
    )
    given = {} if rounds is None else {"rounds": rounds}
    here = presence_of(clients=clients, **{**kind.defaults, **given})
    assert here.shape[1] >= 2
    assert here.any(axis=0).all()


def test_too_short_a_run_says_which_would_do():
    short = {"clients": 1000, "rounds": 3, "clients_per_round": 5}
    plan = " ".join(RunConfig(**short).canary_plan())
    assert plan.endswith(
        "4 rounds or canary_share=0.12 would make a measurement possible."
    )
    assert presence_of(**short).shape[1] == 0
    assert presence_of(**{**short, "rounds": 4}).any(axis=0).sum() == 2
    assert presence_of(**short, canary_share=0.12).any(axis=0).sum() == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["digits", pytest.param("synthetic-stackoverflow", marks=pytest.mark.slow)],
)
def test_three_rounds_are_measured(name):
    task = find_task(name).task()
    config = RunConfig(
        **{
            **task.defaults,
            "clients": task.num_clients,
            "rounds": 3,
            "clients_per_round": 20,
        }
    )
    record = simulate(
        Job(task, config, Seeds.derive(1), evaluate_every=3), workers=1
    )
    found = answer(record, EVERY_ROUND)
    assert record.presence.any(axis=0).sum() == 6
    assert found.participations == 1
    assert np.isfinite(found.estimate.high)
