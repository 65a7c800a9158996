"""The client of a privacy claim is the one with the largest expected score."""

import numpy as np
import pytest
from records import make_record

from fl_epe.auditing import EVERY_ROUND, FINAL_MODEL, AuditedClient, ClientLog


@pytest.mark.parametrize(
    "adversary", [EVERY_ROUND, FINAL_MODEL], ids=["all", "final"]
)
def test_a_client_in_few_rounds_that_weigh_more_is_the_most_exposed(adversary):
    # Client 0 is in the first four of six rounds, client 1 in the last two.
    log = ClientLog(np.array([0, 0, 0, 0, 1, 1]), np.arange(7))
    record = make_record(clients=log)
    most = AuditedClient.of(record, adversary, worst_case=True)
    assert most.participations == 4
    contributions = record.mechanism.contribution_norms * np.array(
        [1, 1, 1, 1, 5, 5]
    )
    late = make_record(clients=log, contributions=contributions)
    most = AuditedClient.of(late, adversary, worst_case=True)
    assert most.participations == 2
    assert most.patterns[:, 0].tolist() == [False] * 4 + [True] * 2
