"""The client: trains the model that came on the images of this node."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hardened.faults import misbehave
from hardened.task import as_arrays, as_weights, client_images, test, train

app = ClientApp()


@app.train(mods=[misbehave])
def train_here(message: Message, context: Context) -> Message:
    """Train; reply with the model and the loss."""
    node, settings = context.node_config, context.run_config
    data = client_images(int(node["partition-id"]), int(node["num-partitions"]))
    before = as_weights(message.content.array_records["arrays"])
    epochs, rate = (
        int(settings["local-epochs"]),
        float(settings["learning-rate"]),
    )
    after = train(before, data, epochs, rate)
    loss = test(after, data)["loss"]
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    return Message(
        RecordDict({"arrays": as_arrays(after), "metrics": metrics}),
        reply_to=message,
    )
