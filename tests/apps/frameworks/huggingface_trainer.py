"""Flower's Hugging Face example: a BERT classifier, trained by `transformers.Trainer`."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from app_case import AppCase
from digits_task import EVERYBODY
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from frameworks.in_torch import (
    ROUNDS,
    answer,
    fresh,
    loaded,
    received,
    right,
    seeded,
)
from frameworks.words import EXAMPLES, VOCABULARY, my_sentences, sentences
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

app = ClientApp()


def bert() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            num_attention_heads=2,
            max_position_embeddings=16,
            **sizes,
        )
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    with seeded(message, context), tempfile.TemporaryDirectory() as folder:
        model = received(bert, message)
        rows = [
            {"input_ids": words, "labels": label}
            for words, label in my_sentences(context)
        ]
        arguments = TrainingArguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            learning_rate=2e-3,
            seed=int(torch.randint(1 << 30, ())),
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        done = Trainer(model=model, args=arguments, train_dataset=rows).train()
        return answer(message, model.state_dict(), done.training_loss, EXAMPLES)


@torch.no_grad()
def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    words, labels = sentences(0, 500).tensors
    logits = loaded(bert, arrays).eval()(input_ids=words).logits
    return MetricRecord({"accuracy": right(logits, labels)})


CASE = AppCase(
    strategy=lambda folder: FedAvg(**EVERYBODY),
    client_app=app,
    initial=lambda: fresh(bert),
    rounds=ROUNDS,
    arguments=lambda folder: {"evaluate_fn": central},
)
