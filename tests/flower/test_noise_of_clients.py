"""Noise that clients add themselves, which canaries made on the server do not have."""

import pytest
from flower_audits import PLAIN, fixed, run
from flower_clients import digits_app, digits_model, drifting_app
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import strategy as flower

from fl_epe.reporting import summarize

LOCAL_DP = LocalDpMod(
    1.0, 1.0, 1.0, 1e-5
)  # noise 300 times as long as the clipped update


@pytest.mark.slow
def test_noise_that_drowns_updates_is_named_and_nothing_is_proved():
    audit, _ = run(fixed(), digits_app([LOCAL_DP]), digits_model(), rounds=12)
    summary = summarize(audit.record())
    assert summary.status == "unreliable"
    assert "noise that clients add themselves" in summary.warnings[0].text
    assert [line.proved for line in summary.answers] == [None, None]


@pytest.mark.slow
def test_without_clipping_it_is_not_known_how_long_an_update_is():
    audit, _ = run(
        flower.FedAvg(**PLAIN),
        digits_app([LOCAL_DP]),
        digits_model(),
        rounds=12,
    )
    assert summarize(audit.record()).status == "not measured"
    assert "looks like noise of their own" in audit.report()


@pytest.mark.slow
@pytest.mark.parametrize("app", [drifting_app, digits_app])
def test_updates_without_noise_are_not_taken_for_noise(app):
    arrays = digits_model() if app is digits_app else None
    audit, _ = run(flower.FedAvg(**PLAIN), app(), arrays, rounds=12)
    assert not audit.record().findings.clients_add_noise
