"""How many rounds a run has is found out, whatever form the strategy's own ``start`` has."""

import contextlib
import inspect

import pytest
from flower_audits import DELTA, NODES, PLAIN, KilledError
from flower_clients import drifting_app, model
from flwr.serverapp.strategy import FedAvg

from fl_epe.flower import CanaryAudit, InProcessGrid
from fl_epe.flower.audited_strategy import base_arguments

ROUNDS = 4


class HandsOn(FedAvg):
    def start(self, *args, **kwargs):
        return super().start(*args, **kwargs)


class HasItsOwnNumber(FedAvg):
    def start(self, grid, model):  # type: ignore[override]
        return super().start(grid, model, ROUNDS)


class Default(FedAvg):
    def start(self, *args, **kwargs):
        return super().start(*args, timeout=60, **kwargs)  # type: ignore[misc]


def _audit(strategy, *arguments, **named):
    audit = CanaryAudit(strategy, delta=DELTA, seed=1)
    with InProcessGrid(drifting_app(), NODES) as grid:
        audit.start(grid, model(), *arguments, **named)
    return audit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "given", "rounds"),
    [
        pytest.param(HandsOn, (ROUNDS,), ROUNDS, id="by-position"),
        pytest.param(HasItsOwnNumber, (), ROUNDS, id="inside"),
        pytest.param(Default, (), 3, id="by-default"),
    ],
)
def test_flower_s_own_start_says_how_many(kind, given, rounds):
    audit = _audit(kind(**PLAIN), *given)
    assert audit.record().rounds == rounds
    assert audit.record().presence.any()
    assert "ε ≈" in audit.report()
    assert not audit.faults


def test_a_hooked_strategy_that_flower_starts_is_measured():
    audit = CanaryAudit(FedAvg(**PLAIN), delta=DELTA, seed=1)
    with InProcessGrid(drifting_app(), NODES) as grid:
        audit.attach().start(grid, model(), num_rounds=ROUNDS)
    assert audit.record().presence.any()


def test_a_single_round_may_be_one_of_a_loop():
    audit = _audit(HandsOn(**PLAIN), 1)
    assert "Expected rounds=" in audit.faults[0]


def test_a_run_that_was_killed_goes_on(tmp_path):
    """The model is found by Flower's own ``start``, as is how many rounds there are."""
    models = [model()]

    def evaluate(server_round, arrays):
        models.append(arrays)
        if len(models) == 4:  # after the second round
            raise KilledError

    def audited():
        audit = CanaryAudit(HandsOn(**PLAIN), delta=DELTA, checkpoint=tmp_path)
        with (
            InProcessGrid(drifting_app(), NODES) as grid,
            contextlib.suppress(KilledError),
        ):
            audit.start(grid, models[-1], ROUNDS, 60.0, None, None, evaluate)
        return audit

    audited()
    record = audited().record()
    assert record.rounds == ROUNDS
    assert record.findings.resumed_after == (2,)


def test_arguments_are_those_of_the_strategy_s_own_run():
    calls = []

    class Other(FedAvg):
        def summary(self):
            calls.append((base_arguments(self), base_arguments(FedAvg())))

    with InProcessGrid(drifting_app(), NODES) as grid:
        Other(**PLAIN).start(grid, model(), num_rounds=0, timeout=7)
    ((strategy_arguments, base_values),) = calls
    assert (
        strategy_arguments["num_rounds"],
        strategy_arguments["timeout"],
    ) == (0, 7)
    assert base_values == {} == base_arguments(FedAvg())
    assert (
        strategy_arguments.keys()
        <= inspect.signature(FedAvg.start).parameters.keys()
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({}, "delta=None to be a finite number", id="missing"),
        pytest.param(
            {"delta": "1e-5"}, "delta='1e-5' to be a finite number", id="text"
        ),
        pytest.param(
            {"delta": 1e-5, "rounds": "3"},
            "rounds='3' to be an integer",
            id="rounds",
        ),
    ],
)
def test_a_value_of_another_type_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        CanaryAudit(FedAvg(**PLAIN), **given)
