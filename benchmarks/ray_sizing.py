"""How long does a round take on many Ray workers, and what does the audit add?

    python benchmarks/ray_sizing.py                         # some minutes on two cores
    python benchmarks/ray_sizing.py --client-seconds 0.004 --bandwidth 25   # your client, Gbit/s

A round of `DPFedAvg` on W Ray workers, C clients, K canaries and d parameters takes::

{formula}

Every part is timed by itself, beside the rounds and in turn with them: a worker's order with and
without clients and canaries in one process; messages of the same size that nobody works on; the
server's round on synthetic answers. No part is fitted to the rounds that it has to predict.
Rounds are then timed on one and two workers, and more workers are computed. The network is assumed:
``--bandwidth`` of the server's link, which all messages share; so is a core or a GPU and a link for
each worker, and a server that has a machine of its own. "no canaries" is ``fl-epe run
--num-canaries 0``, which still scores two canaries that never take part. What the audit adds is
against a round without canaries and without scoring.

The check is by the clock on the wall, the table by processor time of one thread, which other work
on the machine disturbs less.

Two cores, quiet but for this (``--measured 400000:32 100000:128 --turns 3``), 2026-11-28::

    parameters  clients  workers  canaries     measured  predicted    error
       400,522       32        1  with             0.57       0.60      +5%
       400,522       32        1  no canaries      0.46       0.57     +24%
       400,522       32        2  with             0.42       0.39      -7%
       400,522       32        2  no canaries      0.41       0.38      -8%
       100,327      128        1  with             0.73       0.77      +5%
       100,327      128        1  no canaries      0.72       0.75      +4%
       100,327      128        2  with             0.54       0.52      -3%
       100,327      128        2  no canaries      0.52       0.51      -2%

Beside a load of 15 the parts said 14% to 78% too little: a round waits for what else runs.

The computed tables are in docs/guides/deployment.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp

from fl_epe.config import RunConfig
from fl_epe.messages import read_only, share
from fl_epe.seeding import Seeds
from fl_epe.simulation import (
    DPFedAvg,
    InProcessGrid,
    Job,
    run_on_grid,
    worker_app,
)
from fl_epe.simulation.flower_internals import quiet_flower, simulate_with_ray
from fl_epe.simulation.messages import PartialAggregate, TrainInstruction
from fl_epe.simulation.worker import execute
from fl_epe.tasks import ClientData, LossSum, Task
from fl_epe.tasks.losses import cross_entropy

FORMULA = """
    T(W) = wait + ⌈C/W⌉ · client + ⌈K/W⌉ · canary + order          the slowest worker
         + 12 · d · W · (1/local + 1/network)                       bytes: 4 down, 8 up
         + server + W · answer + scores                             what the server does alone
