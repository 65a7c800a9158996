"""Canaries of the opposite direction: the sum of a worker differs by them alone."""

import numpy as np
import pytest

from fl_epe.canaries import CanarySet
from fl_epe.simulation import InProcessGrid
from fl_epe.simulation.messages import PartialAggregate, TrainInstruction
from simulations.pradhan_2025.substitute_clients import (
    LinearDigitsTask,
    signed_app,
)

pytest.importorskip("sklearn")


def test_a_canary_of_sign_minus_takes_part_with_the_opposite_update():
    from flwr.app import Message, MessageType

    task = LinearDigitsTask(num_clients=4)
    order = TrainInstruction(
        theta=task.initial(1), round_number=1, clip_norm=2.0, clients=[], canary_ids=[0, 2],
        canary_seed=5, num_canaries=3, canary_kind="rotation", local_seed=1, local_epochs=1,
        local_batch_size=5, local_learning_rate=0.1, separate=False,
    )  # fmt: skip
    vectors = [CanarySet(len(order.theta), 3, 5).vector(i) for i in range(3)]
    for signs in ((1, 1, -1), (-1, 1, 1), (-1, -1, -1), (1, 1, 1)):
        with InProcessGrid(signed_app(task, np.array(signs)), 1) as grid:
            message = Message(order.encode(), 1, MessageType.TRAIN)
            (reply,) = grid.send_and_receive([message])
        total = PartialAggregate.decode(reply.content).total
        expected = 2.0 * (signs[0] * vectors[0] + signs[2] * vectors[2])
        np.testing.assert_allclose(total, expected, atol=1e-5)
