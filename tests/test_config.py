"""Settings of a run."""

import dataclasses
import json

import numpy as np
import pytest

from fl_epe.checks import ArgumentError
from fl_epe.config import RunConfig


@pytest.mark.parametrize("z", [0.25, 1.0, 1.79, 4.0])
@pytest.mark.parametrize("clients", [2, 3, 4, 5])
def test_any_noise_fits_few_clients_by_default(clients, z):
    """The count of few voters is noisy enough that the sum has a part of the budget."""
    for cohort in range(1, clients + 1):
        config = RunConfig(
            clients=clients, clients_per_round=cohort, noise_multiplier=z
        )
        std = config.clip_rule().count_std
        assert z < config.sum_noise_multiplier() < 1.16 * z
        assert config.sum_noise_multiplier() ** -2 + (
            2 * std
        ) ** -2 == pytest.approx(z**-2)


@pytest.mark.parametrize("clients", [10, 40, 200])
def test_the_noise_on_the_count_of_more_clients_is_a_twentieth(clients):
    config = RunConfig(clients=clients, clients_per_round=clients // 2)
    assert config.clip_rule().count_std == clients // 2 / 20


def test_a_count_with_too_little_noise_names_a_number_that_works():
    typed = {"clients": 5, "clients_per_round": 2, "noise_multiplier": 0.3}
    with pytest.raises(ArgumentError, match=r"Set the latter to 0\.3,"):
        RunConfig(**typed, clip_count_std=0.1)
    assert RunConfig(**typed, clip_count_std=0.3).sum_noise_multiplier() < 0.35


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"clients": 0},
            "clients=0 to be an integer >= 1",
            id="clients=0-to-be-an-integer-at-least-1",
        ),
        pytest.param(
            {"rounds": 2.5},
            "rounds=2.5 to be an integer",
            id="rounds=2.5-to-be-an-integer",
        ),
        pytest.param(
            {"num_canaries": 1, "canary_design": "paper"},
            "num_canaries=1 to be 0 or an integer >= 2",
            id="canaries=1-to-be-0-or-at-least-2",
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
            "canary_participations='often' to be a finite number",
            id="canary_participations=often",
        ),
        pytest.param(
            {"num_canaries": 1, "participation": "poisson"},
            "num_canaries=1 to be 0 or",
            id="one-canary-of-secret-rounds",
        ),
        pytest.param(
            {"canary_share": 1.0},
            r"canary_share=1\.0 in \(0, 1\)",
            id="canary_share=1.0",
        ),
        pytest.param(
            {"inclusion": "coin"},
            "Expected canary_design='ladder' to be 'paper', or canary_participations, with "
            "inclusion='coin'",
            id="coins-on-a-ladder",
        ),
        pytest.param(
            {"noise_multiplier": -0.1},
            r"noise_multiplier=-0\.1 in \[0, inf\)",
            id="noise_multiplier=-0.1-in-0,inf",
        ),
        pytest.param(
            {"noise_multiplier": np.nan},
            "noise_multiplier=nan",
            id="noise_multiplier=nan",
        ),
        pytest.param(
            {"noise_multiplier": 50.0, "clip_count_std": 1.2},
            r"noise_multiplier=50\.0 < 2 \* clip_count_std=1\.2",
            id="noise_multiplier=50.0-below-2-count_std",
        ),
        pytest.param(
            {"delta": 1.0}, r"delta=1\.0 in \(0, 1\)", id="delta=1.0-in-0,1"
        ),
        pytest.param(
            {"clipping": "soft"},
            "clipping='soft' to be one of",
            id="clipping=soft-to-be-one-of",
        ),
        pytest.param(
            {"participation": "weekly"},
            "kind='weekly' to be one of",
            id="kind=weekly-to-be-one-of",
        ),
        pytest.param(
            {"server_optimizer": "lion"},
            "server_optimizer='lion' to be one of",
            id="server_optimizer=lion-to-be-one-of",
        ),
        pytest.param(
            {"clip_norm": -1.0},
            r"clip_norm=-1\.0 in \(0, inf\)",
            id="clip_norm=-1.0-in-0,inf",
        ),
        pytest.param(
            {"server_momentum": 1.0},
            r"momentum=1\.0 in \[0, 1\)",
            id="momentum=1.0-in-0,1",
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
    assert (
        RunConfig(**json.loads(json.dumps(dataclasses.asdict(config))))
        == config
    )
    assert RunConfig(clients=120).target_delta == 120**-1.1
    # 24 clients, and 13 more clients' places of 12 participations in 60 rounds
    assert RunConfig(clients=120).cohort_size == 24
    assert RunConfig(clients=120).canaries_per_round == pytest.approx(
        13 * 12 / 60
    )


def test_the_papers_design_and_what_the_user_fixes():
    paper = RunConfig(clients=120, canary_design="paper")
    assert (
        paper.num_canaries,
        paper.unobserved,
        paper.canary_participations,
    ) == (
        1000,
        1000,
        1.0,
    )
    assert paper.canaries_per_round == pytest.approx(1000 / 60)
    fixed = RunConfig(clients=120, num_canaries=30, canary_participations=2)
    assert fixed.canaries_per_round == pytest.approx(30 * 2 / 60)
    often = RunConfig(clients=120, canary_participations=12)
    assert (often.num_canaries, often.canaries_per_round) == (13, 2.6)
    places = RunConfig(clients=120, num_canaries=5)
    assert (places.load.places, places.canaries_per_round) == (5, 1.0)
    assert places.load.forecasts
    assert RunConfig(clients=120, num_canaries=0).canaries_per_round == 0
    coins = RunConfig(
        clients=120, inclusion="coin", num_canaries=30, canary_participations=2
    )
    assert (coins.unobserved, coins.canaries_per_round) == (
        30,
        fixed.canaries_per_round,
    )
    assert {
        each.cohort_size for each in (paper, fixed, often, places, coins)
    } == {24}


@pytest.mark.slow
@pytest.mark.parametrize(
    "participation", ["epochs", "poisson", "min-separation:separation=2"]
)
@pytest.mark.parametrize(
    ("clients", "cohort", "share"),
    [(120, 24, 0.1), (10, 5, 0.3), (24, 12, 0.1), (5, 2, 0.3), (2000, 20, 0.1)],
)
def test_canaries_are_at_most_their_share_of_a_round(
    participation, clients, cohort, share
):
    config = RunConfig(
        clients=clients,
        clients_per_round=cohort,
        participation=participation,
        canary_share=share,
        noise_multiplier=0.25 if cohort > 2 else 0.1,
    )
    together = config.cohort_size + config.canaries_per_round
    assert config.canaries_per_round <= share * together + 1e-9
    assert len(config.canary_plan()) <= 4
    again = RunConfig(**json.loads(json.dumps(dataclasses.asdict(config))))
    assert (again, again.load) == (config, config.load)


def test_without_room_for_canaries_the_run_says_that_it_measures_nothing():
    config = RunConfig(clients=10, clients_per_round=5, participation="poisson")
    assert config.canaries_per_round == 0
    assert (
        "No two canaries fit beside 10 clients in 60 rounds"
        in config.canary_plan()[0]
    )
    assert (
        "no canaries"
        in RunConfig(
            clients=10, clients_per_round=5, num_canaries=0
        ).canary_plan()[0]
    )


def test_a_value_of_any_length_is_shown_in_part():
    with pytest.raises(ArgumentError, match="participation=") as refusal:
        RunConfig(clients=100, participation="x" * 100_000)
    assert len(str(refusal.value)) < 2000
