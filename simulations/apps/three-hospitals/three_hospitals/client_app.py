"""A hospital: one epoch of DP-SGD a round, on its own records."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from opacus import PrivacyEngine
from torch.utils.data import DataLoader

from three_hospitals.task import Net, hospital_records

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that came; reply with it."""
    config = context.run_config
    records = hospital_records(int(context.node_config["partition-id"]))
    net = Net()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())

    model, optimizer, loader = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=float(config["learning-rate"])),
        data_loader=DataLoader(records, batch_size=int(config["batch-size"])),
        noise_multiplier=float(config["noise-multiplier"]),
        max_grad_norm=float(config["max-grad-norm"]),
    )
    for measurements, diagnoses in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(measurements), diagnoses)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    metrics = MetricRecord({"num-examples": len(records)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
