"""Settings of a run."""

import dataclasses
import json

import numpy as np
import pytest

from fl_epe.checks import ArgumentError
from fl_epe.config import RunConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"clients": 0},
            "clients=0 to be an integer >= 1",
            id="clients=0-to-be-an-integer-at-least-1",
        ),
        pytest.param(
            {"rounds": 2.5}, "rounds=2.5 to be an integer", id="rounds=2.5-to-be-an-integer"
        ),
        pytest.param(
            {"num_canaries": 1},
            "num_canaries=1 to be an integer >= 2",
            id="canaries=1-to-be-an-integer-at-least-2",
        ),
        pytest.param(
            {"unobserved": 1},
            "unobserved=1 to be 0 or >= 2",
            id="unobserved=1-to-be-0-or-at-least-2",
        ),
        pytest.param(
            {"clients_per_round": 31},
            "clients_per_round=31 <= clients=30",
            id="clients_per_round=31-at-most-clients=30",
        ),
        pytest.param(
            {"canary_participations": 61},
            r"canary_participations=61 in \(0, rounds=60\]",
            id="canary_participations=61-in-0,rounds=60",
        ),
        pytest.param(
            {"canary_participations": 0},
            "canary_participations=0 in",
            id="canary_participations=0-in",
        ),
        pytest.param(
            {"canary_participations": "often"},
            r"canary_participations='often' to be a number or one of \('as-clients',\)",
            id="canary_participations=often",
        ),
        pytest.param(
            {"noise_multiplier": -0.1},
            r"noise_multiplier=-0\.1 in \[0, inf\)",
            id="noise_multiplier=-0.1-in-0,inf",
        ),
        pytest.param(
            {"noise_multiplier": np.nan}, "noise_multiplier=nan", id="noise_multiplier=nan"
        ),
        pytest.param(
            {"noise_multiplier": 50.0},
            r"noise_multiplier=50\.0 < 2 \* clip_count_std=1\.2",
            id="noise_multiplier=50.0-below-2-count_std",
        ),
        pytest.param({"delta": 1.0}, r"delta=1\.0 in \(0, 1\)", id="delta=1.0-in-0,1"),
        pytest.param(
            {"clipping": "soft"}, "clipping='soft' to be one of", id="clipping=soft-to-be-one-of"
        ),
        pytest.param(
            {"participation": "weekly"}, "kind='weekly' to be one of", id="kind=weekly-to-be-one-of"
        ),
        pytest.param(
            {"server_optimizer": "lion"},
            "server_optimizer='lion' to be one of",
            id="server_optimizer=lion-to-be-one-of",
        ),
        pytest.param(
            {"clip_norm": -1.0}, r"clip_norm=-1\.0 in \(0, inf\)", id="clip_norm=-1.0-in-0,inf"
        ),
        pytest.param(
            {"server_momentum": 1.0}, r"momentum=1\.0 in \[0, 1\)", id="momentum=1.0-in-0,1"
        ),
        pytest.param(
            {"local_learning_rate": 0.0},
            r"local_learning_rate=0\.0 in \(0, inf\)",
            id="local_learning_rate=0.0-in-0,inf",
        ),
    ],
)
def test_settings_are_checked_before_anything_starts(changes, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**{"clients": 30, **changes})


def test_settings_round_trip_and_defaults():
    config = RunConfig(clients=120, delta=1e-3)
    assert RunConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert RunConfig(clients=120).target_delta == 120**-1.1
    # 24 clients and 1000 canaries once in 60 rounds
    assert RunConfig(clients=120).cohort_size == pytest.approx(24 + 1000 / 60)


def test_a_value_of_any_length_is_shown_in_part():
    with pytest.raises(ArgumentError, match="participation=") as refusal:
        RunConfig(clients=100, participation="x" * 100_000)
    assert len(str(refusal.value)) < 2000


@pytest.mark.parametrize(
    ("participation", "per_round", "expected"),
    [
        pytest.param("epochs", 24, 24.0, id="epochs"),
        pytest.param("epochs", 23, 23.0, id="epochs-23"),
        pytest.param("cyclic", 7, 7.0, id="cyclic"),
        pytest.param("balls-in-bins", 5, 5.0, id="balls-in-bins"),
        pytest.param("poisson", 7, 7.0, id="poisson"),
    ],
)
def test_canaries_take_part_as_often_as_clients(participation, per_round, expected):
    config = RunConfig(
        clients=60,
        clients_per_round=per_round,
        participation=participation,
        canary_participations="as-clients",
    )
    assert config.canary_participations == expected
    assert config.canary_schedule() == config.client_schedule()
    assert RunConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_as_clients_is_whole_and_at_least_once_where_all_take_part_equally_often():
    def often(clients: int, participation: str) -> float:
        config = RunConfig(
            clients=clients,
            rounds=60,
            clients_per_round=24,
            participation=participation,
            canary_participations="as-clients",
        )
        return float(config.canary_participations)

    assert often(51, "epochs") == 28.0  # 28.24
    assert often(2880, "epochs") == 1.0  # 0.5
    assert often(51, "poisson") == pytest.approx(60 * 24 / 51)
    assert often(2880, "poisson") == 0.5
