"""Every node gets two messages a round, each for a half of its data, and answers both."""

from __future__ import annotations

from app_case import AppCase
from digits_task import EVERYBODY, received, reply, setting, train_locally
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    steps = 1 + int(setting(message, "part"))
    new, loss, examples = train_locally(received(message), context, steps=steps)
    return reply(message, new, loss=loss * steps, num_examples=examples)


class TwoParts(FedAvg):
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
            for part in (0, 1):
                own = ConfigRecord({**dict(config.items()), "part": part})
                content = RecordDict({"arrays": arrays, "config": own})
                messages.append(
                    Message(content, shared.metadata.dst_node_id, "train")
                )
        return messages


CASE = AppCase(strategy=lambda folder: TwoParts(**EVERYBODY), client_app=app)
