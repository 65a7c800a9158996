"""`next_round`: state in, state out."""

import copy
import dataclasses

import numpy as np
import pytest

from fl_epe.config import RunConfig
from fl_epe.mechanism import BLOCK
from fl_epe.seeding import Seeds
from fl_epe.simulation.dp_fedavg import (
    ClippedSums,
    ServerState,
    initial_state,
    next_round,
)

DIM = BLOCK + 3  # more than one block


def vectors(state: ServerState) -> list[np.ndarray]:
    """Every vector of a state."""
    return [state.theta, *state.optimizer.values(), *state.noise]


def sums(value: float, *, separate: bool = False) -> ClippedSums:
    """The sums of a round with two clients, one of which was clipped."""
    total = np.full(DIM, value)
    return ClippedSums(
        total, total / 2 if separate else None, clients=2, unclipped=1
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"server_optimizer": "adam"},
        {"mechanism": "banded:bands=3"},
        {"mechanism": "blt:buffers=2"},
        {"full_knowledge": True, "clipping": "fixed"},
    ],
    ids=["sgd", "adam", "banded", "blt", "full-knowledge"],
)
def test_the_same_state_has_the_same_next_state(options):
    config = RunConfig(
        clients=48, rounds=6, clients_per_round=4, num_canaries=0, **options
    )
    seeds = Seeds.derive(1)
    separate = config.full_knowledge
    state = initial_state(config, np.zeros(DIM, np.float32))
    for _ in range(
        2
    ):  # so that the optimizer and correlated noise remember something
        state, _ = next_round(
            config, seeds, state, sums(0.1, separate=separate)
        )
    kept_state, round_sums = copy.deepcopy(state), sums(0.3, separate=separate)
    kept_sums = copy.deepcopy(round_sums)
    first, first_released = next_round(config, seeds, state, round_sums)
    second, second_released = next_round(config, seeds, state, round_sums)
    for name, vector in first_released.items():
        np.testing.assert_array_equal(second_released[name], vector)
    for pair in zip(vectors(second), vectors(first), strict=True):
        np.testing.assert_array_equal(*pair)
    for pair in zip(vectors(state), vectors(kept_state), strict=True):
        np.testing.assert_array_equal(*pair)
    assert (second.clip_norm, second.rounds_done) == (
        first.clip_norm,
        first.rounds_done,
    )
    for name, value in dataclasses.asdict(kept_sums).items():
        np.testing.assert_array_equal(getattr(round_sums, name), value)


def test_noise_that_banded_noise_remembers_is_shared_between_states():
    config = RunConfig(
        clients=48,
        rounds=6,
        clients_per_round=4,
        num_canaries=0,
        mechanism="banded:bands=3",
    )
    state = initial_state(config, np.zeros(DIM, np.float32))
    after, _ = next_round(config, Seeds.derive(1), state, sums(0.1))
    assert after.noise[1] is state.noise[0]
