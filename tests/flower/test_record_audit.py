"""`RecordAudit`: what the server gathers from silos, and that training is as it was."""

import dataclasses
import json
import math
import random
import re

import numpy as np
import pytest
from fake_silos import DELTA, NAMES, FakeSilos, answer
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import strategy as flower

from fl_epe.auditing import SiloLine
from fl_epe.flower import InProcessGrid, RecordAudit
from fl_epe.flower.federation_log import (
    FederationLog,
    FederationRound,
    read_answer,
)

PLAIN = {
    "fraction_evaluate": 0.0,
    "min_train_nodes": 1,
    "min_available_nodes": 3,
}
ROUNDS = 3


class OwnLoop(flower.FedAvg):
    """A loop of its own, with arguments of its own."""

    def start(self, arrays, *, server, rounds):  # type: ignore[override]
        for t in range(1, rounds + 1):
            messages = self.configure_train(t, arrays, ConfigRecord(), server)
            replies = server.send_and_receive(messages)
            arrays, _ = self.aggregate_train(
                server_round=t, replies=iter(replies)
            )
        return flower.Result(arrays=arrays)


class Saving(flower.FedAvg):
    """Keeps what it was given, as many a strategy in the wild does."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.seen = []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.seen += [
            sorted(reply.content) for reply in replies if not reply.has_error()
        ]
        return super().aggregate_train(server_round, replies)


def model():
    rng = np.random.default_rng(1)
    return ArrayRecord(
        {"layer": Array(rng.standard_normal((40, 100)).astype("f4"))}
    )


def run(strategy, silos, rounds=ROUNDS, arrays=None, app=None, **settings):
    """The audit after a run, and Flower's result."""
    audit = RecordAudit(strategy, delta=DELTA, **settings)
    random.seed(
        0
    )  # the order in which Flower asks nodes, and adds what they answer
    with InProcessGrid(app or silos.app(), 3) as grid:
        result = audit.start(
            grid, model() if arrays is None else arrays, num_rounds=rounds
        )
    return audit, result


def words(text):
    return " ".join(text.split())


def bits(arrays):
    return [array.data for array in arrays.values()]


STRATEGIES = {
    "FedAvg": lambda: flower.FedAvg(**PLAIN),
    "FedProx": lambda: flower.FedProx(**PLAIN, proximal_mu=0.1),
    "FedAdam": lambda: flower.FedAdam(**PLAIN),
    "FedAvgM": lambda: flower.FedAvgM(**PLAIN, server_momentum=0.5),
    "Krum": lambda: flower.Krum(**PLAIN),
    "Saving": lambda: Saving(**PLAIN),
}


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES)
def test_the_model_is_the_same_bit_for_bit(make):
    random.seed(0)
    with InProcessGrid(FakeSilos().app(with_audit=False), 3) as grid:
        plain = make().start(grid, model(), num_rounds=ROUNDS)
    audit, result = run(make(), FakeSilos())
    assert bits(result.arrays) == bits(plain.arrays)
    assert {
        t: dict(metrics)
        for t, metrics in result.train_metrics_clientapp.items()
    } == {
        t: dict(metrics) for t, metrics in plain.train_metrics_clientapp.items()
    }
    assert set(audit.answers()) == set(NAMES)
    assert audit.faults == []


def test_a_loop_of_its_own_is_audited():
    silos = FakeSilos()
    audit = RecordAudit(OwnLoop(**PLAIN), delta=DELTA)
    with InProcessGrid(silos.app(), 3) as grid:
        result = audit.start(model(), server=grid, rounds=ROUNDS)
    assert set(audit.answers()) == set(NAMES)
    np.testing.assert_array_equal(
        silos.models[0], result.arrays["layer"].numpy()
    )
    assert audit.faults == []


def test_a_loop_without_start_is_audited_and_asks_by_itself():
    silos = FakeSilos()
    audit = RecordAudit(flower.FedAvg(**PLAIN), delta=DELTA)
    with InProcessGrid(silos.app(), 3) as grid:
        strategy, arrays = audit.attach(), model()
        for t in range(1, 3):
            messages = strategy.configure_train(t, arrays, ConfigRecord(), grid)
            arrays, _ = strategy.aggregate_train(
                t, grid.send_and_receive(messages)
            )
        audit.ask_silos()
    assert silos.facts[0].upload_rounds == (1, 2)
    assert audit.answers()["north"].notes == ("it saw the last model",)
    assert audit.faults == []


