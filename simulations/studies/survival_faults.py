"""Two hundred random faults of every kind in one run of 60 rounds: it ends and counts each one.

    python simulations/studies/survival_faults.py            # about two minutes
    python simulations/studies/survival_faults.py --quick    # 10 rounds, 30 faults

Six nodes train the small task of `survival.py`. In every round some of these happen, at random:

- a client's data raises an error, or has NaN in it;
- a node raises, hangs for ever, answers after its round is over, is dead for a round, has its
  answer dropped by the network, or is reported as unavailable as a SuperLink does;
- an answer has NaN in it, has another shape, is longer than clipping allows, cannot be decoded, or
  comes twice;
- the disk is full when a checkpoint is written.

Checked afterwards:

1. The run ends after all rounds and its record can be read.
2. The report counts exactly the faults that were injected, by their kinds. (A late answer is two:
   none in time, and one of another round. A dead node is one, "node left".)
3. The released mean of every round is made again from the answers that were accepted, the noise of
   the round and the *expected* cohort: their norms agree to 1e-12. So what is lost counts as zero
   and the denominator is fixed, whatever happens.
4. The clients and canaries in the record are those whose updates were accepted.
5. The analytical ε is no larger than without faults: clients whose updates were lost took part
   less often.

Expected (`--seed 2026`, 2026-11-22, two cores shared with other work)::

    200 faults in 60 rounds, seed=2026:
      wrong shape      21
      network drops    19
      NaN data         19
      NaN              17
      raise            16
      too long         16
      unavailable      15
      twice            15
      dead             14
      node raises      13
      garbage          12
      full disk        12
      hang              7
      late              4
    in the report, 204 by kind:
      no answer in time              45 of 45
      client failed                  16 of 16
      answer refused                 28 of 28
      node answered with an error    13 of 13
      answered twice                 15 of 15
      answer of another round         4 of 4
      client's update not finite     19 of 19
      answer not finite              17 of 17
      answer of a wrong shape        21 of 21
      checkpoint not written         12 of 12
      node left                      14 of 14
    lost updates: 573; 157 s
    all as it should be
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import json
import logging
import os
import queue
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MessageType
from flwr.clientapp import ClientApp

from fl_epe import AuditRecord
from fl_epe.auditing import FaultKind, answers
from fl_epe.config import RunConfig
from fl_epe.mechanism import gaussian_noise, norm
from fl_epe.reporting import summarize, write_report
from fl_epe.seeding import Seeds, noise_generator
from fl_epe.simulation import (
    InProcessGrid,
    Job,
    Progress,
    run_on_grid,
    simulate,
    worker_app,
)
from fl_epe.simulation.messages import PartialAggregate, TrainInstruction
from fl_epe.tasks import ClientData
from simulations.studies.survival import Blobs

NODES, TIMEOUT = 6, 20.0
"""Nodes, and seconds to wait for the answers of a round: many times what one takes."""

CONFIG = RunConfig(
    clients=60, rounds=60, clients_per_round=24, num_canaries=60, unobserved=60, delta=1e-2,
    noise_multiplier=0.3, local_epochs=1, canary_participations=1,
)  # fmt: skip
SEEDS = Seeds.derive(11)

ON_CLIENTS = {
    "raise": FaultKind.CLIENT_FAILED,
    "NaN data": FaultKind.CLIENT_NOT_FINITE,
}
ON_NODES = {
    "node raises": FaultKind.NODE_FAILED,
    "network drops": FaultKind.NO_ANSWER,
    "unavailable": FaultKind.NO_ANSWER,
    "NaN": FaultKind.ANSWER_NOT_FINITE,
    "wrong shape": FaultKind.ANSWER_OF_WRONG_SHAPE,
    "too long": FaultKind.ANSWER_REFUSED,
    "garbage": FaultKind.ANSWER_REFUSED,
    "twice": FaultKind.ANSWERED_TWICE,
    "dead": FaultKind.NODE_LEFT,
}
WAITING = {"hang": FaultKind.NO_ANSWER, "late": FaultKind.NO_ANSWER}
"""Faults for which the server waits until the time is up; they happen in a few rounds, together."""


class Plan:
    """What happens in the round under way; the script's parts look at it from many threads.

    Args:
        rng: draws the faults.
        rounds: of the run.
        total: number of faults.
    """

    def __init__(
        self, rng: np.random.Generator, rounds: int, total: int
    ) -> None:
        self.rng = rng
        self.round = 0
        counts = rng.multinomial(total, np.full(rounds, 1 / rounds))
        while counts.max() > NODES - 1:  # a fault has a node of its own
            counts[counts.argmax()] -= 1
            counts[counts.argmin()] += 1
        self.counts = [int(count) for count in counts]
        self.waits = set(
            rng.choice(rounds - 1, max(1, rounds // 12), replace=False) + 1
        )
        self.nodes: dict[int, str] = {}  # fault of the round, by node
        self.clients: dict[int, str] = {}  # fault of the round, by client
        self.dead: set[int] = set()
        self.full_disk = False
        self.over = threading.Event()  # of the round
        self.injected: Counter[FaultKind] = Counter()
        self.by_name: Counter[str] = Counter()
        self.accepted: list[
            dict[int, tuple[TrainInstruction, PartialAggregate]]
        ] = []  # by round and node

    def draw(self) -> None:
        """Decide what happens in the next round, but for who it happens to."""
        self.round += 1
        died, self.dead, self.drawn = self.dead, set(), []
        self.nodes, self.clients, self.full_disk = {}, {}, False
        self.over = threading.Event()
        self.free = [int(node) for node in self.rng.permutation(NODES) + 1]
        kinds = [*ON_CLIENTS, *ON_NODES, "full disk"]
        for kind in map(
            str, self.rng.choice(kinds, self.counts[self.round - 1])
        ):
            if kind == "full disk" and not self.full_disk:
                self.full_disk = True
                self.count(kind, FaultKind.CHECKPOINT_NOT_WRITTEN)
            elif (
                kind == "dead" and self.round > 1 and self.free[-1] not in died
            ):
                self.dead.add(self.free.pop())
                self.count(kind, ON_NODES[kind])
            elif kind in (
                "dead",
                "full disk",
            ):  # before round 1 all nodes are waited for
                self.drawn.append("twice")
            elif self.round in self.waits and kind in ON_NODES:
                self.drawn.append(str(self.rng.choice(list(WAITING))))
            else:
                self.drawn.append(kind)

    def meet(self, orders: dict[int, TrainInstruction]) -> None:
        """Decide who it happens to, when the orders of the round are known."""
        for kind, node in zip(self.drawn, self.free, strict=False):
            if kind in ON_CLIENTS:
                client = int(self.rng.choice(orders[node].clients))
                self.clients[client] = kind
                self.count(kind, ON_CLIENTS[kind])
            else:
                self.nodes[node] = kind
                self.count(kind, {**ON_NODES, **WAITING}[kind])
                if kind == "late":
                    self.injected[FaultKind.ANSWER_OF_ANOTHER_ROUND] += 1

    def count(self, name: str, kind: FaultKind) -> None:
        """Count a fault that happens."""
        self.injected[kind] += 1
        self.by_name[name] += 1


@dataclasses.dataclass(frozen=True)
class Faulty(Blobs):
    """Some clients fail in some rounds, as the plan says."""

    name: ClassVar[str] = "faulty"
    plan: ClassVar[Plan]

    def client(self, client_id: int) -> ClientData:
        """See `Task`."""
        data, fault = (
            super().client(client_id),
            self.plan.clients.get(client_id),
        )
        if fault == "raise":
            raise OSError(f"disk of client {client_id} is gone")
        if fault == "NaN data":
            data.inputs[0, 0] = torch.nan
        return data


class FaultyGrid(InProcessGrid):
    """Nodes that raise, hang and die, and a network that drops, spoils and repeats answers."""

    def __init__(self, task: Faulty, plan: Plan) -> None:
        good, app = worker_app(task, everyone=True), ClientApp()
        self._plan = plan
        self._late: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._expected_late = 0

        @app.query()
        def query(message: Message, context: Context) -> Message:
            return good(message, context)

        @app.train()
        def train(message: Message, context: Context) -> Message:
            fault, over = plan.nodes.get(context.node_id), plan.over
            if fault == "node raises":
                raise RuntimeError("out of memory")
            if fault == "hang":
                threading.Event().wait()
            if fault == "late":
                over.wait()
                self._late.put(good(message, context))
            return good(message, context)

        super().__init__(app, NODES)

    def get_node_ids(self) -> Iterable[int]:
        """Those that are not dead."""
        return [
            node
            for node in super().get_node_ids()
            if node not in self._plan.dead
        ]

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        **newer: Any,
    ) -> Iterable[Message]:
        """What comes back of a round, spoiled as the plan says."""
        messages = list(messages)
        if messages[0].metadata.message_type == MessageType.QUERY:
            return super().send_and_receive(messages, timeout=timeout, **newer)
        plan = self._plan
        requests = {
            message.metadata.dst_node_id: message for message in messages
        }
        orders = {
            node: TrainInstruction.decode(message.content)
            for node, message in requests.items()
        }
        plan.meet(orders)
        arrived = [
            self._late.get(timeout=TIMEOUT) for _ in range(self._expected_late)
        ]
        self._expected_late = list(plan.nodes.values()).count("late")
        plan.accepted.append({})
        for reply in super().send_and_receive(
            messages, timeout=timeout, **newer
        ):
            node = reply.metadata.src_node_id
            fault = plan.nodes.get(node)
            if fault in (None, "twice"):
                plan.accepted[-1][node] = (
                    orders[node],
                    PartialAggregate.decode(reply.content),
                )
            arrived += _spoiled(reply, requests[node], fault)
        plan.over.set()
        return arrived


def _spoiled(
    reply: Message, message: Message, fault: str | None
) -> list[Message]:
    """What arrives of an answer."""
    if fault in (None, "node raises"):
        return [reply]
    if fault == "twice":
        return [reply, reply]
    if fault == "network drops":
        return []
    if fault == "unavailable":
        return [Message(Error(5, "the node is unavailable"), reply_to=message)]
    part = PartialAggregate.decode(reply.content)
    part.total = {
        "NaN": np.full_like(part.total, np.nan),
        "wrong shape": np.zeros(3),
        "too long": part.total * 1e6,
        "garbage": part.total,
    }[str(fault)]
    reply.content = part.encode()
    if fault == "garbage":
        shape = part.total.shape
        spoiled = Array("float64", shape, "numpy.ndarray", b"no array")
        reply.content["sums"] = ArrayRecord({"total": spoiled})
    return [reply]


@contextlib.contextmanager
def full_disk(plan: Plan) -> Iterator[None]:
    """While it lasts, the disk has no room in the rounds that the plan says."""
    fsync = os.fsync

    def fails(descriptor: int) -> None:
        if plan.full_disk:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with mock.patch("os.fsync", fails):
        yield


def run(
    rounds: int, faults: int, seed: int, folder: Path
) -> tuple[Plan, AuditRecord]:
    """The run with its faults; its record is saved and read again."""
    plan = Faulty.plan = Plan(np.random.default_rng(seed), rounds, faults)
    task = Faulty(clients=CONFIG.clients, inputs=400)
    job = Job(task, dataclasses.replace(CONFIG, rounds=rounds), SEEDS)

    def draw(progress: Progress) -> None:
        if progress.round < rounds:
            plan.draw()

    with FaultyGrid(task, plan) as grid, full_disk(plan):
        record = run_on_grid(
            grid,
            job,
            checkpoint=folder / "checkpoint.npz",
            checkpoint_every=1,
            round_timeout=TIMEOUT,
            on_round=draw,
        )
    record.save(folder / "record.npz")
    return plan, AuditRecord.load(folder / "record.npz")


def means_again(plan: Plan, config: RunConfig, dim: int) -> np.ndarray:
    """The norm of every round's mean, from what was accepted, the noise and the expected cohort."""
    norms = []
    for t, accepted in enumerate(plan.accepted):
        total = sum(
            (part.total for _, part in accepted.values()), np.zeros(dim)
        )
        (clip_norm,) = {order.clip_norm for order, _ in accepted.values()}
        scale = config.sum_noise_multiplier() * clip_norm
        noise = gaussian_noise(noise_generator(SEEDS.noise, t, 0), dim, scale)
        norms.append(norm((total + noise) / config.cohort_size))
    return np.array(norms)


