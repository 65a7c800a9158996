"""A hospital: one epoch of DP-SGD a round, on its own records.

The audit is four lines: the import, the ``with`` around the training loop, ``audit.reply`` around
what is sent, and the answer to the query that carries the last model.
"""

import logging

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from opacus import PrivacyEngine
from torch.utils.data import DataLoader

from fl_epe.flower import answer_records, audit_records
from three_hospitals.task import HOSPITALS, Net, hospital_records

DELTA = 1e-5

app = ClientApp()


def engine_of(context: Context) -> PrivacyEngine:
    """An engine whose accountant knows the steps of earlier rounds."""
    engine = PrivacyEngine()
    if "accountant" in context.state:
        kept = context.state.metric_records["accountant"]
        spent = zip(kept["noise"], kept["rate"], kept["steps"], strict=True)  # type: ignore
        engine.accountant.history = list(spent)
    return engine


def keep_accountant(engine: PrivacyEngine, context: Context) -> None:
    """Let the next round's engine know the steps so far."""
    noise, rate, steps = map(list, zip(*engine.accountant.history, strict=True))
    context.state["accountant"] = MetricRecord({"noise": noise, "rate": rate, "steps": steps})


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that came; reply with it."""
    config = context.run_config
    name = list(HOSPITALS)[int(context.node_config["partition-id"])]
    records = hospital_records(name)
    net = Net()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())

    engine = engine_of(context)
    model, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=float(config["learning-rate"])),
        data_loader=DataLoader(records, batch_size=int(config["batch-size"])),
        noise_multiplier=float(config["noise-multiplier"]),
        max_grad_norm=float(config["max-grad-norm"]),
    )
    with audit_records(context, optimizer, delta=DELTA, silo=name) as audit:
        for measurements, diagnoses in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(measurements), diagnoses)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    keep_accountant(engine, context)
    logging.info("%s has spent ε = %.2f so far", name, engine.get_epsilon(DELTA))
    metrics = MetricRecord({"num-examples": len(records)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=audit.reply(content), reply_to=message)


app.query("records")(answer_records)
