"""`CanaryAudit(strategy, delta=…)`: how many canaries it takes, when, and what is said of them."""

import itertools
import random
import re

import no_harm
import numpy as np
import pytest
from app_runs import run_app
from every_app import CASES
from flower_audits import fixed
from flower_clients import drifting_app, model
from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flower

from fl_epe.auditing import REAL_UPDATES_LEFT_OUT, AuditedClient, answers
from fl_epe.flower import CanaryAudit, InProcessGrid, canary_mod

DELTA = 1e-5


def averaging(nodes, fraction=1.0, cls=flower.FedAvg):
    return cls(
        fraction_train=fraction,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=nodes,
    )


def run(nodes, rounds, strategy, app=None, **settings):
    """The audit after a run, and the metrics of its last round."""
    random.seed(0)  # Flower draws clients from it
    np.random.seed(0)  # noqa: NPY002 - and its DP noise from this one
    audit = CanaryAudit(strategy, **{"delta": DELTA, "seed": 1, **settings})
    with InProcessGrid(app or drifting_app(), nodes) as grid:
        result = audit.start(grid, model(), num_rounds=rounds)
    return audit, result.train_metrics_clientapp[rounds]


def share_of(record):
    """Canaries among all replies of a run."""
    canaries = record.presence.sum()
    return canaries / (canaries + len(record.clients.ids))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "fraction", "often"),
    [
        (10, 1.0, [15, 8, 4, 2, 1]),
        (100, 0.2, [*[6] * 10, 3, 2, 1]),
        (2, 1.0, [3, 2, 1]),
        (1, 1.0, [2, 1]),
        (
            9,
            0.25,
            [3, 2, 1],
        ),  # one place, of a client who takes part six or seven times
    ],
    ids=["everybody", "fraction", "two", "one", "cohorts-of-two"],
)
def test_a_ladder_beside_the_clients(nodes, fraction, often, caplog):
    caplog.set_level("INFO", logger="flwr.fl_epe")
    audit, metrics = run(nodes, 30, averaging(nodes, fraction))
    record = audit.record()
    assert record.presence.sum(axis=0).tolist() == often
    assert share_of(record) <= 0.1
    assert record.presence.sum(axis=1).max() <= 3
    assert audit.faults == []
    for name, answer in zip(("final", "all"), answers(record), strict=True):
        assert (
            abs(answer.participations - 30 * int(fraction * nodes) / nodes) < 2
        )
        assert answer.extrapolated == (max(often) < answer.participations)
        for end, value in {
            "": "epsilon",
            "-low": "low",
            "-high": "high",
        }.items():
            assert metrics[f"epsilon-{name}{end}"] == getattr(
                answer.estimate, value
            )
    begin = "Canaries (synthetic clients) take part like"
    sentences = [line for line in caplog.messages if begin in line]
    assert len(sentences) == 1
    assert record.findings.plan[0] in sentences[0]


def test_canaries_are_known_to_take_part_as_the_strategy_samples():
    """The clients' log has who answered when, and the client of the answer is their median."""
    audit, _ = run(20, 12, averaging(20, 0.25))
    record, was_asked = audit.record(), np.zeros((12, 20), bool)
    assert (record.design.num_clients, record.design.clients_per_round) == (
        20,
        5,
    )
    for t, (start, end) in enumerate(
        itertools.pairwise(record.clients.offsets)
    ):
        was_asked[t, record.clients.ids[start:end]] = True
    assert was_asked.sum(axis=1).tolist() == [5] * 12
    client = AuditedClient.of(record)
    assert client.participations == np.quantile(
        was_asked.sum(axis=0), 0.5, method="lower"
    )
    patterns = {tuple(column) for column in was_asked.T}
    assert all(tuple(column) in patterns for column in client.patterns.T)


@pytest.mark.slow
def test_noise_for_a_number_of_replies_is_kept_and_foretold():
    """Flower's DP wrapper expects ten: a canary answers in the place of a client."""
    strategy = fixed(averaging(10), expected=10)
    audit, metrics = run(10, 30, strategy)
    record = audit.record()
    assert record.presence.sum(axis=1).tolist() == [0] + [1] * 29
    assert record.mechanism.cohort_size == 10
    plan = " ".join(record.findings.plan)
    assert "beside 9 clients: 10% of a round" in plan
    assert re.search(
        r"Forecast: ε is at most about \S+ .+ and 37\.6 from every round's",
        plan,
    )
    assert REAL_UPDATES_LEFT_OUT in plan
    assert "Up to 1 of 10 clients a round are not asked" in plan
    assert metrics["epsilon-all-low"] < 37.6 < metrics["epsilon-all-high"]
    assert (
        answers(record)[1].participations == 27
    )  # clients, less the rounds of the canary


def test_without_two_canaries_nothing_is_changed_and_the_report_says_why():
    audit, metrics = run(3, 3, averaging(3))
    assert not any(name.startswith("epsilon") for name in metrics)
    assert len(audit.record().clients.ids) == 9
    assert "No two canaries fit beside 3 clients in 3 rounds" in audit.faults[0]
    assert audit.report().startswith("Not measured, as ")


