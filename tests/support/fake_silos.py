"""Silos that answer by the contract of `RecordAudit`, without measuring anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from fl_epe.auditing import SEEN_OF_SILOS, FederationFacts, SiloAnswer, SiloLine

RECORDS = "fl_epe.records"
NAMES = ("north", "south", "west")
DELTA = 1e-5

Reply = Callable[[int, int, SiloAnswer], "str | None"]


def lines(epsilon: float) -> tuple[SiloLine, ...]:
    """A line for each adversary; ``epsilon`` for the server, and less for the others."""
    return tuple(
        SiloLine(
            who,
            epsilon / n,
            0.8 * epsilon / n,
            1.2 * epsilon / n,
            theory=10.0,
            linear_limit=5.0,
        )
        for n, who in enumerate(SEEN_OF_SILOS, 1)
    )


def answer(
    silo: str, rounds: int = 3, epsilon: float = 2.0, **more: Any
) -> SiloAnswer:
    return SiloAnswer(
        **{
            "silo": silo,
            "unit": "record",
            "delta": DELTA,
            "confidence": 0.95,
            "rounds": rounds,
            "canaries": 200,
            "lines": lines(epsilon),
            **more,
        }
    )


def as_json(partition: int, server_round: int, found: SiloAnswer) -> str:
    return found.to_json()


@dataclasses.dataclass
class FakeSilos:
    """What silos do, and what they were told.

    Attributes:
        reply: the text in a reply, from the partition, the round and the sound answer; ``None`` for
            a reply without the audit's record.
        examples: of each partition.
        fails: whether a partition raises in a round.
        updates: whether replies are updates in place of models.
        handles: whether the app handles the closing query.
        facts: that each partition was told.
        models: that each partition was sent with them.
    """

    reply: Reply = as_json
    examples: tuple[int, ...] = (500, 2000, 8000)
    fails: Callable[[int, int], bool] = lambda partition, server_round: False
    updates: bool = False
    handles: bool = True
    norms: tuple[float, ...] = (1.0, 1.0, 1.0)
    facts: dict[int, FederationFacts] = dataclasses.field(default_factory=dict)
    models: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    trained: dict[int, int] = dataclasses.field(default_factory=dict)

    def _answer(
        self, partition: int, server_round: int, **more: Any
    ) -> str | None:
        rounds = self.trained.get(partition, 0)
        found = answer(NAMES[partition], rounds, 2.0 + partition, **more)
        return self.reply(partition, server_round, found)

    def app(self, *, with_audit: bool = True) -> ClientApp:
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            partition = int(context.node_config["partition-id"])
            config = message.content.config_records["config"]
            server_round = int(config["server-round"])  # type: ignore[arg-type]
            if self.fails(partition, server_round):
                raise RuntimeError("the silo's machine is gone")
            self.trained[partition] = self.trained.get(partition, 0) + 1
            arrays = trained(
                message.content.array_records["arrays"],
                partition,
                server_round,
                norm=self.norms[partition],
                update=self.updates,
            )
            content = RecordDict(
                {
                    "arrays": arrays,
                    "metrics": MetricRecord(
                        {"num-examples": self.examples[partition]}
                    ),
                }
            )
            text = self._answer(partition, server_round) if with_audit else None
            if text is not None:
                content[RECORDS] = ConfigRecord({"answer": text})
            return Message(content, reply_to=message)

        if self.handles:

            @app.query("records")
            def answer_records(message: Message, context: Context) -> Message:
                partition = int(context.node_config["partition-id"])
                text = str(message.content.config_records[RECORDS]["facts"])
                self.facts[partition] = FederationFacts.from_json(text)
                model = message.content.array_records["arrays"]
                self.models[partition] = next(iter(model.values())).numpy()
                if self.fails(partition, 0):
                    raise RuntimeError("the silo's machine is gone")
                last = self._answer(
                    partition, 0, notes=("it saw the last model",)
                )
                record = ConfigRecord({"answer": last or ""})
                return Message(RecordDict({RECORDS: record}), reply_to=message)

        return app


def trained(
    sent: ArrayRecord,
    partition: int,
    server_round: int,
    *,
    norm: float,
    update: bool,
) -> ArrayRecord:
    """The model after a random step of this norm, or that step alone."""
    rng = np.random.default_rng((7, partition, server_round))
    arrays: Mapping[str, np.ndarray] = {
        name: array.numpy() for name, array in sent.items()
    }
    steps = {
        name: rng.standard_normal(value.shape) for name, value in arrays.items()
    }
    length = np.sqrt(sum(np.sum(step**2) for step in steps.values()))
    scaled = {name: norm / length * step for name, step in steps.items()}
    found = {
        name: step if update else arrays[name] + step
        for name, step in scaled.items()
    }
    return ArrayRecord(
        {name: Array(value.astype("f4")) for name, value in found.items()}
    )
