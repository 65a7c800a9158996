"""Nodes that are slow or lie, where their own configuration says so; for rehearsals.

A node with a ``diary``, a file, writes a line to it for each message that it is to train on. By
their number it waits, in message 2 until there is a file ``….go-2`` (``hold-in``, one or several),
or answers what no honest client would: an update 20 times as long (``huge-in``), that it has a
million examples (``heavy-in``), or NaN (from ``nan-from`` on).
"""

import time
from pathlib import Path

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from hardened.task import as_arrays, as_weights

HUGE, HEAVY = 20, 10**6


def misbehave(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """A mod: what the node answers instead."""
    config = context.node_config
    if "diary" not in config:
        return call_next(message, context)
    diary = Path(str(config["diary"]))
    with diary.open("a") as file:
        file.write("asked to train\n")
    now = len(diary.read_text().splitlines())
    go = diary.with_suffix(f".go-{now}")
    while (
        str(now) in str(config.get("hold-in", "")).split() and not go.exists()
    ):
        time.sleep(0.2)
    before = as_weights(message.content.array_records["arrays"])
    reply = call_next(message, context)
    if now == config.get("heavy-in"):
        reply.content.metric_records["metrics"]["num-examples"] = HEAVY
    factor = np.float32(HUGE if now == config.get("huge-in") else 1)
    if now >= int(config.get("nan-from", now + 1)):
        factor = np.float32("nan")
    if factor != 1:
        after = as_weights(reply.content.array_records["arrays"])
        lie = {
            name: old + factor * (after[name] - old)
            for name, old in before.items()
        }
        reply.content["arrays"] = as_arrays(lie)
    return reply
