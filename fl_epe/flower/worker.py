"""The worker `ClientApp`: one Flower node that stands for one client or for thousands."""

from __future__ import annotations

import functools
import threading

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_epe.canary import CanarySet
from fl_epe.flower.protocol import Order, PartialSum, pack
from fl_epe.mechanism import clip
from fl_epe.tasks import Task
from fl_epe.training import LocalTraining, Trainer

# A canary's update is far above any clip norm, so that the clipping under audit scales it down.
_CANARY_FACTOR = 1e3

_thread = threading.local()


def worker_app(task: Task) -> ClientApp:
    """The `ClientApp` that trains ``task``'s clients and plays the canaries.

    The node with ``partition-id`` p of ``num-partitions`` N holds the clients p, p + N, p + 2N, …
    It answers a query with their numbers, and a train message (`Order`) with a `PartialSum`.
    Model and data stay in memory between messages.
    """
    app = ClientApp()
    app.query()(functools.partial(_holds, task))
    app.train()(functools.partial(_train, task))
    return app


def held_clients(num_clients: int, context: Context) -> range:
    """The clients of a node, from its ``partition-id`` and ``num-partitions``.

    Raises:
        ValueError: if the node's configuration lacks them or they do not fit.
    """
    config = context.node_config
    try:
        partition, partitions = int(config["partition-id"]), int(config["num-partitions"])
    except KeyError as error:
        raise ValueError(f"Expected {error} in the node's configuration.") from error
    if not 0 <= partition < partitions:
        raise ValueError(f"Expected partition-id={partition} in [0, num-partitions={partitions}).")
    return range(partition, num_clients, partitions)


def _holds(task: Task, message: Message, context: Context) -> Message:
    clients = np.array(held_clients(task.num_clients, context), np.int64)
    return Message(RecordDict({"held": pack(clients=clients)}), reply_to=message)


def _train(task: Task, message: Message, context: Context) -> Message:
    order = Order.decode(message.content)
    return Message(execute(task, order).encode(), reply_to=message)


def execute(task: Task, order: Order) -> PartialSum:
    """Train the order's clients one after another, clip each update and add it up."""
    result = PartialSum(np.zeros(len(order.theta)))
    if order.separate:
        result.canaries_sum = np.zeros(len(order.theta))
    for client in order.clients:
        _add_client(result, task, order, client)
    canaries = CanarySet(len(order.theta), order.canary_count, order.canary_seed)
    total = result.clients_sum if result.canaries_sum is None else result.canaries_sum
    for canary in order.canaries:
        huge = canaries.vector(canary) * np.float32(_CANARY_FACTOR * order.clip_norm)
        update, _ = clip(huge, order.clip_norm)
        if update is None:
            result.faults.append(f"canary {canary}: its update was not finite")
            continue
        total += update
        result.canaries += 1
    return result


def _add_client(result: PartialSum, task: Task, order: Order, client: int) -> None:
    local = LocalTraining(order.local_learning_rate, order.local_epochs, order.local_batch_size)
    seed, t = order.local_seed, order.round_number
    try:
        trained = _trainer(task).train(order.theta, client, local, seed=seed, round_number=t)
    except (ValueError, RuntimeError, OSError) as error:
        result.faults.append(f"client {client}: {type(error).__name__}: {error}")
        return
    update, unclipped = clip(trained.delta, order.clip_norm)
    if update is None:
        result.faults.append(f"client {client}: its update was not finite")
        return
    result.clients_sum += update
    result.clients += 1
    result.unclipped += unclipped
    result.examples += trained.examples
    result.loss_sum += trained.loss_sum
    result.correct += trained.correct


def _trainer(task: Task) -> Trainer:
    """This thread's trainer for the task; a trainer serves one thread at a time."""
    trainers: dict[Task, Trainer] = _thread.__dict__.setdefault("trainers", {})
    if task not in trainers:
        trainers[task] = Trainer(task)
    return trainers[task]
