"""What a silo says against each adversary, where gradients do not depend on the model."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from silo_federation import DELTA, LEARNING_RATE, Silo, by_adversary

from fl_epe import auditing
from fl_epe.accounting import poisson_epsilon
from fl_epe.auditing import FederationFacts
from fl_epe.mechanism import ServerSGD
from fl_epe.silos import final_answer


@pytest.fixture(scope="module")
def three():
    return Silo().answer()


@pytest.mark.slow
def test_each_adversary_has_its_own_epsilon(three):
    lines = by_adversary(three)
    assert list(lines) == ["server", "partner", "outsider", "public"]
    for line in lines.values():
        assert line.reason == ""
        assert line.low < line.linear_limit < line.high
        assert 0.5 < line.scale < 1.5
        assert (line.proved or 0) < line.linear_limit < line.theory
    limits = [line.linear_limit for line in lines.values()]
    assert limits == sorted(limits, reverse=True)


def test_theory_is_the_accountants_of_every_step(three):
    theory = poisson_epsilon(0.6, 0.02, 8 * 20, DELTA)
    assert [line.theory for line in three.lines] == pytest.approx([theory] * 4)


def test_a_sound_silo_has_no_faults(three):
    assert (three.faults, three.notes) == ((), ())
    assert (three.rounds, three.unit, three.design, three.records) == (
        8,
        "record",
        None,
        None,
    )


@pytest.mark.slow
def test_two_silos_see_each_others_uploads():
    lines = by_adversary(Silo(count=2).answer())
    for name in ("epsilon", "linear_limit", "scale"):
        ours, theirs = (
            getattr(lines[who], name) for who in ("partner", "server")
        )
        assert ours == pytest.approx(theirs, rel=0.02)


@pytest.mark.slow
def test_allies_leave_less_noise():
    silo = Silo(count=4)
    model = silo.run()
    found = [
        by_adversary(
            final_answer(
                silo.where,
                {"w": model},
                FederationFacts(8, range(1, 9), 4, (), n),
            )
        )
        for n in (1, 2, 3)
    ]
    limits = [lines["partner"].linear_limit for lines in found]
    assert limits == sorted(limits)
    assert limits[0] < limits[2]
    assert limits[2] == pytest.approx(found[2]["server"].linear_limit, rel=0.02)


@pytest.mark.slow
def test_unequal_silos_hide_by_what_the_server_saw():
    silo = Silo()
    model = silo.run()
    facts = FederationFacts(
        8, tuple(range(1, 9)), 3, (1.0,) * 8
    )  # the partner adds nothing
    lines = by_adversary(final_answer(silo.where, {"w": model}, facts))
    assert lines["partner"].linear_limit == pytest.approx(
        lines["outsider"].linear_limit
    )
    assert lines["partner"].doubts == ()


@pytest.mark.slow
def test_a_silo_may_audit_alone():
    silo = Silo(options={"silos": 3})
    model = silo.run()
    lines = by_adversary(silo.audit.answer())
    assert [lines[name].reason for name in lines] == [
        *[""] * 3,
        "the silo has not seen the last model",
    ]
    assert "the last average is missing" in " ".join(lines["partner"].doubts)
    assert all(
        not line.reason for line in final_answer(silo.where, {"w": model}).lines
    )


@pytest.mark.slow
def test_a_person_has_several_records():
    three = Silo(options={"records_per_person": 3}).answer()
    assert three.unit == "person of 3 records"
    one = by_adversary(Silo().answer())
    for adversary, together in by_adversary(three).items():
        alone = one[adversary]
        assert together.low < together.linear_limit < together.high
        assert together.linear_limit > 2 * alone.linear_limit
        assert together.theory > 2 * alone.theory


@pytest.mark.slow
def test_one_step_a_round_is_a_coin():
    lines = by_adversary(
        Silo(steps=1, rounds=60, seed=2).answer()
    )  # 37 of 40 seeds pass: 95%
    for line in lines.values():
        assert line.reason == ""
        assert line.low < line.linear_limit < line.high
    assert lines["server"].linear_limit == pytest.approx(
        lines["server"].theory, rel=0.01
    )


class Momentum:
    """A server that goes on in the direction of earlier rounds."""

    def __init__(self, momentum):
        self._momentum, self._velocity = momentum, 0.0

    def __call__(self, model, mean, _):
        self._velocity = self._momentum * self._velocity + mean
        return model + self._velocity


@pytest.mark.slow
def test_a_servers_momentum_is_undone_if_it_is_told():
    server = ServerSGD(1.0, 0.8)
    silo = Silo(server=Momentum(0.8), options={"server": server})
    facts = FederationFacts(8, tuple(range(1, 9)), 3, momentum=0.8)
    plain = by_adversary(Silo().answer())
    for name, line in by_adversary(silo.answer(facts)).items():
        assert line.reason == ""
        assert line.low < line.linear_limit < line.high
        if name in ("partner", "outsider"):
            assert line.linear_limit == pytest.approx(
                plain[name].linear_limit, rel=0.05
            )


@pytest.mark.slow
@pytest.mark.parametrize("is_told_at_the_end", [True, False])
def test_a_servers_momentum_that_is_not_told(is_told_at_the_end):
    facts = (
        FederationFacts(8, tuple(range(1, 9)), 3, momentum=0.8)
        if is_told_at_the_end
        else None
    )
    lines = by_adversary(Silo(server=Momentum(0.8)).answer(facts))
    assert lines["server"].epsilon is not None
    for name in ("partner", "outsider", "public"):
        assert lines[name].epsilon is None
        assert "momentum" in lines[name].reason


def test_a_server_that_is_no_average():
    facts = FederationFacts(8, tuple(range(1, 9)), 3, server="FedAdam")
    lines = by_adversary(Silo().answer(facts))
    assert lines["server"].epsilon is not None
    assert "FedAdam" in lines["public"].reason


@pytest.mark.slow
def test_rounds_without_the_silo_hide_nothing():
    lines = by_adversary(Silo(rounds=12, skipped=(2, 3, 7)).answer())
    always = by_adversary(Silo(rounds=9).answer())
    for name in ("server", "outsider", "partner"):
        assert lines[name].linear_limit == pytest.approx(
            always[name].linear_limit, rel=0.06
        )
    assert "3 averages" not in lines["outsider"].doubts[0]
    assert (
        "2 averages could be seen only together" in lines["outsider"].doubts[0]
    )


@pytest.mark.slow
def test_uploads_that_the_server_did_not_use():
    silo = Silo(rounds=8)
    lost = {3}
    silo.server = lambda model, mean, index: (
        model + np.float32(1e-4) if index in lost else model + mean
    )
    facts = FederationFacts(7, (1, 2, 3, 4, 5, 6, 7), 3)
    lines = by_adversary(silo.answer(facts))
    assert lines["server"].releases == 8
    assert lines["outsider"].reason == ""
    assert (
        lines["outsider"].linear_limit
        < by_adversary(Silo().answer())["outsider"].linear_limit
    )


@pytest.mark.slow
def test_facts_that_do_not_fit_are_no_number():
    facts = FederationFacts(8, (1, 2, 3), 3)
    lines = by_adversary(Silo().answer(facts))
    assert lines["outsider"].epsilon is None
    assert (
        lines["outsider"].reason
        == "3 uploads arrived, and the silo sees 8 of them in averages"
    )


@pytest.mark.slow
def test_the_server_went_back_to_an_earlier_model():
    silo = Silo(rounds=4)
    first = silo.run()
    assert len(silo.audit._memory.history.averages) == 3
    later = Silo(rounds=8, seed=1, where=silo.where)
    later.run(first, first=4)  # another server, from the model after round 4
    again = Silo(rounds=6, seed=2, where=silo.where)
    last = again.run(
        first, first=4
    )  # which was killed, and began there once more
    lines = by_adversary(
        final_answer(
            silo.where, {"w": last}, FederationFacts(6, range(1, 7), 3)
        )
    )
    assert lines["server"].releases == 4 + 4 + 2
    assert (
        lines["public"].reason
        == "the server went back to an earlier model during the run"
    )


@pytest.mark.slow
def test_a_model_that_is_sent_twice_is_no_average():
    silo = Silo(rounds=4)
    model = silo.run()
    again = Silo(rounds=5, where=silo.where)
    last = again.run(
        silo.audit._memory.last, first=4
    )  # round 4 once more: its server was killed
    answer = final_answer(
        silo.where, {"w": last}, FederationFacts(4, (1, 2, 3, 4), 3)
    )
    assert by_adversary(answer)["server"].releases == 5
    assert by_adversary(answer)["public"].reason == ""
    assert not np.array_equal(model, last)


@pytest.mark.slow
def test_the_learning_rate_of_local_steps_changes():
    def train(optimizer, sizes):
        for i, size in enumerate(sizes):
            optimizer.learning_rate = LEARNING_RATE * (1 - 0.04 * i)
            optimizer.step(np.zeros((size, 2000), np.float32))

    lines = by_adversary(Silo(train=train).answer())
    assert (
        lines["server"].low
        < lines["server"].linear_limit
        < lines["server"].high
    )
    assert math.isfinite(lines["public"].epsilon)


@pytest.mark.parametrize("which", [0, 2])
def test_a_round_without_dp_sgd_is_never_forgotten(which):
    silo = Silo(rounds=4)
    make = silo.plain

    def optimizer(model, noise, index):
        if index != which:
            return make(model, noise, index)
        forgotten = torch.optim.SGD(
            [torch.nn.Parameter(torch.zeros(3))], lr=0.1
        )
        forgotten.theta = model  # type: ignore[attr-defined]
        forgotten.params = []  # type: ignore[attr-defined]
        return forgotten

    silo.optimizer = optimizer

    def train(optimizer, sizes):
        for size in sizes if optimizer.params else ():
            optimizer.step(np.zeros((size, 2000), np.float32))

    silo.train = train
    answer = silo.answer()
    assert answer.faults == ("SGD trained without DP-SGD in 1 of 4 rounds",)
    for line in answer.lines:
        assert (line.epsilon, line.theory) == (None, math.inf)
        assert "nothing bounds what it leaks" in line.reason


def test_a_silo_that_is_too_small_has_theory_and_its_steps_are_looked_at():
    options = {"num_canaries": None}
    sound = Silo(batch=4, rate=0.05, rounds=3, options=options)
    last = sound.run()
    answer = final_answer(sound.where, {"w": last}, sound.facts())
    assert (answer.canaries, answer.faults) == (0, ())
    for line in answer.lines:
        assert line.epsilon is None
        assert (
            line.reason
            == "a tenth of its records is too few canaries to measure by"
        )
        assert line.theory == pytest.approx(
            poisson_epsilon(0.6, 0.05, 3 * 20, DELTA)
        )
    quiet = Silo(
        batch=4, rate=0.05, rounds=3, noise=0.0, options=options
    ).answer()
    assert {line.theory for line in quiet.lines} == {math.inf}
    assert not sound.audit._memory._vectors["times"].any()


@pytest.mark.slow
def test_a_partner_is_measured_if_somebody_says_what_the_others_add():
    lines = by_adversary(Silo(options={"silos": None}).answer())
    assert lines["partner"].epsilon is None
    assert "is not known" in lines["partner"].reason
    assert lines["outsider"].epsilon is not None
    two = by_adversary(
        Silo(count=2, options={"silos": None}).answer()
    )  # there is one other
    assert two["partner"].epsilon is not None


def test_a_model_that_is_loaded_after_the_start_of_the_audit_is_not_measured():
    """What it moves the model by is no noise, and would hide records of the silo."""
    loaded = []

    def stale(model, noise, index):
        loaded.append(model + np.float32(0.01) * index)
        return silo.plain(np.zeros_like(model), noise, index)

    def train(optimizer, sizes):
        optimizer.theta[...] = loaded[-1]
        for size in sizes:
            optimizer.step(np.zeros((size, silo.dim), np.float32))

    silo = Silo(optimizer=stale, train=train)
    answer = silo.answer()
    assert {line.epsilon for line in answer.lines} == {None}
    assert {line.theory for line in answer.lines} == {
        by_adversary(answer)["server"].theory
    }
    for line in answer.lines:
        assert "loaded before the audit starts" in line.reason


def test_a_reply_without_the_trained_tensors_still_has_theory():
    silo = Silo(sent=lambda model: {"w": model + np.float32(1)})
    answer = silo.answer()
    for line in answer.lines:
        assert "not as they were trained" in line.reason
        assert (line.theory or 0) > 0


@pytest.mark.slow
def test_a_silo_is_accused_by_a_proof_of_four_nines(monkeypatch):
    """In one of twenty lines what is proved at 95% is too much by chance."""

    def unlucky(record, adversary, *, confidence):
        found = auditing.answer(record, adversary, confidence=confidence)
        return dataclasses.replace(
            found, proved=1000.0 if confidence < 0.999 else 0.5
        )

    monkeypatch.setattr("fl_epe.silos.lines.answer", unlucky)
    for line in Silo().answer().lines:
        assert line.proved == 0.5
        assert not line.exceeds_theory
