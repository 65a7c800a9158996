"""`client_noise=`: nodes that do not add the noise that they promise are named in the report."""

import logging
from collections.abc import Callable

import numpy as np
import pytest
from flower_audits import PLAIN, fixed, run, run_until
from flower_clients import drifting_app, model
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import strategy as flower

from fl_epe.flower import CanaryAudit, LocalDp
from fl_epe.reporting import summarize

PROMISE = LocalDp(epsilon=5.0, delta=1e-5, clip_norm=0.1)
MOD = LocalDpMod(clipping_norm=0.1, sensitivity=0.2, epsilon=5.0, delta=1e-5)
WITHOUT = 3  # partition of the node that adds no noise


def app(odd: Callable[[int], bool] = lambda partition: False) -> ClientApp:
    """Clients with Flower's module, but for those that are odd."""

    def noise(
        message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        if odd(int(context.node_config["partition-id"])):
            return call_next(message, context)
        return MOD(message, context, call_next)

    return drifting_app([noise])


@pytest.mark.slow
def test_a_node_without_noise_is_named_in_the_report():
    audit, _ = run(
        fixed(),
        app(lambda partition: partition == WITHOUT),
        client_noise=PROMISE,
    )
    faults = audit.record().findings.mechanism_faults
    assert len(faults) == 1
    assert "no noise in 6 of 6 replies" in faults[0]
    assert summarize(audit.record()).status == "faulty"
    named = [
        text for text in audit.faults if "no noise in 1 of 1 replies" in text
    ]
    assert len(named) == 1
    assert named[0].startswith("round 1, node ")


@pytest.mark.slow
def test_a_run_that_is_not_measured_names_the_node_too():
    odd = app(lambda partition: partition == WITHOUT)
    audit, _ = run(
        flower.FedAvg(**PLAIN), odd, client_noise=PROMISE, num_canaries=None
    )
    assert any("no noise in" in text for text in audit.faults)


@pytest.mark.slow
def test_clients_who_keep_the_promise_are_not_named_and_have_an_epsilon():
    audit, _ = run(fixed(), app(), client_noise=PROMISE)
    findings = audit.record().findings
    assert findings.mechanism_faults == ()
    assert "Noise of clients: as promised, by 60 replies." in findings.noise
    assert any("ε of a client by the noise" in text for text in findings.noise)
    promised = audit._run.recording.client_noise.promised
    assert promised is not None
    client = promised.epsilon()
    assert client is not None
    assert client.replies == 6
    assert client.low <= PROMISE.epsilon_of(replies=6) <= client.high


@pytest.mark.slow
def test_a_node_without_the_noise_of_all_others_is_named_without_a_promise():
    odd = app(lambda partition: partition == WITHOUT)
    audit, _ = run(flower.FedAvg(**PLAIN), odd, num_canaries=None)
    named = [
        text
        for text in audit.faults
        if "times the noise that other nodes seem to add" in text
    ]
    assert len(named) == 1
    assert named[0].startswith("round 1, node ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "odd",
    [lambda partition: False, lambda partition: True],
    ids=["all", "none"],
)
def test_nodes_alike_are_not_named_without_a_promise(odd):
    audit, _ = run(flower.FedAvg(**PLAIN), app(odd), num_canaries=None)
    assert not any(
        "that other nodes seem to add" in text for text in audit.faults
    )


@pytest.mark.slow
def test_what_protects_a_client_stands_first():
    audit, _ = run(fixed(), app(), client_noise=PROMISE)
    assert "ε of a client by the noise in its 6 replies: " in audit.report()


@pytest.mark.slow
def test_the_trained_model_is_the_same_as_without_the_promise():
    models = []
    for promise in (None, PROMISE):
        _, result = run(
            fixed(), drifting_app(), client_noise=promise
        )  # all are odd
        assert result.arrays is not None
        models.append(result.arrays.to_numpy_ndarrays())
    for without, with_promise in zip(*models, strict=True):
        np.testing.assert_allclose(
            without, with_promise, atol=1e-6
        )  # replies come in any order


@pytest.mark.slow
def test_an_error_of_the_test_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr("fl_epe.noise.PromisedNoise.add", lambda *given: 1 / 0)
    audit, result = run(fixed(), app(), client_noise=PROMISE)
    assert result.arrays
    assert any(
        "the noise of clients could not be tested" in text
        for text in audit.faults
    )
    assert audit.record().findings.mechanism_faults == ()


def test_vacuous_numbers_are_logged_before_the_first_round(caplog):
    promise = LocalDp(epsilon=10.0, delta=1e-5, clip_norm=1.0, sensitivity=1e-4)
    with caplog.at_level(logging.WARNING, logger="flwr.fl_epe"):
        CanaryAudit(flower.FedAvg(), delta=1e-5, client_noise=promise)
    assert "is 8.52e+08" in caplog.text


@pytest.mark.slow
def test_a_resumed_audit_still_knows_the_node(tmp_path):
    settings = {
        "delta": 1e-3,
        "seed": 1,
        "max_share": 1,
        "client_noise": PROMISE,
    }
    odd = app(lambda partition: partition == WITHOUT)
    keep = {"checkpoint": tmp_path, "num_canaries": 30}
    _, models = run_until(
        fixed(), model(), 6, kill=3, app=odd, **settings, **keep
    )
    audit, _ = run_until(fixed(), models[-1], 3, app=odd, **settings, **keep)
    faults = audit.record().findings.mechanism_faults
    assert len(faults) == 1
    assert "no noise in 6 of 6 replies" in faults[0]


def test_another_type_is_refused():
    with pytest.raises(ValueError, match="Expected client_noise=1"):
        CanaryAudit(flower.FedAvg(), delta=1e-5, client_noise=1.0)