class _Leaves(flower.FedAvg):
    """Half of the clients are gone after some rounds."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(
            super().configure_train(server_round, arrays, config, grid)
        )
        return messages[: len(messages) // 2] if server_round > 10 else messages


@pytest.mark.slow
def test_fewer_clients_later_do_not_raise_the_canaries_share():
    audit, _ = run(10, 30, averaging(10, cls=_Leaves))
    record = audit.record()
    assert 0.09 < share_of(record) <= 0.1
    assert audit.faults == []


@pytest.mark.slow
def test_the_only_choice_may_be_how_often_or_how_much():
    audit, _ = run(
        100, 10, averaging(100, 0.1), participations=4
    )  # they say it is 1 of 25 nodes
    assert audit.record().presence.sum(axis=0).tolist() == [4, 2, 1, 1]
    audit, _ = run(10, 10, averaging(10), max_share=0.5)
    record = audit.record()
    assert record.presence.sum(axis=0).tolist() == [*[10] * 9, 5, 3, 1, 1]
    assert share_of(record) == 0.5


class _KeepsNodesSecret(flower.FedAvg):
    """Leaves a grid behind that tells nobody else who is there."""

    def configure_train(self, server_round, arrays, config, grid):
        vars(grid).pop("get_node_ids", None)
        messages = list(
            super().configure_train(server_round, arrays, config, grid)
        )
        vars(grid)["get_node_ids"] = None
        return messages


def test_a_grid_that_does_not_tell_means_that_everybody_is_asked():
    audit, _ = run(20, 4, averaging(20, 0.5, _KeepsNodesSecret))
    record = audit.record()
    assert record.presence.sum(axis=0).tolist() == [
        2,
        1,
        1,
    ]  # one place of every round
    assert record.design.num_clients is None
    assert audit.faults == []


@pytest.mark.parametrize("clients", [0.5, [0, 2]], ids=["share", "list"])
def test_clients_with_canaries_need_no_number(clients):
    app = drifting_app([canary_mod])
    named = (
        {"identity": lambda node: node} if isinstance(clients, float) else {}
    )
    with InProcessGrid(app, 8) as grid:
        nodes = list(grid.get_node_ids())
        clients = (
            clients
            if isinstance(clients, float)
            else [nodes[i] for i in clients]
        )
        audit = CanaryAudit(
            averaging(8), delta=DELTA, seed=1, clients=clients, **named
        )
        audit.start(grid, model(), num_rounds=4)
    record = audit.record()
    assert record.num_canaries >= 2
    assert record.presence.any(axis=1).tolist() == [False, True, True, True]
    assert record.presence[1:].all()
    assert len(record.clients.ids) == 8 + 3 * (8 - record.num_canaries)


class KilledError(Exception):
    pass


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_canaries(tmp_path):
    def kill(server_round, arrays):
        models.append(arrays)
        if server_round == 9:
            raise KilledError

    uninterrupted, _ = run(20, 20, averaging(20, 0.5))
    models: list[ArrayRecord] = []
    random.seed(0)
    with InProcessGrid(drifting_app(), 20) as grid:
        arguments = {"delta": DELTA, "checkpoint": tmp_path}
        audit = CanaryAudit(averaging(20, 0.5), seed=1, **arguments)
        with pytest.raises(KilledError):
            audit.start(grid, model(), num_rounds=20, evaluate_fn=kill)
        resumed = CanaryAudit(
            averaging(20, 0.5), **arguments
        )  # the seed is the one that is kept
        resumed.start(grid, models[-1], num_rounds=11)
    resumed_record, record = resumed.record(), uninterrupted.record()
    np.testing.assert_array_equal(resumed_record.presence, record.presence)
    assert (
        resumed_record.clients.offsets.tolist()
        == record.clients.offsets.tolist()
    )
    assert resumed_record.design.to_settings() == record.design.to_settings()
    assert resumed_record.findings.plan == record.findings.plan
    assert sorted(set(resumed_record.clients.ids.tolist())) == list(range(20))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        if name
        in ("plain_fed_avg", "nan_replies", "several_messages", "own_loop")
        else pytest.param(name, marks=pytest.mark.slow)
        for name, case in CASES.items()
    ],
)
def test_strangers_apps_end_as_without(name, tmp_path):
    outcomes = []
    for audited in (False, True):
        with InProcessGrid(CASES[name].client_app, CASES[name].nodes) as grid:
            folder = tmp_path / f"audited-{audited}"
            outcomes.append(
                run_app(
                    CASES[name], grid, folder, audited=audited, canaries=None
                )
            )
    no_harm.check_end(*outcomes)
    if outcomes[0].error is None:
        no_harm.check_clients(*outcomes)
        no_harm.check_recorded(*outcomes)
    assert outcomes[1].audited().report()
