"""Each client gets a configuration of its own: a message for each node, with records of its own.

The learning rate depends on the node, and clients without one in their message fail.
"""

from __future__ import annotations

from app_case import AppCase
from digits_task import EVERYBODY, setting, train_and_reply
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    rate = setting(message, "lr")
    if rate <= 0:
        raise ValueError(f"a learning rate of {rate}")
    return train_and_reply(message, context, rate)


class OneForEach(FedAvg):
    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        messages = []
        for shared in super().configure_train(
            server_round, arrays, config, grid
        ):
            node = shared.metadata.dst_node_id
            own = ConfigRecord(
                {**dict(config.items()), "lr": 0.05 * (1 + node % 4)}
            )
            content = RecordDict({"arrays": arrays, "config": own})
            messages.append(Message(content, node, "train"))
        return messages


CASE = AppCase(strategy=lambda folder: OneForEach(**EVERYBODY), client_app=app)
