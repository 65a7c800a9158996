"""The worker `ClientApp`: one Flower node that stands for one client or for thousands."""

import functools
import threading
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_epe.auditing import Fault, FaultKind
from fl_epe.canaries import CanarySet
from fl_epe.mechanism import ClippedSum
from fl_epe.messages import pack
from fl_epe.simulation.messages import PartialAggregate, TrainInstruction
from fl_epe.tasks import Task
from fl_epe.training import CohortTrainer, Execution, LocalTraining

# A canary's update is far above any clip norm, so that the clipping under audit scales it down.
_CANARY_FACTOR = 1e3

_thread = threading.local()


def worker_app(task: Task, *, everyone: bool = False) -> ClientApp:
    """The `ClientApp` that trains ``task``'s clients and plays the canaries.

    The node with ``partition-id`` p of ``num-partitions`` N holds the clients p, p + N, p + 2N, …
    It answers a query with their numbers, and a train message (`TrainInstruction`) with a
    `PartialAggregate`. Model and data stay in memory between messages. The device,
    and how many clients train at once, is what the environment says: `Execution.from_environment`.

    Args:
        task: whose clients.
        everyone: every node holds all clients, as in a simulation on one machine; the server then
            shares them out anew in each round, by their sizes.
    """
    app = ClientApp()
    app.query()(functools.partial(_holds, task, everyone))
    app.train()(functools.partial(_train, task))
    return app


def held_clients(num_clients: int, context: Context) -> range:
    """The clients of a node, from its ``partition-id`` and ``num-partitions``.

    Raises:
        ValueError: if the node's configuration lacks them or they do not fit.
    """
    config = context.node_config
    try:
        partition, partitions = (
            int(config["partition-id"]),
            int(config["num-partitions"]),
        )
    except KeyError as error:
        raise ValueError(f"Expected {error} in the node's configuration.") from error
    if not 0 <= partition < partitions:
        raise ValueError(
            f"Expected partition-id={partition} in [0, num-partitions={partitions})."
        )
    return range(partition, num_clients, partitions)


def _holds(task: Task, everyone: bool, message: Message, context: Context) -> Message:
    held = (
        range(task.num_clients) if everyone else held_clients(task.num_clients, context)
    )
    return Message(
        RecordDict({"held": pack(clients=np.array(held, np.int64))}), reply_to=message
    )


def _train(task: Task, message: Message, context: Context) -> Message:
    order = TrainInstruction.decode(message.content)
    return Message(execute(task, order).encode(), reply_to=message)


def execute(
    task: Task, order: TrainInstruction, execution: Execution | None = None
) -> PartialAggregate:
    """Train the order's clients, clip each update and add it up; likewise for the canaries."""
    total = ClippedSum(len(order.theta), order.clip_norm)
    local = LocalTraining(
        order.local_learning_rate, order.local_epochs, order.local_batch_size
    )
    counts = _trainer(task, execution).train(
        order.theta,
        order.clients,
        local,
        total,
        seed=order.local_seed,
        round_number=order.round_number,
    )
    clients_total = total.total() if order.separate else None
    lost = _add_canaries(total, order)
    counts.faults += lost
    return PartialAggregate(
        total=total.finish(),
        clients_total=clients_total,
        canaries=len(order.canary_ids) - len(lost),
        **vars(counts),
    )


def _add_canaries(total: ClippedSum, order: TrainInstruction) -> list[Fault]:
    """Add the order's canaries; returns a fault for each that is lost."""
    canaries = CanarySet(
        len(order.theta), order.num_canaries, order.canary_seed, order.canary_kind
    )
    factor = np.float32(_CANARY_FACTOR * order.clip_norm)
    return [
        Fault(
            FaultKind.CANARY_NOT_FINITE, f"canary {canary}: its update was not finite"
        )
        for canary in order.canary_ids
        if total.add(canaries.vector(canary) * factor) is None
    ]


def _trainer(task: Task, execution: Execution | None) -> CohortTrainer:
    """This thread's trainer for the task; a trainer serves one thread at a time."""
    trainers: dict[Any, CohortTrainer] = _thread.__dict__.setdefault("trainers", {})
    if (task, execution) not in trainers:
        trainers[task, execution] = CohortTrainer(task, execution)
    return trainers[task, execution]