def check(plan: Plan, record: AuditRecord, folder: Path) -> list[str]:
    """What is not as it should be; empty if all is."""
    wrong, rounds = [], len(plan.counts)
    config = dataclasses.replace(CONFIG, rounds=rounds)
    if record.rounds != rounds:
        wrong.append(f"{record.rounds} of {rounds} rounds")
    write_report(summarize(record), folder)
    counts = json.loads((folder / "report.json").read_text())["details"][
        "fault_counts"
    ]
    if counts != {
        str(kind): count for kind, count in plan.injected.items() if count
    }:
        wrong.append(f"counted {counts}, injected {dict(plan.injected)}")
    error = np.abs(
        means_again(plan, config, record.dim) / record.norms.means - 1
    ).max()
    if not error < 1e-12:
        wrong.append(f"means made again differ by {error:.1e}")
    for t, accepted in enumerate(plan.accepted):
        canaries = sorted(
            i for order, _ in accepted.values() for i in order.canary_ids
        )
        if np.flatnonzero(record.presence[t]).tolist() != canaries:
            wrong.append(f"round {t + 1}: other canaries")
        trained = sum(part.clients for _, part in accepted.values())
        if record.metrics["cohort"][t] != trained:
            wrong.append(f"round {t + 1}: another number of clients")
    task = Blobs(clients=CONFIG.clients, inputs=400)
    without_faults = _theory(simulate(Job(task, config, SEEDS), workers=1))
    with_faults = _theory(record)
    if (
        with_faults is None
        or without_faults is None
        or not 0 < with_faults <= without_faults
    ):
        wrong.append(
            f"analytical ε {with_faults}, and {without_faults} without faults"
        )
    return wrong


def _theory(record: AuditRecord) -> float | None:
    return answers(record)[1].analytical.epsilon


def main(rounds: int, faults: int, seed: int) -> bool:
    """Print what happened; returns whether all is as it should be."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        plan, record = run(rounds, faults, seed, Path(folder))
        wrong = check(plan, record, Path(folder))
    print(f"{sum(plan.by_name.values())} faults in {rounds} rounds, {seed=}:")
    for name, count in plan.by_name.most_common():
        print(f"  {name:14} {count:4}")
    counts = record.provenance.fault_counts
    print(f"in the report, {sum(counts.values())} by kind:")
    for kind in plan.injected:
        print(f"  {kind:28} {counts.get(kind, 0):4} of {plan.injected[kind]}")
    absent = 0 if record.clients.absent is None else record.clients.absent.sum()
    print(f"lost updates: {absent}; {time.monotonic() - began:.0f} s")
    print("\n".join(wrong) or "all as it should be")
    return not wrong


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="10 rounds and 30 faults"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    given = parser.parse_args()
    sizes = (10, 30) if given.quick else (60, 200)
    raise SystemExit(0 if main(*sizes, given.seed) else 1)