def test_the_strategy_sees_no_record_of_the_audit():
    strategy = Saving(**PLAIN)
    run(strategy, FakeSilos())
    assert strategy.seen == [["arrays", "metrics"]] * 3 * ROUNDS
    assert "aggregate_train" not in vars(strategy)


def test_silos_see_the_last_model_once_and_answer():
    silos = FakeSilos()
    audit, result = run(flower.FedAvg(**PLAIN), silos)
    for partition in range(3):
        np.testing.assert_array_equal(
            silos.models[partition], result.arrays["layer"].numpy()
        )
    assert all(
        silo_answer.notes == ("it saw the last model",)
        for silo_answer in audit.answers().values()
    )
    assert {
        name: silo_answer.lines[0].epsilon
        for name, silo_answer in audit.answers().items()
    } == {
        "north": 2.0,
        "south": 3.0,
        "west": 4.0,
    }


def test_unequal_silos_are_told_what_a_partner_leaves():
    silos = FakeSilos(norms=(1.0, 1.0, 2.0))
    run(flower.FedAvg(**PLAIN), silos)
    energies = np.array([500, 2000, 8000 * 2]) ** 2.0
    for partition, facts in silos.facts.items():
        remaining = np.delete(energies, partition)
        assert facts.upload_rounds == (1, 2, 3)
        assert (facts.rounds, facts.silos, facts.server) == (3, 3, "sgd")
        np.testing.assert_allclose(
            facts.remaining_energies,
            remaining.min() / remaining.sum(),
            rtol=1e-4,
        )


def test_two_allies_see_the_rest():
    silos = FakeSilos()
    run(flower.FedAvg(**PLAIN), silos, allies=2)
    assert {facts.remaining_energies for facts in silos.facts.values()} == {
        (0.0, 0.0, 0.0)
    }
    assert {facts.allies for facts in silos.facts.values()} == {2}


