"""Training goes on whatever happens to a silo's audit, and what was not measured is no number."""

import base64
import copy
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from silo_federation import DELTA, LEARNING_RATE, Silo, by_adversary

from fl_epe.auditing import (
    RECORDS,
    SEEN_OF_SILOS,
    AuditRecord,
    FederationFacts,
    SiloAnswer,
)
from fl_epe.canaries import CanarySet
from fl_epe.dp_sgd import PlainDPSGD, SeenSteps
from fl_epe.silos import answer_records, audit_records
from fl_epe.silos.local_round import LocalRound
from fl_epe.silos.memory import SiloMemory
from fl_epe.silos.places import InMapping
from fl_epe.simulation.flower_internals import ensure_task_identity

SMALL = {"dim": 300, "steps": 12, "rounds": 3}
LEFT = "the disk of the audit is full"


class Unaudited(Silo):
    """The same silo without an audit."""

    def local(self, model, noise, index):
        optimizer = self.plain(model, noise, index)
        rng = np.random.default_rng((self.seed, 7, index))
        for size in rng.binomial(
            int(self.batch / self.rate), self.rate, self.steps
        ).tolist():
            optimizer.step(np.zeros((size, self.dim), np.float32))
        return np.asarray(optimizer.theta, np.float32)


def fails(*_, **__):
    raise RuntimeError(LEFT)