""".strip("\n")
assert __doc__ is not None
__doc__ = __doc__.format(formula=FORMULA)

Clock = Callable[[], float]

_FEATURES, _CLASSES, _BATCH, _BATCHES = 64, 10, 16, 2
_BYTES = 12  # of a parameter: the model in float32 there, a sum in float64 back
_POLL = 0.1  # seconds between looks for answers in a run; half of it is waited on average
_LOOK = 0.002  # the same here
_TINY = 1_000
_SPREAD = 10  # clients in all, over those of a round
_NODES = (1, 2, 4)  # synthetic answers of the server's round


@dataclasses.dataclass(frozen=True)
class Dense(Task):
    """Two hidden layers of one width, on random rows: about ``parameters`` in all."""

    parameters: int
    num_clients: int = 2

    def model(self) -> torch.nn.Module:  # noqa: D102
        both = _FEATURES + _CLASSES + 2
        width = max(
            1, round((math.sqrt(both**2 + 4 * self.parameters) - both) / 2)
        )
        return torch.nn.Sequential(
            torch.nn.Linear(_FEATURES, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, _CLASSES),
        )

    def client(self, client_id: int) -> ClientData:  # noqa: D102
        random = np.random.default_rng((7, client_id))
        rows = random.standard_normal(
            (_BATCHES * _BATCH, _FEATURES), np.float32
        )
        classes = random.integers(0, _CLASSES, len(rows))
        return ClientData(torch.from_numpy(rows), torch.from_numpy(classes))

    def held_out(self) -> ClientData:  # noqa: D102
        return self.client(0)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> LossSum:  # noqa: D102
        return cross_entropy(outputs, targets)


@dataclasses.dataclass(frozen=True)
class Parts:
    """Seconds that the parts of a round take, and bytes a second.

    Attributes:
        wait: until answers are noticed, whatever is in them.
        client: training, clipping and adding up one client.
        canary: making, clipping and adding up one canary.
        order: what a worker does for an order without anybody.
        local: bytes a second that messages take on this machine, both ways together.
        server: noise and step.
        answer: what the server does for each worker's answer.
        scores: scoring the canaries, and ε so far.
    """

    wait: float
    client: float
    canary: float
    order: float
    local: float
    server: float
    answer: float
    scores: float


NOTHING = Parts(_POLL / 2, 0.0, 0.0, 0.0, math.inf, 0.0, 0.0, 0.0)
"""What is known without a measurement: how often a run looks for answers."""


@dataclasses.dataclass(frozen=True)
class Load:
    """Who takes part in a round, and in how large a model."""

    dim: int
    clients: int
    canaries: float


def predicted(
    parts: Parts,
    load: Load,
    workers: int,
    network: float = math.inf,
    scored: bool = True,
) -> tuple[float, float, float]:
    """Seconds of a round: at the slowest worker, of bytes, and of the server.

    Args:
        parts: what was measured.
        load: who takes part.
        workers: how many share the clients and canaries.
        network: bytes a second of the server's link.
        scored: whether the server scores canaries.
    """
    clients, canaries = (
        math.ceil(count / workers) for count in (load.clients, load.canaries)
    )
    working = (
        parts.wait
        + clients * parts.client
        + canaries * parts.canary
        + parts.order
    )
    moving = _BYTES * load.dim * workers * (1 / parts.local + 1 / network)
    serving = parts.server + workers * parts.answer + scored * parts.scores
    return working, moving, serving


def settings(cohort: int, rounds: int, canaries: int | None) -> RunConfig:
    """A run with the defaults, of ten times as many clients as a cohort."""
    return RunConfig(
        clients=_SPREAD * cohort,
        rounds=rounds,
        clients_per_round=cohort,
        num_canaries=canaries,
        local_epochs=1,
        local_batch_size=_BATCH,
    )


def canaries_in_round(cohort: int, rounds: int) -> float:
    """How many canaries take part in a round on average, by default."""
    return float(
        DPFedAvg(settings(cohort, rounds, None), Seeds.derive(1))
        .log.presence.sum(1)
        .mean()
    )


def seconds(call: Callable[[], object], clock: Clock) -> float:
    """Seconds that a call takes, by a clock."""
    began = clock()
    call()
    return clock() - began


def worker_parts(
    task: Dense, clients: int, canaries: int, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """`Parts` of a worker, in this process and on one core."""

    def order(who: int, which: int) -> TrainInstruction:
        return TrainInstruction(
            theta=task.initial(1),
            round_number=1,
            clip_norm=0.5,
            clients=list(range(who)),
            canary_ids=list(range(which)),
            canary_seed=1,
            num_canaries=max(2, canaries),
            canary_kind="rotation",
            local_seed=1,
            local_epochs=1,
            local_batch_size=_BATCH,
            local_learning_rate=0.05,
            separate=False,
        )

    def played(who: int, which: int) -> float:
        told = order(who, which)
        return seconds(lambda: execute(task, told).encode(), clock)

    empty, full, made = played(0, 0), played(clients, 0), played(0, canaries)
    return {
        "order": empty,
        "client": max(0.0, full - empty) / clients,
        "canary": max(0.0, made - empty) / canaries,
    }


def synthetic_answer(message: Message) -> Message:
    """An answer as of a worker, of zeros."""
    told = TrainInstruction.decode(message.content)
    answer = PartialAggregate(
        total=np.zeros(len(told.theta)),
        clients=len(told.clients),
        canaries=len(told.canary_ids),
    )
    return Message(answer.encode(), reply_to=message)


def server_parts(
    task: Dense, cohort: int, rounds: int, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """`Parts` of the server: its rounds on synthetic answers of one, two and four workers."""
    alone: list[float] = []
    scoring: list[float] = []
    for nodes in _NODES:
        strategy = DPFedAvg(settings(cohort, rounds, None), Seeds.derive(1))
        observe = strategy.auditor.observe
        spent: list[float] = []
        object.__setattr__(
            strategy.auditor,
            "observe",
            lambda *given, _own=observe, _spent=spent, **named: _spent.append(
                seconds(lambda: _own(*given, **named), clock)
            ),
        )
        with InProcessGrid(worker_app(task, everyone=True), nodes) as grid:
            whole = list(
                _served(
                    strategy, grid, share(theta=task.initial(1)), rounds, clock
                )
            )
        score = seconds(strategy.metrics_so_far, clock)
        alone.append(float(np.median(np.subtract(whole, spent)[1:])))
        scoring.append(float(np.median(spent[1:])) + score)
    answer, server = np.polyfit(_NODES, alone, 1)
    return {
        "server": max(0.0, float(server)),
        "answer": max(0.0, float(answer)),
        "scores": float(np.median(scoring)),
    }


def _served(
    strategy: DPFedAvg,
    grid: Grid,
    model: ArrayRecord,
    rounds: int,
    clock: Clock,
) -> Iterator[float]:
    """Seconds of the server in each round."""
    for t in range(1, rounds + 1):
        began = clock()
        messages = list(
            strategy.configure_train(t, model, ConfigRecord(), grid)
        )
        between = clock()
        answers = [synthetic_answer(message) for message in messages]
        resumed = clock()
        arrays, _ = strategy.aggregate_train(t, answers)
        yield clock() - resumed + between - began
        assert arrays is not None
        model = arrays


def echoed(grid: Grid, dim: int) -> float:
    """Seconds until every node has answered a model with a sum, and nothing was done in between."""
    content = share(theta=np.zeros(dim, np.float32))
    messages = [
        Message(RecordDict({"model": content}), node, MessageType.EVALUATE)
        for node in grid.get_node_ids()
    ]
    began = time.perf_counter()
    left = set(grid.push_messages(messages))
    while left:
        for answer in grid.pull_messages(left):
            left.discard(answer.metadata.reply_to_message_id)
            read_only(answer.content.array_records["sums"]["total"])
        time.sleep(_LOOK)
    return time.perf_counter() - began


def echo(message: Message, context: Context) -> Message:
    """Answer a model with zeros of a sum's size."""
    theta = read_only(message.content.array_records["model"]["theta"])
    return Message(
        RecordDict({"sums": share(total=np.zeros(len(theta)))}),
        reply_to=message,
    )


