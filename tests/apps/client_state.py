"""Every client keeps a record of its own in `Context.state`, and goes on from it in the next round.

It counts the rounds in which it trained, and keeps the model that it sent last to warm-start from;
a client that got another's message would be found out.
"""

from __future__ import annotations

from app_case import AppCase
from digits_task import (
    EVERYBODY,
    as_record,
    as_weights,
    received,
    reply,
    train_locally,
)
from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    model = received(message)
    seen = 1
    if "mine" in context.state:
        mine = as_weights(context.state.array_records["mine"])
        model = {name: 0.9 * model[name] + 0.1 * mine[name] for name in model}
        before = context.state.metric_records["count"]["rounds"]
        assert isinstance(before, int)
        seen = before + 1
    new, loss, examples = train_locally(model, context)
    context.state["mine"] = as_record(new)
    context.state["count"] = MetricRecord({"rounds": seen})
    return reply(
        message, new, loss=loss, rounds_seen=seen, num_examples=examples
    )


CASE = AppCase(strategy=lambda folder: FedAvg(**EVERYBODY), client_app=app)
