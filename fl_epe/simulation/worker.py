"""The worker `ClientApp`: a Flower node that trains one client or thousands."""

import threading

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_epe.auditing import Fault, FaultKind
from fl_epe.canaries import CanarySet
from fl_epe.mechanism import ClippedSum
from fl_epe.messages import pack
from fl_epe.simulation.messages import PartialAggregate, TrainInstruction
from fl_epe.tasks import Task
from fl_epe.training import CohortTrainer, LocalTraining

# The norm of a canary's update, as a multiple of the clip norm: it is clipped like a client's.
_CANARY_FACTOR = 1e3


class _Trainers(threading.local):
    """The trainers of a thread, as they are not thread-safe."""

    def __init__(self) -> None:
        self.by_task: dict[Task, CohortTrainer] = {}


_trainers = _Trainers()


def worker_app(task: Task, *, everyone: bool = False) -> ClientApp:
    """The `ClientApp` that trains ``task``'s clients and adds the canaries.

    The node with ``partition-id`` p of ``num-partitions`` N holds the clients p, p + N, p + 2N,
    … It answers a query with their ids, and a train message (`TrainInstruction`) with a
    `PartialAggregate`. Model and data stay in memory between messages. The environment sets the
    device and the number of clients that train at once, see `Execution.from_environment`.

    Args:
        task: the task whose clients are trained.
        everyone: whether every node holds all clients, as in a simulation on one machine; the
            server then partitions them by their sizes in each round.
    """
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        clients = range(task.num_clients)
        if not everyone:
            clients = held_clients(task.num_clients, context)
        client_ids = pack(clients=np.array(clients, np.int64))
        return Message(RecordDict({"held": client_ids}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        instruction = TrainInstruction.decode(message.content)
        return Message(execute(task, instruction).encode(), reply_to=message)

    return app


def held_clients(num_clients: int, context: Context) -> range:
    """The clients of a node, from its ``partition-id`` and ``num-partitions``.

    Raises:
        ValueError: if the node's configuration lacks one of them, or they are out of range.
    """
    config = context.node_config
    try:
        partition = int(config["partition-id"])
        partitions = int(config["num-partitions"])
    except KeyError as error:
        raise ValueError(
            f"Expected {error} in the node's configuration."
        ) from error
    if not 0 <= partition < partitions:
        raise ValueError(
            f"Expected partition-id={partition} in [0, num-partitions={partitions})."
        )
    return range(partition, num_clients, partitions)


def execute(task: Task, instruction: TrainInstruction) -> PartialAggregate:
    """Train the clients, and add up their clipped updates and those of the canaries."""
    if task not in _trainers.by_task:
        _trainers.by_task[task] = CohortTrainer(task)
    dim = len(instruction.theta)
    total = ClippedSum(dim, instruction.clip_norm)
    local = LocalTraining(
        instruction.local_learning_rate,
        instruction.local_epochs,
        instruction.local_batch_size,
    )
    counts = _trainers.by_task[task].train(
        instruction.theta,
        instruction.clients,
        local,
        total,
        seed=instruction.local_seed,
        round_number=instruction.round_number,
    )
    clients_total = total.total() if instruction.separate else None
    canaries = CanarySet(
        dim,
        instruction.num_canaries,
        instruction.canary_seed,
        instruction.canary_kind,
    )
    factor = np.float32(_CANARY_FACTOR * instruction.clip_norm)
    added = 0
    for canary in instruction.canary_ids:
        if total.add(canaries.vector(canary) * factor) is None:
            text = f"canary {canary}: its update was not finite"
            counts.faults.append(Fault(FaultKind.CANARY_NOT_FINITE, text))
        else:
            added += 1
    return PartialAggregate(
        total=total.finish(),
        clients_total=clients_total,
        canaries=added,
        **vars(counts),
    )