def rounds_of(
    grid: Grid, task: Dense, cohort: int, rounds: int, audited: bool
) -> float:
    """Seconds of a round of a run, the median without the first and last."""
    config = settings(cohort, rounds, None if audited else 0)
    ends: list[float] = []
    run_on_grid(
        grid,
        Job(task, config, Seeds.derive(1), rounds),
        on_round=lambda progress: ends.append(time.perf_counter()),
    )
    return float(np.median(np.diff(ends)[1:-1]))


def measured(
    dim: int, cohort: int, workers: int, rounds: int, turns: int
) -> dict[str, float]:
    """Medians over turns: a round on so many workers, with and without canaries, and all parts."""
    task, found = Dense(dim, _SPREAD * cohort), list[dict[str, float]]()
    canaries = max(1, round(canaries_in_round(cohort, rounds)))
    server, client = ServerApp(), worker_app(task, everyone=True)
    client.evaluate()(echo)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for turn in range(turns + 1):  # the first one warms up
            cells = {
                "with": rounds_of(grid, task, cohort, rounds, True),
                "latency": min(echoed(grid, _TINY) for _ in range(3)),
                "moved": float(
                    np.median([echoed(grid, task.dim) for _ in range(3)])
                ),
                **worker_parts(task, cohort, canaries),
                **server_parts(task, cohort, rounds),
                "no canaries": rounds_of(grid, task, cohort, rounds, False),
            }
            if turn:
                found.append(cells)

    ray: dict[str, Any] = {
        "include_dashboard": False,
        "log_to_driver": False,
        "num_cpus": workers,
    }
    backend = {
        "init_args": ray,
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    simulate_with_ray(server, client, workers, backend)
    if not found:
        raise RuntimeError(
            "The Ray simulation ended without a result; see Flower's log above."
        )
    return {
        name: float(np.median([cells[name] for cells in found]))
        for name in found[0]
    }


def parts_of(cells: dict[str, float], dim: int, workers: int) -> Parts:
    """The parts among what was measured."""
    moving = max(cells["moved"] - cells["latency"], 1e-6)
    names = [
        field.name for field in dataclasses.fields(Parts) if field.name in cells
    ]
    return Parts(
        wait=cells["latency"] + _POLL / 2,
        local=_BYTES * dim * workers / moving,
        **{name: cells[name] for name in names},
    )


def show_parts(dim: int, parts: Parts) -> None:
    """Print a row of the parts, in ms."""
    names = ("wait", "client", "canary", "order", "server", "answer", "scores")
    row = "".join(f"{1e3 * getattr(parts, name):9.2f}" for name in names)
    print(f"    {dim:>10,}{row}{parts.local / 1e9:9.2f}", flush=True)


def check(options: argparse.Namespace) -> Parts:
    """Print what was measured on one and two workers beside what the parts say; the last parts."""
    parts = NOTHING
    print("Parts in ms, GB a second through Ray on this machine:")
    print(
        f"    {'parameters':>10}{'wait':>9}{'client':>9}{'canary':>9}{'order':>9}{'server':>9}"
        f"{'answer':>9}{'scores':>9}{'GB/s':>9}"
    )
    rows: list[str] = []
    for text in options.measured:
        size, _, cohort = text.partition(":")
        dim = Dense(int(size)).dim
        for workers in (1, 2):
            cells = measured(
                int(size), int(cohort), workers, options.rounds, options.turns
            )
            parts = parts_of(cells, dim, workers)
            show_parts(dim, parts)
            canaries = canaries_in_round(int(cohort), options.rounds)
            for name, count in (("with", canaries), ("no canaries", 0.0)):
                expected = sum(
                    predicted(parts, Load(dim, int(cohort), count), workers)
                )
                rows.append(
                    f"    {dim:>10,}{cohort:>9}{workers:>9}  {name:<12}{cells[name]:9.2f}"
                    f"{expected:11.2f}{expected / cells[name] - 1:+9.0%}"
                )
    print("\nRounds in seconds, measured and predicted from the parts:")
    print(
        f"    {'parameters':>10}{'clients':>9}{'workers':>9}  {'canaries':<12}{'measured':>9}"
        f"{'predicted':>11}{'error':>9}"
    )
    print("\n".join(rows), flush=True)
    return parts


def sized(options: argparse.Namespace, waited: Parts) -> None:
    """Print the computed tables: sizes of models by numbers of workers."""
    found = {
        size: computed_parts(size, options, waited) for size in options.sizes
    }
    print("\nParts by processor time, in ms:")
    for size, parts in found.items():
        show_parts(Dense(size).dim, parts)
    show_rounds(found, options, "on a core like this one")
    if options.client_seconds is not None:
        given = {"client": options.client_seconds}
        told = {
            size: dataclasses.replace(parts, **given)
            for size, parts in found.items()
        }
        show_rounds(
            told, options, f"{1e3 * options.client_seconds:g} ms a client"
        )


def computed_parts(
    size: int, options: argparse.Namespace, waited: Parts
) -> Parts:
    """The parts at a size, by processor time; what is waited for is as measured before."""
    task = Dense(size, _SPREAD * options.cohort)
    clock = time.process_time  # other work on the machine is no part of it
    here = [
        {
            **worker_parts(task, options.few, options.few, clock),
            **server_parts(task, options.cohort, 4, clock),
        }
        for _ in range(options.turns + 1)
    ][1:]
    medians = {
        name: float(np.median([cells[name] for cells in here]))
        for name in here[0]
    }
    return dataclasses.replace(waited, **medians)


def show_rounds(
    found: dict[int, Parts], options: argparse.Namespace, where: str
) -> None:
    """Print a table of computed rounds."""
    cohort, network = options.cohort, options.bandwidth * 1e9 / 8
    canaries = canaries_in_round(cohort, 100)
    print(
        f"\nComputed, {where}: {cohort} clients and {canaries:.0f} canaries a round, server's link "
        f"{options.bandwidth:g} Gbit/s. Seconds, and what the audit adds:"
    )
    print(
        f"    {'parameters':>10}{'workers':>9}{'workers do':>12}{'bytes':>9}{'server':>9}"
        f"{'with':>9}{'without':>9}{'adds':>8}   waits for"
    )
    for size, parts in found.items():
        dim = Dense(size).dim
        for workers in options.workers:
            row = predicted(
                parts, Load(dim, cohort, canaries), workers, network
            )
            plain = sum(
                predicted(
                    parts, Load(dim, cohort, 0), workers, network, scored=False
                )
            )
            slowest = ("workers", "its link", "the server")[int(np.argmax(row))]
            print(
                f"    {dim:>10,}{workers:>9}{row[0]:12.2f}{row[1]:9.2f}{row[2]:9.2f}"
                f"{sum(row):9.2f}{plain:9.2f}{sum(row) / plain - 1:8.1%}   {slowest}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--measured",
        nargs="*",
        default=["100000:512", "4000000:32"],
        help="parameters:clients of a round, on one and two workers; nothing: the table alone",
    )
    parser.add_argument(
        "--rounds", type=int, default=6, help="of each measured run"
    )
    parser.add_argument(
        "--turns", type=int, default=3, help="of which medians are taken"
    )
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[100_000, 1_200_000, 4_000_000, 10_000_000],
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[4, 8, 16, 64],
        help="computed",
    )
    parser.add_argument(
        "--cohort", type=int, default=1_024, help="computed: clients of a round"
    )
    parser.add_argument(
        "--few", type=int, default=16, help="clients timed at each size"
    )
    parser.add_argument(
        "--bandwidth", type=float, default=10.0, help="assumed, Gbit/s"
    )
    parser.add_argument(
        "--client-seconds",
        type=float,
        help="of a client on your worker: a second table",
    )
    options = parser.parse_args()
    quiet_flower()
    torch.set_num_threads(1)
    print(FORMULA)
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    sized(options, check(options) if options.measured else NOTHING)


if __name__ == "__main__":
    main()
