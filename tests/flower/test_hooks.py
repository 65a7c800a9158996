"""Hooks on a strategy's own instance."""

import copy
import pickle

import numpy as np
import pytest
from flower_audits import DELTA, PLAIN, ROUNDS, run
from flower_clients import drifting_app, model
from flwr.app import ConfigRecord
from flwr.serverapp import strategy as flower

from fl_epe.flower import CanaryAudit, InProcessGrid
from fl_epe.flower.audited_strategy import Attachment, arguments_of
from fl_epe.flower.undo import Undo

NODES = 10


class ByName(flower.FedAvg):
    """A loop of its own, with arguments of its own, that calls everything by name."""

    def start(self, arrays, *, server, rounds):  # type: ignore[override]
        for t in range(1, rounds + 1):
            messages = self.configure_train(
                server_round=t,
                arrays=arrays,
                config=ConfigRecord(),
                grid=server,
            )
            replies = iter(server.send_and_receive(messages))
            arrays, _ = self.aggregate_train(server_round=t, replies=replies)
        return arrays


def test_a_loop_that_calls_by_name_is_audited():
    audit = CanaryAudit(
        ByName(**PLAIN), num_canaries=ROUNDS, delta=DELTA, seed=1, rounds=ROUNDS
    )
    with InProcessGrid(drifting_app(), NODES) as grid:
        arrays = audit.start(model(), server=grid, rounds=ROUNDS)
    assert arrays is not None
    assert audit.record().presence.sum() == ROUNDS
    assert audit.faults == []


def test_the_strategy_is_left_as_it_was():
    strategy = flower.FedAvg(**PLAIN)
    before = dict(vars(strategy))
    run(strategy, rounds=2, num_canaries=4)
    assert vars(strategy) == before


def test_a_hook_of_somebody_else_comes_back():
    strategy = flower.FedAvg(**PLAIN)
    original = strategy.aggregate_train
    strategy.aggregate_train = original  # type: ignore[method-assign]
    run(strategy, rounds=2, num_canaries=4)
    assert vars(strategy)["aggregate_train"] is original


def test_an_instance_that_takes_only_one_hook_keeps_none():
    class Picky(flower.FedAvg):
        def __setattr__(self, name, value):
            if name == "aggregate_train":
                raise AttributeError(name)
            super().__setattr__(name, value)

    strategy = Picky(**PLAIN)
    audit, result = run(strategy, rounds=2, num_canaries=4)
    assert len(result.train_metrics_clientapp) == 2
    assert "configure_train" not in vars(strategy)
    assert "cannot be hooked" in audit.faults[0]
    assert "not measured" in audit.report()


def test_the_strategy_s_own_error_goes_through_and_ours_does_not():
    strategy = flower.FedAvg(**PLAIN)
    noted: list[Exception] = []

    class Fails:
        def aggregate_train(self, *given, **named):
            raise RuntimeError("ours")

    class Asks:
        def aggregate_train(self, server_round, replies):
            return hooks.call("aggregate_train", server_round, replies)

    def note(failure: str, error: Exception) -> None:
        noted.append(error)

    hooks = Attachment(strategy, Fails(), lambda name, error: [], note)
    hooks.attach()
    assert strategy.aggregate_train(1, []) == (None, None)
    hooks.detach()
    hooks = Attachment(strategy, Asks(), lambda name, error: [], note)
    hooks.attach()
    with pytest.raises(AttributeError):
        strategy.aggregate_train(1, [object()])  # type: ignore[list-item]
    assert len(noted) == 1


def test_a_call_s_arguments_are_found_by_name():
    def start(grid, initial_arrays, num_rounds=3, **more):
        """Like a strategy's."""

    assert arguments_of(start, (1, 2), {})["num_rounds"] == 3
    assert arguments_of(start, (1, 2, 7), {})["num_rounds"] == 7
    assert arguments_of(start, (1, 2), {"timeout": 5})["timeout"] == 5
    assert arguments_of(start, (), {}) == {}


@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_what_a_failed_call_changed_is_brought_back(deep):
    strategy = flower.FedAvg(**PLAIN)
    history: list[int] = [1]
    strategy.history, strategy.by_node = history, {3: [0.5]}  # type: ignore[attr-defined]
    strategy.moment = np.zeros(2)  # type: ignore[attr-defined]
    undo = Undo([strategy], depth="deep" if deep else "shallow")
    history.append(2)
    strategy.by_node[3].append(0.25)  # type: ignore[attr-defined]
    strategy.moment = strategy.moment + 1  # type: ignore[attr-defined]
    strategy.new = True  # type: ignore[attr-defined]
    undo.restore()
    assert strategy.history is history  # type: ignore[attr-defined]
    assert history == [1]
    assert strategy.by_node[3] == ([0.5] if deep else [0.5, 0.25])  # type: ignore[attr-defined]
    np.testing.assert_array_equal(strategy.moment, np.zeros(2))  # type: ignore[attr-defined]
    assert not hasattr(strategy, "new")


