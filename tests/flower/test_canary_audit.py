"""`CanaryAudit` around real Flower strategies, with clients that know nothing of it."""

import functools
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flower_audits import (
    CANARIES,
    DELTA,
    NODES,
    PLAIN,
    REPLIES,
    ROUNDS,
    fixed,
    run,
)
from flower_clients import DIM, drifting_app, model
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import (
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp import strategy as flower

from fl_epe import AuditRecord, epsilon_from_record
from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import EVERY_ROUND, Adversary, answers, ladder_fit, seen_by
from fl_epe.flower import CanaryAudit, InProcessGrid
from fl_epe.flower.plan import canaries_that_fit
from fl_epe.reporting import as_text, summarize


def adaptive(side, z=0.5):
    wrapper = getattr(flower, f"DifferentialPrivacy{side}SideAdaptiveClipping")
    return wrapper(
        flower.FedAvg(**PLAIN), z, REPLIES, initial_clipping_norm=0.1
    )


_ALIKE = pytest.mark.slow
STRATEGIES: dict[str, Callable[[], flower.Strategy]] = {
    "FedAvg": lambda: flower.FedAvg(**PLAIN),
    "FedAvgM": lambda: flower.FedAvgM(
        **PLAIN, server_momentum=0.9, server_learning_rate=0.5
    ),
    "FedAdam": lambda: flower.FedAdam(**PLAIN),
    "FedYogi": lambda: flower.FedYogi(**PLAIN),
    "FedAdagrad": lambda: flower.FedAdagrad(**PLAIN),
    "FedProx": lambda: flower.FedProx(**PLAIN, proximal_mu=0.1),
    "FedMedian": lambda: flower.FedMedian(**PLAIN),
    "FedTrimmedAvg": lambda: flower.FedTrimmedAvg(**PLAIN),
    "fixed": fixed,
    "adaptive": lambda: adaptive("Server"),
    "fixed-FedAdam": lambda: fixed(flower.FedAdam(**PLAIN)),
    "fixed-FedAvgM": lambda: fixed(
        flower.FedAvgM(**PLAIN, server_momentum=0.9)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("FedAvg", "FedAdam", "fixed")
        else pytest.param(name, marks=_ALIKE)
        for name in STRATEGIES
    ],
)
def test_every_strategy_is_audited_to_a_valid_record(name):
    audit, result = run(STRATEGIES[name]())
    record = audit.record()
    assert record.dim == DIM
    assert (record.rounds, record.num_canaries) == (ROUNDS, CANARIES)
    assert np.all(record.presence.sum(axis=0) == 1)
    assert np.all(record.presence.sum(axis=1) == CANARIES // ROUNDS)
    assert record.provenance.faults == ()
    for sees in ("final", "all"):
        estimate = epsilon_from_record(record, adversary=Adversary(sees))
        assert 0 <= estimate.low <= estimate.epsilon <= estimate.high
    # The canaries are remembered: ten standard errors in every one of these strategies.
    scores = record.observed.means[record.presence] * np.sqrt(DIM)
    assert scores.mean() * np.sqrt(CANARIES) > (4 if "fixed" in name else 3)
    metrics: Any = result.train_metrics_clientapp
    for name, answer in zip(("final", "all"), answers(record), strict=True):
        assert (f"epsilon-{name}" in metrics[ROUNDS]) == (
            answer.estimate is not None
        )
        if answer.estimate is not None:
            epsilon = pytest.approx(answer.estimate.epsilon, rel=1e-14)
            assert metrics[ROUNDS][f"epsilon-{name}"] == epsilon
            assert (
                metrics[ROUNDS][f"epsilon-{name}-high"] == answer.estimate.high
            )
    so_far_metrics = [
        metrics[t] for t in metrics if "epsilon-all" in metrics[t]
    ]
    assert all(
        metrics_of_round["epsilon-all-low"] <= metrics_of_round["epsilon-all"]
        for metrics_of_round in so_far_metrics
    )
    assert "every round" in as_text(summarize(record))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["FedAvgM", pytest.param("FedMedian", marks=_ALIKE)]
)
def test_a_report_has_the_record_the_table_and_the_page(name, tmp_path):
    audit, _ = run(STRATEGIES[name]())
    assert "every round" in audit.report(tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    loaded = AuditRecord.load(tmp_path / "record.npz")
    np.testing.assert_array_equal(
        loaded.observed.means, audit.record().observed.means
    )


@pytest.mark.slow
def test_a_page_is_written_though_the_record_cannot_be(tmp_path):
    audit, _ = run(flower.FedAvg(**PLAIN))
    (tmp_path / "record.npz").mkdir()
    assert "record.npz could not be written" in audit.report(tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_fed_avg_expected_scores_explain_the_scores():
    """Nothing clips: canaries have the norm of the median update, and the share is known."""
    audit, _ = run(flower.FedAvg(**PLAIN), participations=6, max_share=1)
    record = audit.record()
    np.testing.assert_allclose(
        record.mechanism.contributions, 0.1 / (NODES + 30), rtol=1e-3
    )
    fit = ladder_fit(seen_by(record, EVERY_ROUND))
    assert fit.low < 1 < fit.high


@pytest.mark.slow
@pytest.mark.parametrize(
    "base",
    [
        flower.FedAdam(**PLAIN),
        pytest.param(
            flower.FedAvgM(**PLAIN, server_momentum=0.9), marks=_ALIKE
        ),
    ],
)
def test_noise_after_the_optimizer_is_warned_of(base):
    audit, _ = run(fixed(base))
    assert "the analytical ε does not hold" in " ".join(
        audit.report(details=True).split()
    )
    plain, _ = run(fixed())
    assert "ε does not hold" not in " ".join(plain.report(details=True).split())


@pytest.mark.slow
def test_the_dp_wrapper_keeps_its_promise():
    """Canaries of single participation see a Gaussian mechanism with the wrapper's z."""
    audit, _ = run(
        fixed(z=0.5, expected=NODES + 50),
        num_canaries=600,
        max_share=1,
        rounds=12,
    )
    record = audit.record()
    assert record.mechanism.noise_multiplier == 0.5
    np.testing.assert_allclose(
        record.mechanism.contributions, 0.1 / (NODES + 50), rtol=1e-6
    )
    estimate = epsilon_from_record(record, statistic="matched-filter")
    claim = gaussian_epsilon(0.5, DELTA)
    # The real clients' updates are part of what the canary must stand out from: noise of norm
    # 0.5·C·√d against K updates of norm C. So are the other canaries, unless they are taken out.
    expected_epsilon = gaussian_epsilon(
        np.sqrt(0.5**2 + (NODES + 1) / DIM), DELTA
    )
    assert estimate.low < expected_epsilon < estimate.high
    raw = epsilon_from_record(
        record, statistic="matched-filter", leave_one_out=False
    )
    assert (
        raw.low
        < gaussian_epsilon(np.sqrt(0.5**2 + (NODES + 50) / DIM), DELTA)
        < raw.high
    )
    assert raw.epsilon < estimate.epsilon
    assert estimate.low < claim


@pytest.mark.slow
def test_an_adaptive_wrapper_s_claim_is_read_from_it():
    wrapper = adaptive("Server")
    audit, _ = run(wrapper)
    record = audit.record()
    assert record.mechanism.noise_multiplier == pytest.approx(0.5)
    assert (
        record.mechanism.sum_noise_multiplier == wrapper.noise_multiplier > 0.5
    )
    assert len(set(record.mechanism.clip_norms)) == ROUNDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mod", "make"),
    [
        pytest.param(
            fixedclipping_mod,
            lambda: flower.DifferentialPrivacyClientSideFixedClipping(
                flower.FedAvg(**PLAIN), 0.5, 0.1, REPLIES
            ),
            id="fixed",
        ),
        pytest.param(
            adaptiveclipping_mod, lambda: adaptive("Client"), id="adaptive"
        ),
    ],
)
def test_client_side_clipping(mod, make):
    audit, result = run(make(), drifting_app([mod]))
    record = audit.record()
    assert record.provenance.faults == ()
    np.testing.assert_allclose(
        record.mechanism.contributions,
        record.mechanism.clip_norms / REPLIES,
        rtol=1e-6,
    )
    assert np.all(record.presence.sum(axis=0) == 1)
    if (
        "norm_bit" in result.train_metrics_clientapp[1]
    ):  # a real client's vote, not a canary's
        assert set(record.mechanism.clip_norms) != {0.1}
    scores = record.observed.means[record.presence] * np.sqrt(DIM)
    expected = 1 / np.sqrt(0.5**2 + REPLIES / DIM)
    assert abs(scores.mean() - expected) < 4 / np.sqrt(CANARIES) + 0.1


def accounted():
    config = PrivacyConfig(
        DELTA,
        NODES,
        NeighboringRelation.ADD_OR_REMOVE_ONE,
        SamplingMethod.NO_AMPLIFICATION,
    )
    return fixed(expected=NODES, accountant=RdpAccountant(config))


@pytest.mark.slow
def test_with_an_accountant_canaries_replace_clients():
    audit, result = run(accounted(), num_canaries=3 * ROUNDS)
    record = audit.record()
    count = record.presence.sum(axis=1)
    assert (
        count[0] == 0
    )  # nobody is replaced before it is known what clients weigh
    assert sorted(count[1:]) == [3, 3, 4, 4, 4]
    assert record.mechanism.cohort_size == NODES
    participations = audit.record().findings.client_participations
    assert participations == pytest.approx(ROUNDS * (NODES - 3) / NODES)
    assert len(result.train_metrics_clientapp) == ROUNDS


def test_canaries_that_would_replace_everybody_stay_out():
    audit, result = run(accounted(), num_canaries=ROUNDS * NODES, max_share=1)
    assert len(result.train_metrics_clientapp) == ROUNDS
    assert "got 12 beside 0 of real clients" in audit.faults[0]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_audit_and_none_is_drawn_from_entropy():
    few = {"rounds": 4, "num_canaries": CANARIES // 3}
    first, _ = run(fixed(), **few)
    again, _ = run(fixed(), **few)
    np.testing.assert_array_equal(
        first.record().presence, again.record().presence
    )
    # Flower draws the order of its nodes, and so of its float32 sum, from a generator of its own.
    np.testing.assert_allclose(
        first.record().observed.means, again.record().observed.means, atol=1e-6
    )
    drawn = [run(fixed(), seed=None, **few)[0].record() for _ in range(2)]
    assert (
        drawn[0].provenance.seeds["canary"]
        != drawn[1].provenance.seeds["canary"]
    )
    assert drawn[0].provenance.seeds["canary"].bit_length() > 64


@pytest.mark.slow
def test_aggregated_metrics_stay_as_they_were():
    def examples(partition):
        return 10 + partition

    def total(records, key):
        from flwr.app import MetricRecord

        metrics = [record["metrics"] for record in records]
        return MetricRecord(
            {"most": max(m[key] for m in metrics), "clients": len(metrics)}
        )

    for more in ({}, {"train_metrics_aggr_fn": total}):
        with InProcessGrid(drifting_app(examples=examples), NODES) as grid:
            plain = flower.FedAvg(**PLAIN, **more).start(
                grid, model(), num_rounds=3
            )
        _, audited = run(
            flower.FedAvg(**PLAIN, **more),
            drifting_app(examples=examples),
            rounds=3,
        )
        for t in (1, 2, 3):
            before = dict(plain.train_metrics_clientapp[t])
            after = dict(audited.train_metrics_clientapp[t])
            assert {
                key for key in after if not key.startswith("epsilon")
            } == set(before)
            for key, value in before.items():
                assert after[key] == pytest.approx(value, rel=1e-12)


def test_a_strategy_without_that_hook_sees_neutral_metrics():
    """A weighted average over replies and canaries is that over the replies."""

    class Own(flower.FedAvg):
        def aggregate_train(self, server_round, replies):
            aggregate = flower.FedAvg(**PLAIN)
            return aggregate.aggregate_train(server_round, replies)

    def examples(partition):
        return 10 + 3 * partition

    with InProcessGrid(drifting_app(examples=examples), NODES) as grid:
        plain = flower.FedAvg(**PLAIN).start(grid, model(), num_rounds=1)
    _, audited = run(
        Own(**PLAIN), drifting_app(examples=examples), rounds=1, num_canaries=7
    )
    before, after = (
        r.train_metrics_clientapp[1]["loss"] for r in (plain, audited)
    )
    assert after == pytest.approx(before, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "value"),
    [("participations", 2), ("replies", "model"), ("num_examples", 9)],
)
def test_what_clients_decide_themselves_is_refused(name, value):
    message = re.escape(
        f"Expected {name}={value!r} to be left out with clients, who answer"
    )
    with pytest.raises(ValueError, match=message):
        CanaryAudit(
            flower.FedAvg(**PLAIN),
            num_canaries=30,
            delta=0.1,
            clients=0.5,
            **{name: value},
        )


@pytest.mark.slow
def test_a_canary_heavier_than_the_rest_shows():
    plain, _ = run(fixed())
    heavy, _ = run(fixed(), num_examples=1000, max_share=1)
    record = heavy.record()
    weights = record.mechanism.canary_weights
    assert plain.record().mechanism.canary_weights is None
    assert weights is not None
    np.testing.assert_allclose(
        weights[record.presence], 100
    )  # clients have 10 examples
    estimates = [
        epsilon_from_record(a.record(), statistic="matched-filter")
        for a in (plain, heavy)
    ]
    assert estimates[1].low > estimates[0].high


def _as_in_round_one(message, context, call_next):
    """A client mod, as clients that draw by the number of the round see it begin at 1 again."""
    message.content.config_records["config"]["server-round"] = 1
    return call_next(message, context)


def _in_starts(starts, strategy=None, **settings):
    """The audit after so many rounds in each call of start, and the last model."""
    settings = {
        "num_canaries": 12,
        "seed": 1,
        "delta": DELTA,
        "max_share": 0.5,
        **settings,
    }
    audit = CanaryAudit(
        strategy or flower.FedAvgM(**PLAIN, server_momentum=0.5), **settings
    )
    arrays = model()
    random.seed(0)  # Flower draws clients from it
    with InProcessGrid(drifting_app([_as_in_round_one]), NODES) as grid:
        for rounds in starts:
            arrays = (
                audit.start(grid, arrays, num_rounds=rounds).arrays or arrays
            )
    return audit, arrays


@functools.cache
def _in_one_start():
    return _in_starts([6])


@pytest.mark.slow
@pytest.mark.parametrize(
    "starts",
    [(2, 4), (0, 6, 0), (1,) * 6, pytest.param((np.int64(6),), marks=_ALIKE)],
    ids=["two", "none-before-and-after", "loop", "numpy-integer"],
)
def test_several_starts_are_one_run_to_the_bit(starts):
    uninterrupted, arrays = _in_one_start()
    audit, last = _in_starts(starts, rounds=6)
    for single, last_array in zip(arrays.values(), last.values(), strict=True):
        np.testing.assert_array_equal(single.numpy(), last_array.numpy())
    for sees in ("all", "final"):
        expected = epsilon_from_record(
            uninterrupted.record(), adversary=Adversary(sees)
        )
        assert (
            epsilon_from_record(audit.record(), adversary=Adversary(sees))
            == expected
        )
    np.testing.assert_array_equal(
        audit.record().presence, uninterrupted.record().presence
    )
    assert audit.faults == []


@pytest.mark.slow
def test_rounds_that_nobody_told_of_are_not_measured():
    uninterrupted, _ = _in_starts([4])
    audit, _ = _in_starts([4, 3])
    np.testing.assert_array_equal(
        audit.record().observed.means, uninterrupted.record().observed.means
    )
    assert epsilon_from_record(audit.record()) == epsilon_from_record(
        uninterrupted.record()
    )
    (fault,) = audit.faults
    assert fault.startswith(
        "round 5, this round and later ones are not measured: the canaries"
    )
    audit, _ = _in_starts([1, 1, 1])
    assert audit.report().startswith("Not measured, as ")
    assert "rounds=1 if there is a single round" in audit.faults[0]


def test_a_second_start_with_another_model_is_not_measured():
    audit = CanaryAudit(
        flower.FedAvg(**PLAIN),
        num_canaries=12,
        delta=DELTA,
        rounds=6,
        max_share=1,
    )
    with InProcessGrid(drifting_app([_as_in_round_one]), NODES) as grid:
        for _ in range(2):
            audit.start(grid, model(), num_rounds=3)
    assert audit.record().rounds == 3
    assert "start() was called again, with another model" in audit.faults[0]


@pytest.mark.slow
def test_no_more_canaries_than_do_no_harm():
    """1,000 canaries beside ten clients: one a round, as the log and the report say."""
    audit, _ = run(flower.FedAvg(**PLAIN), num_canaries=1000, max_share=None)
    record = audit.record()
    assert record.presence.sum(axis=1).tolist() == [1] * ROUNDS
    text = " ".join(audit.report(details=True).split())
    assert (
        f"Of 1000 canaries, {ROUNDS} fit into {ROUNDS} rounds with 10 clients"
        in text
    )
    assert "ask for fewer canaries, or raise max_share." in text
    other_audit, _ = run(
        flower.FedAvg(**PLAIN), num_canaries=ROUNDS, max_share=None
    )
    np.testing.assert_array_equal(
        other_audit.record().presence, record.presence
    )
    assert "fit into" not in other_audit.report(details=True)


@pytest.mark.parametrize(
    ("share", "clients", "room", "most"),
    [
        (0.1, 90, np.inf, 10),
        (0.1, 3, np.inf, 1 / 3),  # one in every third round
        (0.1, 10, 0, 1),  # in the place of clients
        (0.1, 10, 5, 5),  # asked for
        (0.1, 10, 40, 10),
        (0.5, 10, np.inf, 10),
        (1, 10, 0, np.inf),
    ],
)
def test_how_many_canaries_fit_into_a_round(share, clients, room, most):
    assert canaries_that_fit(share, clients, room) == pytest.approx(most)
