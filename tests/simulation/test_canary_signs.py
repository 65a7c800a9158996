"""Canaries of the opposite direction: what a worker adds for a canary whose sign is −1."""

import dataclasses

import numpy as np
import pytest
from tiny import Tiny

from fl_epe.canaries import CanarySet
from fl_epe.simulation import worker_app
from fl_epe.simulation.messages import TrainInstruction
from fl_epe.simulation.worker import execute

TASK = Tiny()
ORDER = TrainInstruction(
    theta=TASK.initial(1),
    round_number=1,
    clip_norm=2.0,
    clients=[],
    canary_ids=[0, 2],
    canary_seed=5,
    num_canaries=3,
    canary_kind="rotation",
    local_seed=1,
    local_epochs=1,
    local_batch_size=5,
    local_learning_rate=0.1,
    separate=True,
)


def test_a_canary_of_sign_minus_takes_part_with_the_opposite_update():
    vectors = [CanarySet(len(ORDER.theta), 3, 5).vector(i) for i in range(3)]
    for signs in ((1, 1, -1), (-1, 1, 1), (-1, -1, -1)):
        total = execute(TASK, ORDER, signs=signs).canaries_sum
        expected = 2.0 * (signs[0] * vectors[0] + signs[2] * vectors[2])
        np.testing.assert_allclose(total, expected, atol=1e-5)


def test_without_signs_every_canary_has_its_own_direction():
    plain = execute(TASK, ORDER).canaries_sum
    np.testing.assert_array_equal(plain, execute(TASK, ORDER, signs=(1, 1, 1)).canaries_sum)


def test_with_clients_the_sum_differs_by_the_canaries_alone():
    order = dataclasses.replace(ORDER, clients=[0, 1], separate=False)
    plus, minus = (execute(TASK, order, signs=(sign,) * 3).clients_sum for sign in (1, -1))
    canaries = execute(TASK, ORDER).canaries_sum
    assert canaries is not None
    np.testing.assert_allclose(plus - minus, 2 * canaries, atol=1e-4)


def test_another_sign_is_refused():
    with pytest.raises(ValueError, match=r"canary_signs=\[0, 1\] to be of -1 and 1"):
        worker_app(TASK, canary_signs=[0, 1])
