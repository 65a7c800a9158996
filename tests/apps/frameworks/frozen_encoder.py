"""Flower's speech example: Whisper's encoder is frozen, and only a head is sent and trained.

Clients with few recordings send the head back untrained and say so, and the strategy drops them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from app_case import AppCase
from digits_task import EVERYBODY, answered, only_metrics
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from frameworks.in_torch import (
    ROUNDS,
    answer,
    cross_entropy,
    fit,
    fresh,
    loaded,
    received,
    right,
    seeded,
)
from torch import nn
from torch.utils.data import TensorDataset
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

WORDS, BANDS, FRAMES, WIDTH, ENOUGH = 6, 16, 40, 32, 20
app = ClientApp()


@functools.cache
def encoder() -> Any:
    """The same random encoder on every client; nobody sends it."""
    torch.manual_seed(7)
    config = WhisperConfig(
        num_mel_bins=BANDS,
        d_model=WIDTH,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=64,
        max_source_positions=FRAMES // 2,
    )
    return WhisperEncoder(config).eval().requires_grad_(False)


def head() -> nn.Module:
    return nn.Linear(WIDTH, WORDS)


def recordings(seed: int, count: int) -> TensorDataset:
    """What the encoder makes of synthetic spectra beyond silence: each word is a band, in noise."""
    rng = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (count,), generator=rng)
    spectra = 0.5 * torch.randn(count, BANDS, FRAMES, generator=rng)
    spectra[torch.arange(count), 2 * words] += 2
    with torch.no_grad():
        silence, heard = (
            encoder()(x).last_hidden_state.mean(1)
            for x in (torch.zeros(1, BANDS, FRAMES), spectra)
        )
    return TensorDataset(100 * (heard - silence), words)


@app.train()
def train(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    with seeded(message, context):
        model = received(head, message)
        data = recordings(1 + number, 60 if number % 4 else 10)
        trained, loss = len(data) >= ENOUGH, 0.0
        if trained:
            loss = fit(model, data, cross_entropy, rate=0.02)
        return answer(
            message, model.state_dict(), loss, len(data), trained=int(trained)
        )


class OnlyTrained(FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        kept = [
            reply
            for reply in answered(replies)
            if only_metrics(reply)["trained"]
        ]
        return super().aggregate_train(server_round, kept)


@torch.no_grad()
def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    heard, words = recordings(0, 600).tensors
    return MetricRecord({"accuracy": right(loaded(head, arrays)(heard), words)})


CASE = AppCase(
    strategy=lambda folder: OnlyTrained(**EVERYBODY),
    client_app=app,
    initial=lambda: fresh(head),
    rounds=ROUNDS,
    arguments=lambda folder: {"evaluate_fn": central},
)
