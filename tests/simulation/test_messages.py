"""Orders and partial sums as messages."""

import dataclasses

import numpy as np
import pytest
from flwr.app import RecordDict

from fl_epe.simulation.messages import PartialAggregate, TrainInstruction


def test_orders_survive_the_wire():
    order = TrainInstruction(
        np.arange(3, dtype=np.float32),
        2,
        0.5,
        [1, 2],
        [],
        2**127 + 1,
        24,
        "sphere",
        2**100,
        1,
        16,
        0.1,
        True,
    )
    decoded = TrainInstruction.decode(order.encode())
    assert np.array_equal(decoded.theta, order.theta)
    assert dataclasses.replace(decoded, theta=0) == dataclasses.replace(
        order, theta=0
    )
    with pytest.raises(ValueError, match="a readable reply: KeyError: 'sums'"):
        PartialAggregate.decode(RecordDict())
