"""The client: trains and evaluates the model that came, on the images of this node."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from canary_audit.task import Images, Net, client_images, test, train

app = ClientApp()


def _received_model(message: Message) -> Net:
    model = Net()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model


def _my_images(context: Context) -> tuple[Images, Images]:
    node = context.node_config
    return client_images(int(node["partition-id"]), int(node["num-partitions"]))


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """Train on this node's images; reply with the model and the loss."""
    model = _received_model(message)
    images, _ = _my_images(context)
    loss = train(
        model,
        images,
        epochs=int(context.run_config["local-epochs"]),
        batch_size=int(context.run_config["batch-size"]),
        learning_rate=float(context.run_config["learning-rate"]),
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(images)})
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=reply, reply_to=message)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    """Evaluate on the images that this node does not train on."""
    _, images = _my_images(context)
    loss, accuracy = test(_received_model(message), images)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(images)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
