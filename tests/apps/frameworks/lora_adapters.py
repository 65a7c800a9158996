"""Flower's fine-tuning example: low-rank adapters of a frozen language model, by their own names.

One half of the adapters begins at 0. The strategy counts the bytes that were sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from app_case import AppCase
from digits_task import EVERYBODY
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from frameworks.in_torch import ROUNDS, answer, fit, right, seeded
from frameworks.words import EXAMPLES, VOCABULARY, my_sentences, sentences
from peft import (
    LoraConfig,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForSequenceClassification

app = ClientApp()


def adapted() -> Any:
    """A tiny Llama, the same on every client, with fresh adapters."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_labels=2,
        pad_token_id=0,
    )
    adapters = LoraConfig(
        task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules="all-linear"
    )
    return get_peft_model(LlamaForSequenceClassification(config), adapters)


def with_adapters(arrays: ArrayRecord) -> Any:
    model = adapted()
    set_peft_model_state_dict(model, arrays.to_torch_state_dict())
    return model


def loss_of(model: nn.Module, words: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(input_ids=words).logits, labels)


@app.train()
def train(message: Message, context: Context) -> Message:
    with seeded(message, context):
        model = with_adapters(message.content.array_records["arrays"])
        loss = fit(model, my_sentences(context), loss_of, rate=0.005)
        return answer(message, get_peft_model_state_dict(model), loss, EXAMPLES)


class CountsBytes(FedAvg):
    """Keeps how many bytes each round has sent to and from the clients."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.sent: list[int] = []

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> Iterable[Message]:
        messages = list(
            super().configure_train(server_round, arrays, config, grid)
        )
        self.sent.append(sum(_bytes(message) for message in messages))
        return messages


def _bytes(message: Message) -> int:
    return sum(
        len(array.data)
        for r in message.content.array_records.values()
        for array in r.values()
    )


@torch.no_grad()
def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    words, labels = sentences(0, 500).tensors
    logits = with_adapters(arrays).eval()(input_ids=words).logits
    return MetricRecord({"accuracy": right(logits, labels)})


CASE = AppCase(
    strategy=lambda folder: CountsBytes(**EVERYBODY),
    client_app=app,
    initial=lambda: ArrayRecord(get_peft_model_state_dict(adapted())),
    rounds=ROUNDS,
    arguments=lambda folder: {"evaluate_fn": central},
    recorded=lambda strategy: strategy.sent,
)
