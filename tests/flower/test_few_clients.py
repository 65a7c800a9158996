"""Audits beside few clients: what fits, how large its share is, and what would do otherwise."""

import random
import re

import numpy as np
import pytest
from flower_clients import digits_app, digits_model
from flwr.serverapp import strategy as flower

from fl_epe.auditing import MAX_CANARY_SHARE
from fl_epe.flower import CanaryAudit, InProcessGrid
from fl_epe.flower.plan import make_plan
from fl_epe.flower.settings import CanaryAuditSettings
from fl_epe.flower.wrapped import Wrapped

DELTA = 1e-5


def averaging(nodes, fraction=1.0):
    return flower.FedAvg(
        fraction_train=fraction,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=nodes,
    )


def fixed(nodes, z=1.0, expected=None):
    base = averaging(nodes)
    return flower.DifferentialPrivacyServerSideFixedClipping(
        base, z, 0.1, expected or nodes
    )


def plan_of(strategy, rounds, clients, nodes=None, **settings):
    settings_of_audit = CanaryAuditSettings(delta=DELTA, seed=1, **settings)
    return make_plan(
        settings_of_audit, Wrapped(strategy), rounds, clients, nodes or clients
    )


def run(nodes, num_rounds, strategy, **settings):
    """The audit after a run, and the metrics of its last round."""
    random.seed(0)  # Flower draws clients from it
    np.random.seed(0)  # noqa: NPY002 - and its DP noise from this one
    audit = CanaryAudit(strategy, delta=DELTA, seed=1, **settings)
    with InProcessGrid(digits_app(), nodes) as grid:
        result = audit.start(grid, digits_model(), num_rounds=num_rounds)
    return audit, result.train_metrics_clientapp[num_rounds]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "asked_nodes", "rounds"),
    [(10, 5, 3), (3, 3, 3), (10, 10, 1)],
    ids=["five", "three", "one"],
)
def test_too_few_clients_say_what_would_do_and_with_it_they_are_measured(
    nodes, asked_nodes, rounds
):
    short = {"rounds": rounds} if rounds == 1 else {}
    audit, metrics = run(
        nodes, rounds, averaging(nodes, asked_nodes / nodes), **short
    )
    assert "epsilon-all" not in metrics
    text = " ".join(audit.report(details=True).split())
    match = re.search(
        r"(\d+) rounds or max_share=([.\d]+) would make a measurement", text
    )
    assert match is not None
    longer, share = int(match[1]), float(match[2])
    _, metrics = run(nodes, longer, averaging(nodes, asked_nodes / nodes))
    assert (
        metrics["epsilon-all-low"]
        <= metrics["epsilon-all"]
        <= metrics["epsilon-all-high"]
    )
    _, metrics = run(
        nodes,
        rounds,
        averaging(nodes, asked_nodes / nodes),
        max_share=share,
        **short,
    )
    assert (
        metrics["epsilon-all-low"]
        <= metrics["epsilon-all"]
        <= metrics["epsilon-all-high"]
    )
    for change in ({"rounds": longer - 1}, {"max_share": share - 0.01}):
        less = {"rounds": rounds, **change}
        assert (
            plan_of(
                averaging(nodes), less.pop("rounds"), asked_nodes, nodes, **less
            ).number
            == 0
        )


@pytest.mark.parametrize("clients", [3, 5, 10])
@pytest.mark.parametrize("rounds", [60, 120])
@pytest.mark.parametrize("room", [0, 10], ids=["replacing", "added"])
def test_the_share_of_few_clients_tells_epsilon(clients, rounds, room):
    plan = plan_of(fixed(clients, expected=clients + room), rounds, clients)
    assert plan.load is not None
    every = plan.load.forecasts[-1]
    assert (every.high - every.low) / 2 <= 0.6 * every.epsilon
    assert plan.load.share <= MAX_CANARY_SHARE
    error = 1.96 / np.sqrt(plan.planned)
    assert every.low == pytest.approx(gaussian(rounds, 1 - error), rel=0.1)


def gaussian(rounds, scale):
    from fl_epe.accounting import gaussian_epsilon

    return gaussian_epsilon(1 / (scale * np.sqrt(rounds)), DELTA)


def test_three_nodes_and_sixty_rounds_take_no_more_than_they_need():
    plan = plan_of(fixed(3), 60, 3)
    assert plan.load is not None
    assert plan.load.share == pytest.approx(0.15, abs=0.015)
    assert 0.44 < plan.planned / 60 < 0.49


def test_a_share_that_was_given_or_noise_that_is_not_known_is_left_alone():
    assert plan_of(fixed(3), 60, 3, max_share=0.1).planned == 18
    assert plan_of(averaging(3), 60, 3).planned == 20  # a third beside three
    assert plan_of(fixed(3, z=0.0), 60, 3).planned == 18


def test_canaries_do_not_answer_in_the_place_of_everybody():
    plan = plan_of(fixed(1), 60, 1)
    assert (plan.number, plan.replaced) == (0, 0)
    assert "replace every client" in plan.sentences()[0]
    assert plan_of(fixed(1, expected=2), 60, 1).number >= 2
