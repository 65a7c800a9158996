"""A strategy that failed on canaries gets its round again, with the replies as they came."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flower_audits import NODES, PLAIN, run
from flower_clients import drifting_app, model
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import strategy as flower

from fl_epe.flower import CanaryAudit, InProcessGrid
from fl_epe.flower.undo import Undo
from fl_epe.messages import read_only


class KnowsItsNodes(flower.FedAvg):
    """Fails on a node that it did not ask, after it has changed every reply."""

    change: Callable[[Message], None]

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(
            super().configure_train(server_round, arrays, config, grid)
        )
        self.asked = {message.metadata.dst_node_id for message in messages}
        return messages

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            self.change(reply)
        for reply in replies:
            if reply.metadata.src_node_id not in self.asked:
                raise KeyError(reply.metadata.src_node_id)
        return super().aggregate_train(server_round, replies)


def _ten_times(array):
    return Array((10 * array.numpy()).astype("float32"))


class ScalesRecords(KnowsItsNodes):
    def change(self, reply):
        record = reply.content["arrays"]
        record.update(
            {name: _ten_times(array) for name, array in record.items()}
        )


class ScalesBytes(KnowsItsNodes):
    def change(self, reply):
        for array in reply.content["arrays"].values():
            array.data = _ten_times(array).data


class NewContent(KnowsItsNodes):
    def change(self, reply):
        record = reply.content["arrays"]
        scaled = ArrayRecord(
            {name: _ten_times(array) for name, array in record.items()}
        )
        reply.content = RecordDict(
            {"arrays": scaled, "metrics": reply.content["metrics"]}
        )


class PopsArrays(KnowsItsNodes):
    def change(self, reply):
        reply.content["arrays"].pop(
            "layer.bias"
        )  # the model goes on without it

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        arrays["layer.bias"] = model()["layer.bias"]
        return arrays, metrics


def _moved(strategy, audited):
    if audited:
        strategy = CanaryAudit(strategy, delta=1e-3, seed=1)
    with InProcessGrid(drifting_app(), NODES) as grid:
        result = strategy.start(grid, model(), num_rounds=2)
    flat = np.concatenate(
        [array.ravel() for array in result.arrays.to_numpy_ndarrays()]
    )
    return float(np.linalg.norm(flat))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [ScalesRecords, ScalesBytes, NewContent, PopsArrays]
)
def test_the_second_attempt_gets_the_replies_as_they_came(kind):
    plain, audited = _moved(kind(**PLAIN), False), _moved(kind(**PLAIN), True)
    assert audited == pytest.approx(plain, rel=0.5)  # not ten times as far


def test_undo_keeps_the_objects_by_which_replies_are_known():
    with InProcessGrid(drifting_app(), 2) as grid:
        sent = flower.FedAvg(fraction_evaluate=0.0)
        messages = sent.configure_train(1, model(), ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages))
    before = [id(reply.content) for reply in replies]
    values = [
        read_only(reply.content["arrays"]["layer.bias"]).copy()
        for reply in replies
    ]
    undo = Undo([], replies, depth="deep")
    for reply in replies:
        reply.content.metric_records["metrics"].update({"loss": 7.0, "new": 1})
        ScalesBytes.change(None, reply)
        reply.content = RecordDict()
    undo.restore()
    assert [id(reply.content) for reply in replies] == before
    for reply, value in zip(replies, values, strict=True):
        np.testing.assert_array_equal(
            reply.content["arrays"]["layer.bias"].numpy(), value
        )
        metrics = reply.content.metric_records["metrics"]
        assert metrics.keys() == {"loss", "num-examples"}
        assert metrics["loss"] != 7


def _adaptive(norm, rate):
    return flower.DifferentialPrivacyServerSideAdaptiveClipping(
        flower.FedAvg(**PLAIN),
        0.0,
        NODES + 2,
        initial_clipping_norm=norm,
        clip_norm_lr=rate,
    )


def _norm_of(audit):
    strategy: Any = audit.strategy
    return strategy.clipping_norm


@pytest.mark.slow
@pytest.mark.parametrize("rate", [5.0, 20.0])
def test_a_clip_norm_that_grows_without_end_does_not_end_the_run(rate):
    """No update is clipped and there is no noise: canaries are as long as clients' updates."""
    audit, _ = run(
        _adaptive(5.0, rate), rounds=10, num_canaries=None, max_share=0.1
    )
    assert _norm_of(audit) > 1e9
    assert not audit.faults
    moved = _moved(_adaptive(5.0, rate), True)
    assert moved == pytest.approx(_moved(_adaptive(5.0, rate), False), rel=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [5.0, 20.0])
def test_a_clip_norm_below_the_rounding_of_the_model_does_not_end_the_run(rate):
    """A canary that rounding takes away would be an update of norm 0, by which Flower divides."""
    audit, _ = run(
        _adaptive(0.01, rate), rounds=14, num_canaries=None, max_share=0.1
    )
    assert _norm_of(audit) < 1e-12
    assert any("too coarse or too small" in fault for fault in audit.faults)
    assert not any("fails on canaries" in fault for fault in audit.faults)


@pytest.mark.slow
def test_a_clip_norm_far_above_updates_but_not_above_the_noise_is_a_canarys():
    wrapped = flower.DifferentialPrivacyServerSideFixedClipping
    with_noise, _ = run(wrapped(flower.FedAvg(**PLAIN), 1.0, 10.0, 15))
    without, _ = run(wrapped(flower.FedAvg(**PLAIN), 0.0, 10.0, 15))
    added = [
        audit.record().mechanism.contributions
        for audit in (with_noise, without)
    ]
    np.testing.assert_allclose(added[0], 10 / 15)  # the clip norm
    np.testing.assert_allclose(
        added[1], 0.1 / 15, rtol=1e-4
    )  # each client's update is so long
