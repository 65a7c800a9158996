"""Rounds with fewer clients than the first one: fewer canaries, and the same share of replies."""

import numpy as np
import pytest
from flower_clients import drifting_app, model
from flwr.serverapp import strategy as flower

from fl_epe.flower import CanaryAudit, InProcessGrid

NODES = 36


def shrinking(clients_in):
    """FedAvg that asks fewer clients later: as many as a function of the round says."""

    class Shrinking(flower.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            messages = list(
                super().configure_train(server_round, arrays, config, grid)
            )
            return messages[: clients_in(server_round)]

    return Shrinking(
        fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=NODES
    )


def run(strategy, rounds, app=None, inject="auto"):
    """The real replies and the canaries of each round, and the audit."""
    audit = CanaryAudit(strategy, delta=1e-5, seed=1)
    audit._run.state.inject = inject
    with InProcessGrid(app or drifting_app(), NODES) as grid:
        audit.start(grid, model(), num_rounds=rounds)
    record = audit.record()
    offsets = record.clients.offsets
    assert offsets is not None
    return np.diff(offsets), record.presence.sum(axis=1), audit


@pytest.mark.slow
def test_canaries_keep_their_share_while_clients_leave():
    real, canaries, audit = run(
        shrinking(lambda t: max(2, NODES - 2 * (t - 1))), 24
    )
    assert audit.faults == []
    assert real[[0, -1]].tolist() == [NODES, 2]
    assert (canaries[real >= 10] > 0).all()
    assert canaries[real < 10].any()
    assert canaries.sum() - 1 <= 0.1 * (canaries.sum() + real.sum())
    assert (
        np.abs(canaries - 4 * real / NODES) < 1
    ).all()  # four in the first round


@pytest.mark.slow
@pytest.mark.parametrize("left", [2, 12, 20])
def test_a_sudden_loss_leaves_canaries_in_some_rounds(left):
    _, canaries, audit = run(shrinking(lambda t: NODES if t < 10 else left), 30)
    assert audit.faults == []
    assert canaries[9:].sum() == pytest.approx(21 * 4 * left / NODES, abs=1)


@pytest.mark.slow
def test_where_most_replies_are_lost_fewer_canaries_join():
    app = drifting_app(fails=lambda node, t: node % 6 > 0)
    real, canaries, audit = run(shrinking(lambda t: NODES), 30, app)
    assert set(real) == {6}
    assert not any("no canary" in fault for fault in audit.faults)
    assert canaries.sum() == pytest.approx(30 * 4 / 6, abs=1)


@pytest.mark.slow
def test_a_canary_never_answers_in_the_place_of_the_only_client():
    real, canaries, _ = run(
        shrinking(lambda t: NODES if t <= 2 else 1), 40, inject="replace"
    )
    assert real.tolist() == [NODES, NODES - 4] + [1] * 38
    assert canaries.tolist() == [0, 4] + [0] * 38
