"""How many canaries an audit takes, and whether they show what was said before the run."""

import numpy as np
import pytest

from fl_epe.auditing import (
    Adversary,
    AuditedClient,
    canary_load,
    client_epsilon,
    ladder_fit,
    seen_by,
)
from fl_epe.auditing.recorder.canary_load import are_narrow
from fl_epe.limit import limit_record
from fl_epe.schedules import make_schedule, presence

DELTA = 1e-5


def load_of(
    clients=120, rounds=60, participations=12, noise_multiplier=1.0, **more
):
    return canary_load(
        clients,
        rounds=rounds,
        participations=participations,
        noise_multiplier=noise_multiplier,
        delta=DELTA,
        **more,
    )


@pytest.mark.parametrize("clients", [1, 2, 3, 8, 10, 24, 120, 9_999])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_canaries_are_at_most_their_share_of_a_round(clients, share):
    load = load_of(clients, share=share)
    fit = (
        clients * load.participations * share / (1 - share)
    )  # participations of canaries
    assert load.share <= share + 1e-9
    assert (load.share > 0) == (fit >= 2)
    assert load.round_share == 1 or load.places == 1


def test_no_more_canaries_than_narrow_intervals_need():
    load = load_of(100_000)
    assert load.places < 1000
    assert are_narrow(load.forecasts)
    assert load_of(100_000, noise_multiplier=None).places == 1000
    assert not are_narrow(load_of(120).forecasts)


@pytest.mark.parametrize(
    ("clients", "places"), [(3, 0), (17, 0), (18, 2), (100, 11)]
)
def test_canaries_of_secret_rounds_keep_their_law(clients, places):
    load = load_of(clients, secret=True)
    assert (load.places, load.round_share) == (places, 1.0)
    here = presence(
        make_schedule("poisson", 60, 12), 5, np.random.default_rng(0)
    )
    assert load.presence(here, np.random.default_rng(1)) is here


def test_a_place_that_is_too_much_keeps_a_part_of_its_rounds():
    load = load_of(3, 30, 30)
    here = load.presence(np.ones((30, 1), bool), np.random.default_rng(0))
    assert here.sum() == 10  # a third of a client beside three
    assert sorted(here.sum(axis=0), reverse=True) == [5, 3, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "participations", "clients", "z"),
    [
        ("epochs", 12, 120, 1.0),
        ("poisson", 12, 120, 1.0),
        ("epochs", 0.3, 3000, 0.25),
    ],
    ids=["epochs", "poisson", "few_come"],
)
def test_what_was_said_is_what_intervals_are(kind, participations, clients, z):
    setting = {"participations": participations, "noise_multiplier": z}
    load = load_of(clients, secret=kind == "poisson", **setting)
    schedule = make_schedule(kind, 60, participations)
    beside = {"beside": clients, "unobserved": 2}
    records = [
        limit_record(
            schedule,
            z,
            DELTA,
            num_canaries=load.places,
            momentum=0,
            seed=s,
            **beside,
        )
        for s in range(16)
    ]
    for said in load.forecasts:
        views = [seen_by(record, Adversary(said.sees)) for record in records]
        fits = [ladder_fit(view) for view in views]
        scales = np.mean(
            [(fit.scale, fit.low, fit.high) for fit in fits], axis=0
        )
        client = AuditedClient.of(records[0])
        epsilon, low, high = (
            client_epsilon(views[0], client, s, DELTA) for s in scales
        )
        assert epsilon == pytest.approx(said.epsilon, rel=0.15)
        assert high - low == pytest.approx(said.high - said.low, rel=0.2)


@pytest.mark.parametrize("z", [0.1, 0.125, 0.15625])
def test_what_is_said_of_secret_rounds_with_little_noise_is_in_order(z):
    """ε of 700 and more: the exponential of such a loss overflows."""
    load = load_of(
        rounds=40, participations=10, noise_multiplier=z, secret=True
    )
    for found in load.forecasts:
        assert found.low < found.epsilon < found.high


def test_sentences_say_what_would_help():
    assert "No two canaries fit" in load_of(3, secret=True).sentences()[0]
    lines = load_of(10, 30, 30).sentences()
    assert "1 more client beside 10 clients: 9.1% of a round" in lines[0]
    assert "times as many clients" in lines[-1]
    assert not any(
        "would make" in line for line in load_of(100_000).sentences()
    )
