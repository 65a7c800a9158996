"""Flower's scikit-learn example: logistic regression, whose arrays have numbers for names."""

from __future__ import annotations

from typing import Any

import numpy as np
from app_case import AppCase
from digits_task import EVERYBODY, digits, share
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

app = ClientApp()


def regression(arrays: ArrayRecord) -> Any:
    """A model that goes on from these arrays; float64, as scikit-learn has them."""
    model = LogisticRegression(max_iter=3, warm_start=True)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = arrays.to_numpy_ndarrays()
    return model


@app.train()
def train(message: Message, context: Context) -> Message:
    model = regression(message.content.array_records["arrays"])
    inputs, targets = share(context)
    model.fit(inputs, targets)
    loss = float(
        log_loss(targets, model.predict_proba(inputs), labels=model.classes_)
    )
    metrics = MetricRecord(
        {"num-examples": len(targets), "train_logloss": loss}
    )
    arrays = ArrayRecord([model.coef_, model.intercept_])
    return Message(
        RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message
    )


def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord(
        {"accuracy": float(regression(arrays).score(*digits()))}
    )


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    initial=lambda: ArrayRecord([np.zeros((10, 64)), np.zeros(10)]),
    rounds=10,
    arguments=lambda folder: {"evaluate_fn": central},
    growth=4,
)
