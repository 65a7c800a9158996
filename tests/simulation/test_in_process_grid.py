"""Nodes in the same process."""

import gc
import threading
import weakref

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from tiny import Tiny

from fl_epe.flower import InProcessGrid, worker_app
from fl_epe.messages import pack


def test_push_and_pull():
    with InProcessGrid(worker_app(Tiny()), 2) as grid:
        ids = list(
            grid.push_messages(
                Message(RecordDict(), n, MessageType.QUERY) for n in (1, 2)
            )
        )
        replies: list[Message] = []
        while len(replies) < 2:
            replies += grid.pull_messages(ids)
        assert not list(grid.pull_messages(ids))
    assert {reply.metadata.src_node_id for reply in replies} == {1, 2}


def test_nodes_in_process_cannot_change_each_other_s_messages():
    app = ClientApp()

    @app.train()
    def train(message, context):
        message.content["config"].pop("secret")
        message.content["arrays"].pop("theta")
        return Message(RecordDict(), reply_to=message)

    with InProcessGrid(app, 3) as grid:
        content = RecordDict(
            {
                "arrays": pack(theta=np.zeros(2)),
                "config": ConfigRecord({"secret": 1}),
            }
        )
        messages = [
            Message(content, node, MessageType.TRAIN)
            for node in grid.get_node_ids()
        ]
        replies = list(grid.send_and_receive(messages))
    assert [reply.has_error() for reply in replies] == [False] * 3
    assert dict(content["config"]) == {"secret": 1}
    assert list(content["arrays"]) == ["theta"]


def test_its_threads_are_freed_without_the_garbage_collector():
    """In a thread's end the collector would run Python code, while others read arrays."""
    before = set(threading.enumerate())
    gc.disable()
    try:
        with InProcessGrid(ClientApp(), 3):
            started = [
                weakref.ref(t) for t in set(threading.enumerate()) - before
            ]
            assert len(started) == 3
        assert not any(thread() for thread in started)
    finally:
        gc.enable()
