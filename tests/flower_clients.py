"""Plain Flower client apps for tests of audits: fast, and nothing in them knows of a canary."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

SHAPES = {"layer.weight": (40, 100), "layer.bias": (40,)}
DIM = 4040


def model(shapes=SHAPES, dtype="float32") -> ArrayRecord:
    return ArrayRecord({name: Array(np.zeros(shape, dtype)) for name, shape in shapes.items()})


def drifting_app(
    mods=(), *, norm=0.1, examples=10, arrange=lambda arrays: arrays, fails=lambda node, t: False
) -> ClientApp:
    """Each client answers with the model plus its own fixed-norm random step.

    Args:
        mods: of the app.
        norm: of every update.
        examples: that every client claims, or a function of its partition.
        arrange: changes the answered arrays (names, order, types), given a dictionary of them.
        fails: whether the client of a partition raises in a round.
    """
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        t = int(message.content["config"]["server-round"])
        if fails(partition, t):
            raise RuntimeError(f"client {partition} is broken")
        rng = np.random.default_rng((17, partition, t))
        received = {name: array.numpy() for name, array in message.content["arrays"].items()}
        moved = [k for k, v in received.items() if v.ndim and k != "counts"]
        moved.sort(key=lambda k: -received[k].size)  # the same steps under any names, in any order
        steps = {k: rng.standard_normal(received[k].shape) for k in moved}
        length = np.sqrt(sum(np.sum(step**2) for step in steps.values()))
        arrays = {
            k: np.asarray(v + norm / length * steps[k] if k in moved else v).astype(v.dtype)
            for k, v in received.items()
        }
        count = examples(partition) if callable(examples) else examples
        content = RecordDict(
            {
                "arrays": ArrayRecord({k: Array(v) for k, v in arrange(arrays).items()}),
                "metrics": MetricRecord({"loss": float(partition), "num-examples": count}),
            }
        )
        return Message(content, reply_to=message)

    return app