class Stubborn(dict[str, int]):
    """A dictionary that cannot be emptied."""

    def clear(self) -> None:
        raise RuntimeError


def test_attributes_are_brought_back_though_one_of_them_refuses():
    strategy = flower.FedAvg(**PLAIN)
    strategy.before, strategy.counts, strategy.after = [1], Stubborn(a=1), [2]  # type: ignore[attr-defined]
    undo = Undo([strategy], depth="deep")
    strategy.before.append(3)  # type: ignore[attr-defined]
    strategy.counts["a"] = 2  # type: ignore[attr-defined]
    strategy.after.append(3)  # type: ignore[attr-defined]
    undo.restore()
    assert strategy.before == [1]  # type: ignore[attr-defined]
    assert strategy.counts == {"a": 1}  # type: ignore[attr-defined]
    assert strategy.after == [2]  # type: ignore[attr-defined]


class Watched(flower.FedAvg):
    """Has a property, a counter that others set, and copies itself in every round."""

    copies: list[flower.FedAvg]

    @property
    def least(self):
        return self.min_train_nodes

    @least.setter
    def least(self, value):
        self.min_train_nodes = value

    def aggregate_train(self, server_round, replies):
        self.copies = [copy.deepcopy(self), pickle.loads(pickle.dumps(self))]  # noqa: S301
        return super().aggregate_train(server_round, replies)


def test_what_is_written_to_an_audit_is_the_strategy_s():
    strategy = Watched(**PLAIN)
    audit = CanaryAudit(strategy, num_canaries=4, delta=DELTA)
    audit.fraction_train, audit.least, audit.extra = 0.5, 7, "new"
    assert (strategy.fraction_train, strategy.min_train_nodes) == (0.5, 7)
    assert (audit.fraction_train, audit.least, audit.extra) == (0.5, 7, "new")
    audit.fraction_train /= 2
    assert strategy.fraction_train == 0.25
    del audit.extra
    assert not hasattr(strategy, "extra")
    with pytest.raises(AttributeError, match="extra"):
        del audit.extra


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "start",
        "summary",
        "configure_train",
        "aggregate_train",
        "configure_evaluate",
    ],
)
def test_a_function_put_in_the_place_of_another_calls_it_once(name):
    strategy, calls = flower.FedAvg(**PLAIN), []
    audit = CanaryAudit(
        strategy, num_canaries=4, delta=DELTA, seed=1, max_share=1
    )
    before = getattr(audit, name)

    def around(*given, **named):
        calls.append(name)
        return before(*given, **named)

    setattr(audit, name, around)
    with InProcessGrid(drifting_app(), NODES) as grid:
        result = audit.start(grid, model(), num_rounds=2)
    assert len(calls) == (1 if name in ("start", "summary") else 2)
    assert vars(strategy)[name] is around
    assert result.train_metrics_clientapp[2]["epsilon-all"] > 0


def test_a_strategy_may_copy_and_pickle_itself_while_it_is_audited():
    strategy = Watched(**PLAIN)
    run(strategy, rounds=2, num_canaries=4)
    for strategy_copy in strategy.copies:
        assert vars(strategy_copy)["aggregate_train"].__self__ is strategy_copy
        with InProcessGrid(drifting_app(), NODES) as grid:
            result = strategy_copy.start(grid, model(), num_rounds=1)
        assert result.train_metrics_clientapp[1].keys() == {"loss"}


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda audit: pickle.loads(pickle.dumps(audit))],  # noqa: S301
    ids=["copy", "file"],
)
def test_a_copy_of_an_audit_is_another_one(copied):
    audit = CanaryAudit(
        flower.FedAvg(**PLAIN), num_canaries=4, delta=DELTA, seed=1, max_share=1
    )
    second = copied(audit)
    with InProcessGrid(drifting_app(), NODES) as grid:
        second.start(grid, model(), num_rounds=2)
    assert second.strategy is not audit.strategy
    assert second.record().num_canaries == 4
    assert copied(second).record().num_canaries == 4
    assert audit.report().startswith("Not measured, as the audit saw no round")
