"""What cannot be audited is refused."""

import inspect

import pytest
from flower_audits import DELTA, NODES, PLAIN, fixed, run
from flower_clients import drifting_app, model
from flwr.app import ConfigRecord
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp import strategy as flower

from fl_epe.config import RunConfig
from fl_epe.flower import CanaryAudit, DPFedAvg, InProcessGrid


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        pytest.param(
            lambda: flower.Krum(**PLAIN, num_malicious_nodes=1),
            "drops outliers",
            id="Krum",
        ),
        pytest.param(
            lambda: flower.Bulyan(**PLAIN, num_malicious_nodes=1),
            "drops outliers",
            id="Bulyan",
        ),
        pytest.param(
            lambda: flower.FedXgbBagging(**PLAIN), "trees", id="FedXgbBagging"
        ),
        pytest.param(
            lambda: fixed(flower.MultiKrum(**PLAIN)),
            "drops outliers",
            id="MultiKrum",
        ),
        pytest.param(
            lambda: CanaryAudit(fixed(), num_canaries=5, delta=DELTA),
            "is not audited already",
            id="CanaryAudit",
        ),
        pytest.param(
            lambda: fixed(
                DPFedAvg(RunConfig(clients=20, rounds=6, clients_per_round=10))
            ),
            "got DPFedAvg",
            id="DPFedAvg-inside",
        ),
    ],
)
def test_what_cannot_be_audited_is_refused_at_construction(strategy, reason):
    with pytest.raises(ValueError, match=reason):
        CanaryAudit(strategy(), num_canaries=10, delta=DELTA)


def test_a_legacy_strategy_is_refused_with_the_way_out():
    with pytest.raises(
        TypeError, match=r"FedAvg to be a flwr.serverapp.*fl_epe.RunAuditor"
    ):
        CanaryAudit(LegacyFedAvg(), num_canaries=10, delta=DELTA)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"num_canaries": 1},
            "num_canaries=1 >= 2",
            id="num_canaries=1-at-least-2",
        ),
        pytest.param({"delta": 0.0}, "delta=0.0 in", id="delta=0.0-in"),
        pytest.param({"seed": -1}, "seed=-1 >= 0", id="seed=-1-at-least-0"),
        pytest.param(
            {"unobserved": -1},
            "unobserved=-1 >= 0",
            id="unobserved=-1-at-least-0",
        ),
        pytest.param(
            {"participations": 0},
            "participations=0 in",
            id="participations=0-in",
        ),
        pytest.param({"rounds": 0}, "rounds=0 >= 1", id="rounds=0-at-least-1"),
        pytest.param(
            {"num_examples": 0}, "num_examples=0 in", id="num_examples=0-in"
        ),
        pytest.param(
            {"canary_norm": float("nan")},
            "canary_norm=nan to be",
            id="canary_norm=nan",
        ),
        pytest.param(
            {"noise_multiplier": -1.0},
            "noise_multiplier=-1.0 in",
            id="noise_multiplier=-1.0-in",
        ),
        pytest.param(
            {"max_share": 0}, r"max_share=0 in \(0, 1\]", id="max_share=0"
        ),
        pytest.param(
            {"replies": "both"}, "replies='both' to be", id="replies=both"
        ),
        pytest.param({"clients": 1.5}, "clients=1.5 in", id="clients=1.5-in"),
        pytest.param({"clients": []}, r"clients=\[\] to be", id="clients=none"),
        pytest.param(
            {"clients": [4, 4]}, r"clients=\[4, 4\] to be", id="clients=twice"
        ),
    ],
)
def test_bad_arguments_are_named(settings, message):
    arguments = {"num_canaries": 10, "delta": DELTA, **settings}
    with pytest.raises(ValueError, match=message):
        CanaryAudit(flower.FedAvg(**PLAIN), **arguments)


def test_an_argument_that_there_is_not_is_named():
    with pytest.raises(TypeError, match="'inject'"):
        CanaryAudit(
            flower.FedAvg(**PLAIN), num_canaries=10, delta=DELTA, inject="add"
        )
    names = list(inspect.signature(CanaryAudit).parameters)
    assert names[:3] == ["strategy", "delta", "num_canaries"]
    assert names[-1] == "log_to"


def test_more_rounds_than_were_given_are_refused_before_the_first():
    audit = CanaryAudit(
        flower.FedAvg(**PLAIN), num_canaries=10, delta=DELTA, rounds=3
    )
    with (
        InProcessGrid(drifting_app(), NODES) as grid,
        pytest.raises(ValueError, match="num_rounds=4 to be at most rounds=3"),
    ):
        audit.start(grid, model(), num_rounds=4)


def test_rounds_that_nobody_knows_are_asked_for_and_the_round_goes_on():
    audit = CanaryAudit(flower.FedAvg(**PLAIN), num_canaries=10, delta=DELTA)
    with InProcessGrid(drifting_app(), NODES) as grid:
        messages = list(audit.configure_train(1, model(), ConfigRecord(), grid))
        assert len(messages) == NODES
        arrays, _ = audit.aggregate_train(1, grid.send_and_receive(messages))
    assert arrays is not None
    assert "Expected rounds=… in CanaryAudit" in audit.faults[0]


def test_more_repeats_than_rounds_are_refused():
    with pytest.raises(ValueError, match="epochs=13"):
        run(flower.FedAvg(**PLAIN), participations=13)


@pytest.mark.parametrize(
    ("num_canaries", "participations", "unobserved"),
    [(80, None, 80), (4, 3, 20), (None, None, 20)],
)
def test_there_are_unobserved_canaries_enough_for_the_null(
    num_canaries, participations, unobserved
):
    audit = CanaryAudit(
        flower.FedAvg(),
        num_canaries=num_canaries,
        delta=1e-5,
        participations=participations,
    )
    assert (
        audit.canary_settings.unobserved_beside(num_canaries or 5) == unobserved
    )
