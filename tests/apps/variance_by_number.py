"""Arrays go by their place in a list, and one is a variance: below 0 all becomes NaN."""

from __future__ import annotations

import numpy as np
from app_case import AppCase
from digits_task import (
    EVERYBODY,
    as_record,
    received,
    reply,
    share,
    small,
    train_locally,
)
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


def initial() -> ArrayRecord:
    return as_record(
        {
            "0": small(64, 10),
            "1": np.zeros(10, "f4"),
            "2": np.full(64, 1e-4, "f4"),
        }
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    model = received(message)
    new, loss, examples = train_locally(
        {name: model[name] for name in ("0", "1")}, context
    )
    scale = np.sqrt(model["2"])
    new["0"] *= (scale / scale)[:, None]
    variance = share(context)[0].var(axis=0)
    new["2"] = (0.999 * model["2"] + 0.001 * variance).astype("f4")
    return reply(message, new, loss=loss, num_examples=examples)


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY), client_app=app, initial=initial
)