def assert_not_measured(answer, reason):
    assert [line.adversary for line in answer.lines] == list(SEEN_OF_SILOS)
    for line in answer.lines:
        numbers = (
            line.epsilon,
            line.low,
            line.high,
            line.scale,
            line.proved,
            line.linear_limit,
        )
        assert numbers == (None,) * 6
        assert line.theory is None
        assert reason in line.reason


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (SiloMemory, "receive"),
        (InMapping, "load"),
        (LocalRound, "begin"),
        (LocalRound, "_next_gradient"),
        (CanarySet, "combine"),
        (SeenSteps, "add"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_error_before_canaries_join_leaves_the_model_as_without_an_audit(
    monkeypatch, owner, name
):
    monkeypatch.setattr(owner, name, fails)
    silo = Silo(**SMALL)
    assert np.array_equal(silo.run(), Unaudited(**SMALL).run())
    assert_not_measured(silo.audit.answer(), LEFT)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (SiloMemory, "note_upload"),
        (InMapping, "save"),
        (LocalRound, "end"),
        (SeenSteps, "state"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_an_error_after_canaries_joined_ends_no_training(
    monkeypatch, owner, name
):
    monkeypatch.setattr(owner, name, fails)
    silo = Silo(**SMALL)
    assert np.isfinite(silo.run()).all()
    assert_not_measured(silo.audit.answer(), LEFT)


def test_an_error_in_one_round_is_said_after_the_others(monkeypatch):
    silo = Silo(**SMALL)
    sound = SeenSteps.add

    def add(self, *given):
        if len(silo_rounds) == 2:
            fails()
        sound(self, *given)

    silo_rounds = []

    def server(model, mean, index):
        silo_rounds.append(index)
        return model + mean

    silo.server = server
    monkeypatch.setattr(SeenSteps, "add", add)
    answer = silo.answer()
    assert_not_measured(answer, LEFT)
    assert answer.notes == (f"the audit stood back: RuntimeError: {LEFT}",)


def test_an_optimizer_is_left_as_it_was(monkeypatch):
    silo = Silo(**SMALL)
    optimizer = silo.plain(np.zeros(silo.dim), 0, 0)
    before = dict(vars(optimizer))
    monkeypatch.setattr(CanarySet, "combine", fails)
    with audit_records(
        {}, optimizer, delta=DELTA, num_canaries=20, sample_rate=0.1
    ):
        assert vars(optimizer).keys() > before.keys()
        for _ in range(10):
            optimizer.step(np.zeros((5, silo.dim), np.float32))
    assert vars(optimizer).keys() == before.keys()


@pytest.mark.slow
def test_a_training_that_failed_is_as_if_it_had_not_been():
    def train(optimizer, sizes):
        for step, size in enumerate(sizes):
            optimizer.step(np.zeros((size, silo.dim), np.float32))
            if broken and step == 9:
                broken.clear()
                raise MemoryError("no memory for a batch")

    class Again(Silo):
        def local(self, model, noise, index):
            if index == 1:
                broken.append(index)
                with pytest.raises(MemoryError, match="for a batch"):
                    super().local(model, noise, index)
            return super().local(model, noise, index)

    broken = []
    silo = Again(**SMALL, train=train)
    assert silo.answer() == Silo(**SMALL).answer()


@pytest.mark.slow
def test_a_folder_keeps_what_a_dictionary_keeps(tmp_path):
    def context():
        return Context(1, 2, {}, RecordDict(), {})

    expected = Silo(**SMALL).answer()
    for where in (tmp_path, str(tmp_path / "sub"), context()):
        assert Silo(**SMALL, where=where).answer() == expected
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [
        "records.npz"
    ]


def test_a_damaged_file(tmp_path):
    silo = Silo(**SMALL, where=tmp_path)

    def server(model, mean, index):
        if index == 0:
            path = tmp_path / "records.npz"
            path.write_bytes(path.read_bytes()[:-300])
        return model + mean

    silo.server = server
    assert np.isfinite(silo.run()).all()
    answer = silo.audit.answer()
    assert_not_measured(answer, "records.npz")
    assert str(tmp_path) not in answer.to_json()


def test_a_model_of_another_size():
    silo = Silo(**SMALL)
    silo.run()
    larger = Silo(**SMALL | {"dim": 400}, where=silo.where, seed=1)
    assert np.isfinite(larger.run()).all()
    assert_not_measured(
        larger.audit.answer(), "the model has 400 trainable parameters, and had"
    )


def test_dp_sgd_after_rounds_without_it():
    silo = Silo(**SMALL)
    where: dict[str, Any] = {}
    plain = silo.plain(np.zeros(silo.dim), 0, 0)
    parameter = torch.nn.Parameter(torch.zeros(silo.dim))
    with audit_records(
        where, torch.optim.SGD([parameter], lr=0.1), delta=DELTA
    ):
        pass
    with audit_records(
        where, plain, delta=DELTA, num_canaries=20, sample_rate=0.02
    ) as audit:
        for _ in range(10):
            plain.step(np.zeros((5, silo.dim), np.float32))
    answer = audit.answer()
    assert answer.faults[0] == "SGD trained without DP-SGD in 1 of 2 rounds"
    assert {line.theory for line in answer.lines} == {np.inf}


class InFlower:
    """A silo's client app, with real messages, and PlainDPSGD."""

    def __init__(self, **options):
        self.options = {
            "sample_rate": 0.0234375,
            "seed": 987654321987,
            "silo": "north",
        } | options
        self.context = Context(1, 2, {}, RecordDict(), {})
        self.dim, self.batch, self.records = 300, 96, 4096
        self.uniform = False

    def train(self, model, index, steps):
        optimizer = PlainDPSGD(
            model,
            learning_rate=LEARNING_RATE,
            noise_multiplier=0.6,
            max_grad_norm=1.0,
            expected_batch_size=self.batch,
            seed=index,
        )
        rng = np.random.default_rng(index)
        with audit_records(
            self.context, optimizer, delta=DELTA, **self.options
        ) as audit:
            for size in rng.binomial(
                self.records, self.batch / self.records, steps
            ).tolist():
                size = self.batch if self.uniform else size
                optimizer.step(np.zeros((size, self.dim), np.float32))
        trained = np.asarray(optimizer.theta, np.float32)
        content = RecordDict(
            {
                "arrays": ArrayRecord([trained]),
                "metrics": MetricRecord({"num-examples": 5}),
                "config": ConfigRecord({"own": "text"}),
            }
        )
        before = copy.deepcopy(content)
        reply = audit.reply(content)
        assert reply is content
        return trained, before, reply

    def run(self, rounds, steps=7):
        model = np.zeros(self.dim, np.float32)
        for index in range(rounds):
            model, before, reply = self.train(model, index, steps)
        return model, before, reply

    def closing(self, model, rounds):
        """The text in the answer to the query with the last model."""
        facts = FederationFacts(rounds, tuple(range(1, rounds + 1)), 3)
        content = {
            "arrays": ArrayRecord([model]),
            RECORDS: ConfigRecord({"facts": facts.to_json()}),
        }
        ensure_task_identity(0)
        asked = Message(
            RecordDict(content), dst_node_id=2, message_type="query.records"
        )
        reply = answer_records(asked, self.context)
        assert list(reply.content) == [RECORDS]
        assert list(reply.content[RECORDS]) == ["answer"]
        return reply.content[RECORDS]["answer"]


LINE = {
    "adversary": str,
    "epsilon": float,
    "low": float,
    "high": float,
    "scale": float,
    "proved": float,
    "theory": float,
    "linear_limit": float,
    "releases": int,
    "reason": str,
    "doubts": list,
}
ANSWER = {
    "silo": str,
    "unit": str,
    "delta": float,
    "confidence": float,
    "rounds": int,
    "canaries": type(None),
    "lines": list,
    "faults": list,
    "notes": list,
    "design": type(None),
    "records": type(None),
}


def what_leaves(reply, before):
    """The values of the answer in a reply, of which all else is as it was before."""
    assert reply.keys() - before.keys() == {RECORDS}
    assert all(reply[name] == before[name] for name in before)
    record = reply[RECORDS]
    assert isinstance(record, ConfigRecord)
    assert list(record) == ["answer"]
    return checked(record["answer"])


def checked(text, **shared):
    values = json.loads(text)
    assert {
        name: type(value) for name, value in values.items()
    } == ANSWER | shared
    for line in values["lines"]:
        assert line.keys() == LINE.keys()
        for name, value in line.items():
            assert value is None or isinstance(value, LINE[name]), name
    for texts in (
        values["faults"],
        values["notes"],
        *(x["doubts"] for x in values["lines"]),
    ):
        assert all(isinstance(one, str) for one in texts)
    return values


def numbers_in(text):
    return {
        float(found.replace(",", ""))
        for found in re.findall(r"\d[\d,]*(?:\.\d+)?", text)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "uniform", [False, True], ids=["sound", "batches-of-one-size"]
)
def test_what_leaves_a_silo_is_its_answer_alone(uniform):
    silo = InFlower(num_canaries=50)
    silo.uniform = uniform
    model, before, reply = silo.run(4, steps=30)
    assert not what_leaves(reply, before)["faults"]
    text = silo.closing(model, 4)
    assert bool(checked(text)["faults"]) == uniform
    found = numbers_in(reply[RECORDS]["answer"]) | numbers_in(text)
    secret = {
        0.0234375,
        0.0234,
        0.023,
        2.34,
        2.3,
        96.0,
        4096.0,
        987654321987.0,
        30.0,
        120.0,
    }
    assert not found & secret


def test_a_silo_that_is_too_small_does_not_say_how_small():
    silo = InFlower()
    silo.options["sample_rate"], silo.records = 1.0, 96
    _, before, reply = silo.run(1)
    values = what_leaves(reply, before)
    assert "too few" in values["lines"][0]["reason"]
    assert not numbers_in(reply[RECORDS]["answer"]) & {96.0, 9.0, 9.6}


@pytest.mark.slow
def test_what_a_silo_shares_is_that_much_more():
    silo = InFlower(num_canaries=50, share_scores=True, share_design=True)
    model, before, reply = silo.run(4)
    what_leaves(reply, before)
    values = checked(
        silo.closing(model, 4), design=dict, records=dict, canaries=int
    )
    assert values["design"] == {
        "sampling rate": 0.0234375,
        "steps": 28.0,
        "expected batch": 96.0,
        "noise multiplier": 0.6,
    }
    assert list(values["records"]) == ["averages"]
    raw = base64.b64decode(values["records"]["averages"])
    assert b"987654321987" not in raw


def test_shared_scores_are_a_record_without_a_seed(tmp_path):
    silo = InFlower(num_canaries=50, share_scores=True)
    model, _, _ = silo.run(4)
    text = silo.closing(model, 4)
    path = tmp_path / "averages.npz"
    path.write_bytes(base64.b64decode(json.loads(text)["records"]["averages"]))
    record = AuditRecord.load(path)
    assert record.rounds == 4
    assert record.provenance.seeds == {}


def test_the_closing_query_is_answered_by_the_answer_alone():
    silo = InFlower(num_canaries=50, silos=3)
    model, *_ = silo.run(4)
    values = checked(silo.closing(model, 4))
    assert [line["reason"] for line in values["lines"]] == [""] * 4
    assert values["rounds"] == 4


@pytest.mark.slow
def test_a_reply_grows_by_less_than_20_kilobytes():
    silo = InFlower(num_canaries=200)
    silo.dim = 400
    model, _, reply = silo.run(30, steps=3)
    assert SiloAnswer.from_json(reply[RECORDS]["answer"]).rounds == 30
    text = silo.closing(model, 30)
    assert by_adversary(SiloAnswer.from_json(text))["server"].releases == 30
    assert len(reply[RECORDS]["answer"].encode()) < 20_000
    assert len(text.encode()) < 20_000


def test_a_reply_without_arrays_is_sent_as_it_is():
    silo = Silo(**SMALL)
    silo.run()
    content = RecordDict({"metrics": MetricRecord({"loss": 1.0})})
    assert silo.audit.reply(content) is content
    assert content["metrics"]["loss"] == 1.0


def test_what_is_no_content_is_returned():
    silo = Silo(**SMALL)
    silo.run()
    assert silo.audit.reply(None) is None