def test_updates_in_place_of_models_are_understood():
    class Adds(flower.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            self.before = arrays
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            assert arrays is not None
            moved = self.before["layer"].numpy() + arrays["layer"].numpy()
            return ArrayRecord({"layer": Array(moved)}), metrics

    Adds.__module__ = "somebody"
    silos = FakeSilos(updates=True)
    run(Adds(**PLAIN), silos)
    energies = np.array([500, 2000, 8000]) ** 2.0
    assert silos.facts[0].remaining_energies == pytest.approx(
        [energies[1] / energies[1:].sum()] * 3, rel=1e-3
    )


def test_masked_uploads_are_not_taken_for_energies():
    """Masks cancel in the average, and say nothing of what an upload adds to it."""
    masks = np.random.default_rng(3).standard_normal((40, 100)).astype("f4")

    def masked(partition, arrays):
        sign = {0: 1, 1: -1, 2: 0}[partition]
        return ArrayRecord(
            {"layer": Array(arrays["layer"].numpy() + 1000 * sign * masks)}
        )

    silos = FakeSilos(examples=(1, 1, 1))
    app = silos.app()

    def app_with_masks(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train":
            partition = int(context.node_config["partition-id"])
            reply.content["arrays"] = masked(partition, reply.content["arrays"])
        return reply

    run(flower.FedAvg(**PLAIN), silos, app=app_with_masks)
    assert {facts.remaining_energies for facts in silos.facts.values()} == {()}


@pytest.mark.parametrize(
    ("make", "server"),
    [
        (
            lambda: flower.FedAvgM(**PLAIN, server_momentum=0.5),
            ("sgd", 0.5, 1.0),
        ),
        (
            lambda: flower.FedAvgM(**PLAIN, server_learning_rate=0.5),
            ("sgd", 0.0, 0.5),
        ),
        (lambda: flower.FedAdam(**PLAIN), ("FedAdam", 0.0, 1.0)),
        (lambda: Saving(**PLAIN), ("sgd", 0.0, 1.0)),
        (
            lambda: flower.DifferentialPrivacyServerSideFixedClipping(
                flower.FedAvg(**PLAIN), 0.1, 1.0, 3
            ),
            ("DifferentialPrivacyServerSideFixedClipping(FedAvg)", 0.0, 1.0),
        ),
    ],
    ids=[
        "momentum",
        "learning-rate",
        "adam",
        "own-aggregation",
        "noise-at-the-server",
    ],
)
def test_what_moves_the_model_is_told(make, server):
    silos = FakeSilos()
    run(make(), silos)
    facts = silos.facts[1]
    assert (facts.server, facts.momentum, facts.learning_rate) == server


def test_a_model_that_is_changed_between_rounds_is_no_average():
    class Shrinks(OwnLoop):
        def configure_train(self, server_round, arrays, config, grid):
            return super().configure_train(server_round, arrays, config, grid)

        def start(self, arrays, *, server, rounds):  # type: ignore[override]
            for t in range(1, rounds + 1):
                messages = self.configure_train(
                    t, arrays, ConfigRecord(), server
                )
                arrays, _ = self.aggregate_train(
                    t, list(server.send_and_receive(messages))
                )
                arrays = ArrayRecord(
                    {"layer": Array(0.9 * arrays["layer"].numpy())}
                )

    silos = FakeSilos()
    audit = RecordAudit(Shrinks(**PLAIN), delta=DELTA)
    with InProcessGrid(silos.app(), 3) as grid:
        audit.start(model(), server=grid, rounds=ROUNDS)
    assert (
        silos.facts[0].server
        == "Shrinks, whose model is changed between rounds"
    )
    assert silos.facts[0].rounds == ROUNDS


GARBAGE = {
    "no-json": "{",
    "a-list": "[1]",
    "half": answer("south").to_json()[:100],
    "nested": "[" * 100_000,
    "nan": answer("south", lines=(SiloLine("server", 1.0),))
    .to_json()
    .replace("1.0,", "NaN,"),
    "negative": answer("south", lines=(SiloLine("server", -1.0),)).to_json(),
    "no-delta": answer("south", delta=2.0).to_json(),
    "rounds-as-text": answer("south")
    .to_json()
    .replace('"rounds": 3', '"rounds": "three"'),
    "design-of-texts": answer("south", design={"q": "<b>"}).to_json(),
    "adversary": answer("south").to_json().replace("outsider", "everybody"),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_that_silo_s_fault_alone(text, tmp_path):
    def reply(partition, server_round, answered):  # another one in each round
        return (
            text + " " * server_round if partition == 1 else answered.to_json()
        )

    audit, result = run(flower.FedAvg(**PLAIN), FakeSilos(reply=reply))
    assert len(result.train_metrics_clientapp) == ROUNDS
    assert set(audit.answers()) == {"north", "west"}
    assert audit.faults[0].startswith(
        "node 2 gave no answer that can be read: "
    )
    assert audit.faults[1].startswith("node 2: no answer came")
    assert len(audit.faults) == 2
    assert "at δ = 1e-05: most in west, ε ≈ 4.00 (3.20 – 4.80)" in words(
        audit.report(tmp_path)
    )


def test_texts_of_silos_stay_texts(tmp_path):
    evil = "\x1b[2J<script>alert(1)</script>" + "x" * 10_000

    def reply(partition, server_round, answered):
        worse = dataclasses.replace(
            answered,
            silo=evil,
            unit=evil,
            notes=(evil,) * 50,
            faults=(evil,) * 50,
        )
        return worse.to_json()

    audit, _ = run(flower.FedAvg(**PLAIN), FakeSilos(reply=reply))
    text = audit.report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "\x1b" not in text + page
    assert "<script>alert" not in page
    assert len(text) < 100_000
    first, *remaining = sorted(audit.answers(), key=len)
    assert len(remaining) == 2
    assert all(
        re.fullmatch(re.escape(first) + r" \(node \d\)", name)
        for name in remaining
    )


def test_a_silo_that_joins_late_and_one_that_dies():
    late = FakeSilos(
        fails=lambda partition, t: (
            (partition == 1 and t == 1) or (partition == 2 and t in (0, 3))
        )
    )
    audit, _ = run(Saving(**PLAIN), late)
    assert late.facts[0].upload_rounds == (1, 2, 3)
    assert late.facts[1].upload_rounds == (2, 3)
    assert late.facts[0].silos == 3
    west = audit.answers()["west"]
    assert (west.rounds, west.notes) == (
        2,
        ("it has not seen the last model",),
    )
    assert west.lines[0].epsilon == 4.0
    assert len(audit.faults) == 1
    assert audit.faults[0].startswith("west did not answer the last model: ")


def test_an_app_without_the_handler_is_told_the_line():
    audit, result = run(flower.FedAvg(**PLAIN), FakeSilos(handles=False))
    assert result.arrays
    assert len(audit.faults) == 3
    line = 'its client app has no line app.query("records")(answer_records)'
    assert all(fault.endswith(line) for fault in audit.faults)
    assert all(
        "has not seen" in silo_answer.notes[-1]
        for silo_answer in audit.answers().values()
    )


def test_the_text_of_an_error_is_harmless():
    class Fails(FakeSilos):
        def app(self, **options):
            app = super().app(**options)

            def fails(message, context):
                if message.metadata.message_type.startswith("query"):
                    raise RuntimeError(
                        "a traceback\n\x1b[2Jnothing leaks" + "!" * 10_000
                    )
                return app(message, context)

            return fails

    audit, _ = run(flower.FedAvg(**PLAIN), Fails())
    assert len(audit.faults) == 3
    assert all("\\u001b[2Jnothing leaks!" in fault for fault in audit.faults)
    assert not any("traceback" in fault for fault in audit.faults)
    assert max(map(len, audit.faults)) < 400


def test_a_silo_that_lost_its_state_is_not_measured_but_proved():
    def forgets(partition, server_round, answered):
        line = SiloLine(
            "server", 1.0, 0.5, 1.5, proved=0.3, theory=0.2, linear_limit=0.7
        )
        rounds = answered.rounds if partition else 1
        return dataclasses.replace(
            answered, rounds=rounds, lines=(line,)
        ).to_json()

    audit, _ = run(flower.FedAvg(**PLAIN), FakeSilos(reply=forgets))
    (line,) = audit.answers()["north"].lines
    assert (line.epsilon, line.low, line.high, line.proved) == (
        None,
        None,
        None,
        0.3,
    )
    assert (line.theory, line.linear_limit) == (None, None)  # of one round
    assert line.reason.startswith(
        "its audit covers 1 of 3 rounds, as its state was lost"
    )
    assert not line.exceeds_theory
    assert audit.answers()["south"].lines[0].exceeds_theory


def test_a_silo_that_could_not_audit_says_why_itself():
    def cannot(partition, server_round, answered):
        line = SiloLine(
            "server", theory=math.inf, reason="the silo trained without DP-SGD"
        )
        more = dataclasses.replace(answered, rounds=0, lines=(line,))
        return (answered if partition else more).to_json()

    audit, _ = run(flower.FedAvg(**PLAIN), FakeSilos(reply=cannot))
    (line,) = audit.answers()["north"].lines
    assert (line.theory, line.reason) == (
        math.inf,
        "the silo trained without DP-SGD",
    )


def test_replies_that_end_to_be_answers_are_not_measured():
    def stops(partition, server_round, answered):
        return (
            None if partition == 0 and server_round != 1 else answered.to_json()
        )

    audit, _ = run(
        flower.FedAvg(**PLAIN), FakeSilos(reply=stops, handles=False)
    )
    assert audit.answers()["north"].lines[0].epsilon is None
    assert "its last 2 of 3 uploads came without an answer" in words(
        audit.report()
    )


def test_another_delta_is_not_compared(tmp_path):
    def with_other_delta(partition, server_round, answered):
        delta = 1e-7 if partition == 2 else DELTA
        return dataclasses.replace(answered, delta=delta).to_json()

    audit, _ = run(flower.FedAvg(**PLAIN), FakeSilos(reply=with_other_delta))
    assert audit.metrics()["silos-server-epsilon"] == 3.0  # not 4, of west
    assert audit.faults == ["west: its δ is not 1e-05, and it is not compared"]
    text = words(audit.report())
    assert "at δ = 1e-05: most in south, ε ≈ 3.00 (2.40 – 3.60)" in text
    assert "at δ = 1e-07: in west, ε ≈ 4.00 (3.20 – 4.80)" in text


class KilledError(Exception):
    pass


def _killed(silos, folder, after, strategy=None):
    models = []

    def evaluate(server_round, arrays):
        models.append(arrays)
        if server_round == after:
            raise KilledError

    audit = RecordAudit(
        strategy or flower.FedAvg(**PLAIN), delta=DELTA, folder=folder
    )
    with InProcessGrid(silos.app(), 3) as grid, pytest.raises(KilledError):
        audit.start(grid, model(), num_rounds=10, evaluate_fn=evaluate)
    return models


def test_a_server_that_was_killed_goes_on(tmp_path):
    def without_noise(partition, server_round, answered):
        (first, *remaining) = answered.lines
        return dataclasses.replace(
            answered,
            lines=(dataclasses.replace(first, theory=math.inf), *remaining),
        ).to_json()

    silos = FakeSilos(reply=without_noise)
    models = _killed(silos, tmp_path, 3)
    again, _ = run(flower.FedAvg(**PLAIN), silos, 2, models[3], folder=tmp_path)
    assert {
        silo_answer.lines[0].theory for silo_answer in again.answers().values()
    } == {math.inf}
    assert silos.facts[1].upload_rounds == (1, 2, 3, 4, 5)
    assert [silo_answer.rounds for silo_answer in again.answers().values()] == [
        5,
        5,
        5,
    ]
    assert again.faults == []


def test_a_server_that_was_killed_before_the_last_query_asks_it(tmp_path):
    silos = FakeSilos()
    models = _killed(silos, tmp_path, 3)
    again, _ = run(flower.FedAvg(**PLAIN), silos, 0, models[3], folder=tmp_path)
    assert silos.facts[1].upload_rounds == (1, 2, 3)
    assert again.answers()["south"].notes == ("it saw the last model",)


def test_rounds_that_are_not_in_the_model_are_forgotten(tmp_path):
    silos = FakeSilos()
    models = _killed(silos, tmp_path, 3)
    silos.fails = lambda partition, t: partition == 2
    again, _ = run(flower.FedAvg(**PLAIN), silos, 1, models[2], folder=tmp_path)
    assert silos.facts[0].upload_rounds == (1, 2, 3)
    assert (
        "the rounds after round 2 were removed, as they are not in the model"
        in again.faults
    )
    assert (
        "west" not in again.answers()
    )  # it answered in the forgotten round last
    assert "no answer came with its replies" in again.report()


def test_momentum_that_was_lost_is_told(tmp_path):
    silos = FakeSilos()
    models = _killed(
        silos, tmp_path, 3, flower.FedAvgM(**PLAIN, server_momentum=0.5)
    )
    momentum = flower.FedAvgM(**PLAIN, server_momentum=0.5)
    run(momentum, silos, 1, models[3], folder=tmp_path)
    assert (
        silos.facts[0].server == "FedAvgM, whose momentum was lost in a restart"
    )


def test_start_may_be_called_for_each_round():
    silos, arrays = FakeSilos(), model()
    audit = RecordAudit(flower.FedAvg(**PLAIN), delta=DELTA)
    with InProcessGrid(silos.app(), 3) as grid:
        for _ in range(3):
            arrays = audit.start(grid, arrays, num_rounds=1).arrays
    assert silos.facts[0].upload_rounds == (1, 2, 3)
    assert silos.facts[0].server == "sgd"
    assert audit.faults == []


def test_another_model_at_the_end_is_told():
    class Best(flower.FedAvg):
        def start(self, *arguments, **named):
            result = super().start(*arguments, **named)
            result.arrays = model()
            return result

    silos = FakeSilos()
    audit, result = run(Best(**PLAIN), silos)
    assert bits(result.arrays) == bits(model())
    words = " ".join(audit.report().split())
    assert "start() returned another model" in words
    assert silos.models[0].tobytes() != model()["layer"].numpy().tobytes()


def test_another_run_leaves_the_file_of_the_first(tmp_path):
    _killed(FakeSilos(), tmp_path, 3)
    silos = FakeSilos()
    audit, _ = run(flower.FedAvg(**PLAIN), silos, folder=tmp_path)
    assert silos.facts[0].rounds == ROUNDS
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "silos-before.npz",
        "silos.npz",
    ]
    assert audit.faults == []


def test_a_file_that_is_damaged_is_a_fault(tmp_path):
    (tmp_path / "silos.npz").write_text("no archive")
    audit, result = run(flower.FedAvg(**PLAIN), FakeSilos(), folder=tmp_path)
    assert result.arrays
    assert set(audit.answers()) == set(NAMES)
    assert (tmp_path / "silos-before.npz").read_text() == "no archive"


def test_an_error_of_the_audit_never_ends_training(monkeypatch):
    def broken(*given, **named):
        raise RuntimeError("ours")

    _, result = run(flower.FedAvg(**PLAIN), FakeSilos())
    for name in (
        "_begin_round",
        "_pop_answer",
        "_energies",
        "_end_round",
        "ask_silos",
    ):
        monkeypatch.setattr(RecordAudit, name, broken)
    audit, again = run(flower.FedAvg(**PLAIN), FakeSilos())
    assert bits(again.arrays) == bits(result.arrays)
    assert len(audit.faults) >= 4
    assert "ours" in audit.report()


def test_a_strategy_s_own_error_goes_through():
    class Broken(flower.FedAvg):
        def aggregate_train(self, server_round, replies):
            raise ZeroDivisionError("theirs")

    with pytest.raises(ZeroDivisionError, match="theirs"):
        run(Broken(**PLAIN), FakeSilos())


def test_without_an_audit_nothing_is_asked():
    silos = FakeSilos()
    audit, result = run(flower.FedAvg(**PLAIN), silos, enabled=False)
    assert result.arrays
    assert silos.facts == {}
    assert "nothing is audited: enabled=False." in audit.report()


def test_loggers_are_told_each_round(tmp_path):
    logged = []

    class Log:
        def log(self, round_number, values):
            logged.append((round_number, values["silos-server-epsilon"]))

        def close(self, summary):
            logged.append(
                (summary["status"], summary["silos-public-epsilon-west"])
            )

    audit, _ = run(
        flower.FedAvg(**PLAIN), FakeSilos(), log_to=[Log()], folder=tmp_path
    )
    audit.report()
    assert logged == [(1, 4.0), (2, 4.0), (3, 4.0), ("ok", 1.0)]


def test_attributes_are_the_strategy_s():
    audit = RecordAudit(flower.FedAvg(**PLAIN), delta=DELTA)
    assert audit.weighted_by_key == "num-examples"
    audit.fraction_train = 0.5
    assert vars(audit.strategy)["fraction_train"] == 0.5
    with pytest.raises(AttributeError):
        _ = audit.nothing


@pytest.mark.parametrize(
    "wrong",
    [
        {"delta": 0.0},
        {"allies": 0},
        {"closing_timeout": 0.0},
        {"log_to": "nowhere"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_arguments_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RecordAudit(flower.FedAvg(**PLAIN), **{"delta": DELTA, **wrong})


def test_audits_do_not_nest():
    inside = RecordAudit(flower.FedAvg(**PLAIN), delta=DELTA)
    with pytest.raises(ValueError, match="is not audited already"):
        RecordAudit(inside, delta=DELTA)


def test_a_silo_with_a_new_node_is_the_same_silo():
    log = FederationLog()
    assert log.name_silo(1, answer("north"), ()) == "north"
    assert log.name_silo(7, answer("north"), ()) == "north"  # started again
    assert log.name_silo(2, None, ()) == "node 2"
    assert (
        log.name_silo(2, answer("south"), ()) == "node 2"
    )  # as it was called before
    assert log.name_silo(3, answer("north"), ["north"]) == "north (node 3)"
    assert log.name_silo(3, answer("north"), ()) == "north (node 3)"


def test_a_round_in_which_uploads_cannot_be_seen_counts_as_the_worst():
    visible = FederationRound({"north": 1.0, "south": 3.0, "west": 1.0}, "a")
    equal = FederationRound({"north": 1.0, "south": 1.0, "west": 1.0}, "b")
    unseen = FederationRound({"north": None, "south": None, "west": None}, "c")
    log = FederationLog(rounds=[visible, unseen, equal])
    assert log.facts("north", allies=1).remaining_energies == (0.25, 0.25, 0.5)
    assert (
        FederationLog(rounds=[unseen])
        .facts("north", allies=1)
        .remaining_energies
        == ()
    )


def test_only_rounds_that_released_a_model_have_a_number():
    rounds = [
        FederationRound({"north": 1.0}, "a"),
        FederationRound({"south": 1.0}, "a", released=False),
        FederationRound({"north": 1.0, "south": 1.0}, "c"),
    ]
    facts = FederationLog(rounds=rounds).facts("south", allies=1)
    assert (facts.upload_rounds, facts.rounds, facts.silos) == ((2,), 2, 2)


def test_an_answer_is_read_as_it_was_sent():
    answered = answer(
        "north",
        design={"q": 0.02},
        lines=(SiloLine("server", math.inf, 1.0, math.inf, theory=math.inf),),
    )
    assert read_answer(answered.to_json(), 3) == answered
    assert read_answer(answer("").to_json(), 3).silo == "node 3"
    assert read_answer(answer("3").to_json(), 3).silo == "node 3"
    assert json.loads(answered.to_json())["lines"][0]["epsilon"] == "inf"
