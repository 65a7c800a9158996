"""ε of runs in which canaries stand for clients only if one looks: right, not measured, or said."""

import math
import random
from typing import Any

import app_runs
import drops_replies
import heavy_clients
import local_noise
import numpy as np
import pytest
from digits_task import NODES, initial
from flower_audits import PLAIN, run
from flower_clients import digits_app, digits_model, drifting_app
from flwr.app import Array, ArrayRecord
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import strategy as flower

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import EVERY_ROUND, ladder_fit, seen_by
from fl_epe.flower import CanaryAudit, InProcessGrid, canary_mod
from fl_epe.reporting import summarize
from fl_epe.reporting.clients import client_leakage

ROUNDS, A_ROUND = 20, 2


def _audit(case: Any, tmp_path: Any, rounds: int = ROUNDS) -> CanaryAudit:
    np.random.seed(0)  # noqa: NPY002 - Flower's DP noise is the global generator's
    random.seed(0)  # nodes are drawn by this one
    strategy = app_runs._for_nodes(case.strategy(tmp_path), case.nodes)
    number = A_ROUND * rounds
    audit = CanaryAudit(
        strategy, num_canaries=number, delta=1e-3, seed=1, max_share=0.5
    )
    with InProcessGrid(case.client_app, case.nodes) as grid:
        audit.start(grid, initial(), num_rounds=rounds)
    return audit


@pytest.mark.slow
def test_the_heaviest_client_has_the_analytical_epsilon_of_its_share(tmp_path):
    audit = _audit(heavy_clients.CASE, tmp_path, rounds=30)
    record = audit.record()
    fit = ladder_fit(seen_by(record, EVERY_ROUND), confidence=0.9999)
    assert fit.low < 1 < fit.high
    sizes = heavy_clients.EXAMPLES
    median = sorted(sizes)[NODES // 2 - 1]
    weights = record.clients.weights
    assert weights is not None
    assert sorted(set(weights.round(3))) == sorted(
        {round(size / median, 3) for size in sizes}
    )
    heaviest = max(sizes) / (sum(sizes) + A_ROUND * median)
    theory = gaussian_epsilon(
        1 / (math.sqrt(30) * (NODES + A_ROUND) * heaviest), 1e-3
    )
    text = " ".join(audit.report(details=True).split())
    assert f"{max(sizes) / median:.3g} times the median weight" in text
    assert f"theory allows {theory:,.3g}".replace(",", "") in text.replace(
        ",", ""
    )


@pytest.mark.slow
def test_one_client_with_nearly_all_weight_gives_nearly_all_away():
    rounds, heavy = 12, 10_000
    app = drifting_app(
        examples=lambda partition: heavy if partition == 3 else 10
    )
    audit, _ = run(
        flower.FedAvg(**PLAIN), app, rounds=rounds, num_canaries=5 * rounds
    )
    assert (
        audit.record().mechanism.canary_weights is None
    )  # canaries are as the median client
    result = client_leakage(summarize(audit.record()))
    assert result.weights.max() == pytest.approx(heavy / 10)
    assert np.isnan(
        result.epsilon["all"]
    ).all()  # 60 canaries of one round say nothing of twelve
    assert audit.report().startswith(
        "Not measured, as canaries took part in fewer rounds"
    )


@pytest.mark.slow
def test_canaries_that_the_strategy_drops_are_absent(tmp_path):
    audit = _audit(drops_replies.CASE, tmp_path)
    record = audit.record()
    participations = int(record.presence.sum())
    assert 10 < participations < A_ROUND * ROUNDS
    counts = record.provenance.fault_counts
    assert (
        counts["canary left out by the strategy"]
        == A_ROUND * ROUNDS - participations
    )
    fit = ladder_fit(seen_by(record, EVERY_ROUND), confidence=0.9999)
    assert fit.low < 1 < fit.high
    everybody = record.presence.any(axis=0)
    scores = math.sqrt(record.dim) * record.observed.means[record.presence]
    assert everybody.all()
    assert scores.min() > 0
    assert {warning.code for warning in summarize(record).warnings} <= {"load"}


@pytest.mark.slow
def test_noise_of_clients_is_measured_from_clients_alone(tmp_path):
    audit = _audit(local_noise.CASE, tmp_path, rounds=2)
    assert "noise of their own" in audit.report()
    assert summarize(audit.record()).status == "not measured"
    mods = [LocalDpMod(1.0, 1.0, 1.0, 1e-5), canary_mod]
    more = {
        "arrays": digits_model(),
        "clients": 0.5,
        "num_canaries": 20,
        "rounds": 12,
    }
    audit, _ = run(flower.FedAvg(**PLAIN), digits_app(mods), **more)
    result = summarize(audit.record())
    assert {warning.code for warning in result.warnings} <= {"load"}
    # 4.8 of noise in each of 650 entries of every update, one of 10: 12 rounds are √12/4.8/√10
    assert result.answers[1].estimate.low < 2


def _record(values):
    return ArrayRecord({name: Array(value) for name, value in values.items()})


def test_an_update_that_drowns_the_others_is_named():
    def drowning(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 4:
            sent = message.content.array_records["arrays"]
            pairs = reply.content.array_records["arrays"].items()
            result = {
                k: sent[k].numpy() + 64 * (v.numpy() - sent[k].numpy())
                for k, v in pairs
            }
            reply.content["arrays"] = _record(
                {k: v.astype("f4") for k, v in result.items()}
            )
        return reply

    audit, _ = run(
        flower.FedAvg(**PLAIN),
        drifting_app([drowning]),
        rounds=3,
        num_canaries=6,
    )
    record = audit.record()
    assert record.provenance.fault_counts["update most of a round"] == 3
    assert "times as far as the median other node" in audit.faults[0]
    assert summarize(record).status == "unreliable"


@pytest.mark.parametrize("liars", [4, 2])
def test_clients_that_answer_with_something_else_than_their_canary_are_found(
    liars,
):
    def lying(message, context, call_next):
        """Outside `canary_mod`: noise in the place of the canary, and still the word."""
        reply = call_next(message, context)
        has_answer = any(
            "canary-answer" in m for m in reply.content.metric_records.values()
        )
        if has_answer and context.node_config["partition-id"] < liars:
            rng = np.random.default_rng(
                int(context.node_config["partition-id"])
            )
            sent = message.content.array_records["arrays"]
            moved = {
                k: (v.numpy() + rng.normal(0, 1e-3, v.shape))
                for k, v in sent.items()
            }
            reply.content["arrays"] = _record(
                {k: v.astype("f4") for k, v in moved.items()}
            )
        return reply

    app = drifting_app([lying, canary_mod])
    more = {"clients": [1, 2, 3, 4], "num_canaries": 10, "rounds": 3}
    audit, _ = run(flower.FedAvg(**PLAIN), app, **more)
    record = audit.record()
    assert (
        sum("does not hold its canary" in fault for fault in audit.faults)
        == 2 * liars
    )
    if liars == 4:
        assert summarize(record).status == "not measured"
    assert (
        not record.presence.any()
        or record.observed.means[record.presence].min() > 0.1
    )
