"""Runs that end before most clients have taken part."""

import pytest
from tiny import Tiny

from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, Progress, simulate


@pytest.mark.parametrize(
    "canaries", [pytest.param(None, id="audited"), pytest.param(0, id="plain")]
)
def test_a_run_in_which_the_median_client_takes_no_part_ends(canaries):
    config = RunConfig(
        clients=40, rounds=3, clients_per_round=4, num_canaries=canaries
    )
    seen: list[Progress] = []
    job = Job(Tiny(clients=40), config, Seeds.derive(1))
    record = simulate(job, workers=1, on_round=seen.append)
    assert record.rounds == 3
    assert (
        seen[-1].round == 3
    )  # with what is known of ε, which is computed there
