"""Is ε of a federation of few nodes true? Coverage of `CanaryAudit` beside 2 to 20 clients.

Every run is a whole one: Flower's strategy, its DP wrapper, `CanaryAudit`, in-process clients. A
client's update is a step of 5% towards an optimum of its own and a fresh random vector of norm 1 (a
stochastic gradient), in 2,000 dimensions. With noise multiplier z the wrapper clips to 1 and
replaces clients by canaries; FedAvg (z = 0) has no noise, and canaries are added.

The truth of a cell is a game of pairs of runs, with the same noise and the same clients: in one of
them a client answers with a fixed random direction u, of a canary's norm, whenever it is asked; in
the other one with the unchanged model. What differs along u between two released means is what the
client added, reactions of the others to it included. With f its mean over pairs and G the mean
Gram matrix of the means without it, ``μ² = d·fᵀG⁻¹f`` for who sees every round's model, and from
the final model ``μ² = d·⟨f, 1⟩²/‖θ_T − θ_0‖²``.

Run it: ``python simulations/studies/few_nodes.py --runs 400 --processes 2``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import math
import os
import statistics
import unittest.mock
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray

from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing import Answer, AuditedClient, AuditRecord, answers
from fl_epe.flower import CanaryAudit, InProcessGrid

DIM, DELTA, PULL, CLIP = 2000, 1e-5, 0.05, 1.0
PATTERNS, PAIRS = 4, 20
LAYERS = np.repeat(
    np.exp(np.random.default_rng(0).normal(0, 0.7, 20)), DIM // 20
)
LAYERS /= math.sqrt(
    float(np.mean(LAYERS**2))
)  # gradients of a layer are of one size


@dataclasses.dataclass(frozen=True)
class Cell:
    """A federation: nodes, the share of rounds in which one is asked, rounds, z (0: FedAvg)."""

    nodes: int
    asked: float
    rounds: int
    z: float

    @property
    def cohort(self) -> int:
        """How many nodes are asked in a round."""
        return max(1, math.ceil(self.nodes * self.asked))

    def __str__(self) -> str:
        noise = f"z = {self.z:g}" if self.z else "FedAvg"
        return f"{self.nodes} clients, {self.asked:.0%} of rounds, {self.rounds} rounds, {noise}"


def updates(
    seed: int, node: int, server_round: int, theta: NDArray[Any]
) -> NDArray[Any]:
    """The update of a real client."""
    target = np.random.default_rng((seed, node)).standard_normal(DIM) * 0.2
    step = (
        np.random.default_rng((seed, node, server_round)).standard_normal(DIM)
        * LAYERS
    )
    return np.asarray(PULL * (target - theta) + step / math.sqrt(DIM))


def app(seed: int, sizes: Sequence[int] | None = None) -> ClientApp:
    """The clients of a run, each with its number of examples, by default 10 of everybody."""
    client_app = ClientApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        content: Any = message.content
        theta = content["arrays"]["w"].numpy()
        server_round = int(content["config"]["server-round"])
        node = int(context.node_config["partition-id"])
        new = (theta + updates(seed, node, server_round, theta)).astype(
            np.float32
        )
        arrays = ArrayRecord({"w": Array(new)})
        metrics = MetricRecord(
            {"num-examples": 10 if sizes is None else int(sizes[node])}
        )
        answer = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(answer, reply_to=message)

    return client_app


def strategy(cell: Cell) -> Any:
    inner = flower.FedAvg(
        fraction_train=cell.cohort / cell.nodes + 1e-9,
        fraction_evaluate=0.0,
        min_train_nodes=cell.cohort,
        min_available_nodes=cell.nodes,
    )
    if not cell.z:
        return inner
    return flower.DifferentialPrivacyServerSideFixedClipping(
        inner, cell.z, CLIP, cell.cohort
    )


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a run says to one adversary of its median client; NaN where it is not measured."""

    epsilon: float = math.nan
    low: float = math.nan
    high: float = math.nan
    proved: float = math.nan
    timing: float = 1.0

    @classmethod
    def of(cls, answer: Answer, timing: float) -> Measured:
        """What ``answer`` says of a client whose expected score is ``timing`` times another's."""
        estimate = answer.estimate
        if estimate is None:
            return cls(timing=timing)
        proved = math.nan if answer.proved is None else answer.proved
        return cls(
            estimate.epsilon, estimate.low, estimate.high, proved, timing
        )

    def true(self, shift: float, delta: float = DELTA) -> float:
        """ε of that client, from the expected score of a client at any rounds."""
        return float(epsilon_of_shift(shift * self.timing, delta))


def audited_run(
    strategy: Any,
    clients: ClientApp,
    nodes: int,
    rounds: int,
    seed: int,
    delta: float,
) -> AuditRecord:
    """The record of a run under `CanaryAudit`, which does not compute ε during the run."""
    audit = CanaryAudit(strategy, delta=delta, seed=seed)
    silent = unittest.mock.patch(
        "fl_epe.flower.canary_audit.epsilons", return_value={}
    )
    with silent, InProcessGrid(clients, nodes) as grid:
        start = ArrayRecord({"w": Array(np.zeros(DIM, np.float32))})
        audit.start(grid, start, num_rounds=rounds)
    return audit.record()


def measure(cell: Cell, seed: int) -> tuple[Measured, Measured]:
    """What an audited run says, of the final model and of every round's."""
    np.random.seed(seed)  # noqa: NPY002 - Flower's noise is the global generator's
    record = audited_run(
        strategy(cell), app(seed), cell.nodes, cell.rounds, seed, DELTA
    )
    final, every = (
        described(cell, record, answer) for answer in answers(record)
    )
    return final, every


def described(cell: Cell, record: AuditRecord, answer: Answer) -> Measured:
    client = AuditedClient.of(record)
    times = client.participations * cell.nodes / cell.rounds / cell.cohort
    timing = math.sqrt(times)
    if answer.adversary.sees == "final":
        timing = times
    if answer.adversary.sees == "final" and not cell.z:
        # Later rounds pull the model back, those of early participations more often.
        weights = (1 - PULL) ** np.arange(cell.rounds)[::-1]
        timing = float(np.mean(weights @ client.patterns) / weights.mean())
        timing *= cell.nodes / cell.rounds / cell.cohort
    return Measured.of(answer, timing)


def play(
    cell: Cell, seed: int, here: NDArray[np.bool_]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """A pair of runs: what a client adds along u in each round, ``(T,)``, and means without it."""
    rng = np.random.default_rng((99, seed))
    u = rng.standard_normal(DIM)
    u /= np.linalg.norm(u)
    chosen = [rng.permutation(cell.nodes - 1)[: cell.cohort - h] for h in here]
    noise = (
        rng.standard_normal((cell.rounds, DIM)) * cell.z * CLIP / cell.cohort
    )
    runs = []
    for plays in (1.0, 0.0):
        theta, means, length = np.zeros(DIM), [], CLIP
        for t in range(cell.rounds):
            real = [updates(seed, int(i), t + 1, theta) for i in chosen[t]]
            if cell.z:
                real = [x * min(1.0, CLIP / np.linalg.norm(x)) for x in real]
            elif real:
                length = statistics.median(
                    float(np.linalg.norm(x)) for x in real
                )
            added = plays * length * here[t] * u
            means.append(
                (np.sum(real, axis=0) + added) / cell.cohort + noise[t]
            )
            theta = theta + means[-1]
        runs.append(np.array(means))
    return (runs[0] - runs[1]) @ u, runs[1]


def shifts_of(
    games: Iterable[tuple[NDArray[Any], NDArray[Any]]], count: int, rounds: int
) -> tuple[list[float], float]:
    """μ from the final model by each of ``count`` pairs of runs, and from every round by all.

    Args:
        games: what a client adds along its direction in each round, and the means without it.
        count: number of pairs.
        rounds: of a run.
    """
    added = np.zeros((2, rounds))  # two halves, whose errors are independent
    gram = np.zeros((rounds, rounds))
    final = []
    for pair, (along, means) in enumerate(games):
        added[pair % 2] += 2 * along / count
        gram += means @ means.T / count
        final.append(along.sum() / np.linalg.norm(means.sum(axis=0)))
    square = max(DIM * added[0] @ np.linalg.solve(gram, added[1]), 0.0)
    return final, math.sqrt(square)


def truth(cell: Cell) -> tuple[float, float]:
    """μ from the final model and from every round's, by the game of the module's docstring."""
    rounds = round(cell.rounds * cell.cohort / cell.nodes)
    final, every = [], []
    for pattern in range(PATTERNS):
        order = np.random.default_rng((98, pattern)).permutation(cell.rounds)
        presence = np.isin(np.arange(cell.rounds), order[:rounds])
        seeds = range(PAIRS * pattern, PAIRS * (pattern + 1))
        games = (play(cell, seed, presence) for seed in seeds)
        of_pairs, shift = shifts_of(games, PAIRS, cell.rounds)
        final += of_pairs
        every.append(shift)
    return math.sqrt(DIM) * float(np.mean(final)), float(np.mean(every))


CELLS = [
    Cell(2, 1, 60, 1),
    Cell(3, 1, 60, 1),
    Cell(3, 1, 120, 1),
    Cell(5, 1, 60, 1),
    Cell(5, 1, 120, 1),
    Cell(10, 1, 60, 1),
    Cell(10, 1, 120, 1),
    Cell(2, 1, 120, 0.5),
    Cell(3, 1, 30, 0.5),
    Cell(3, 1, 120, 2),
    Cell(5, 0.5, 60, 1),
    Cell(8, 1, 60, 2),
    Cell(8, 0.5, 60, 0.5),
    Cell(10, 0.5, 120, 1),
    Cell(20, 1, 30, 1),
    Cell(20, 0.5, 60, 2),
    Cell(2, 1, 30, 0),
    Cell(3, 1, 60, 0),
    Cell(5, 1, 60, 0),
    Cell(5, 0.5, 60, 0),
    Cell(8, 0.5, 120, 0),
    Cell(10, 1, 30, 0),
    Cell(10, 0.5, 60, 0),
    Cell(20, 1, 60, 0),
]  # named before they were run


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Of runs in which ε was measured: medians, and how often interval and bound hold."""

    truth: float
    epsilon: float
    half_width: float
    covered: float
    above: float

    @classmethod
    def of(
        cls, runs: Sequence[Measured], shift: float, delta: float = DELTA
    ) -> Coverage:
        """Compare ``runs`` with the truth of an expected score of ``shift``."""
        truths = [run.true(shift, delta) for run in runs]
        pairs = list(zip(runs, truths, strict=True))
        widths = [
            (run.high - run.low) / 2 / run.epsilon
            for run in runs
            if run.epsilon
        ]
        return cls(
            truth=statistics.median(truths),
            epsilon=statistics.median(run.epsilon for run in runs),
            half_width=statistics.median(widths) if widths else math.nan,
            covered=statistics.mean(
                run.low <= true <= run.high for run, true in pairs
            ),
            above=statistics.mean(run.proved > true for run, true in pairs),
        )


def line(cell: Cell, sees: str, shift: float, runs: Sequence[Measured]) -> str:
    """A row of the table."""
    measured = [run for run in runs if math.isfinite(run.epsilon)]
    if not measured:
        return f"| {cell} | {sees} | not measured | | | | |"
    result = Coverage.of(measured, shift)
    return (
        f"| {cell} | {sees} | {len(measured) / len(runs):.0%} | {result.truth:.3g} |"
        f" {result.epsilon:.3g} ± {result.half_width:.0%} | {result.covered:.1%} |"
        f" {result.above:.1%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400, help="of each cell")
    parser.add_argument("--processes", type=int, default=2, help="at once")
    parser.add_argument(
        "--cells",
        nargs="*",
        default=[],
        help="such as 3,1,60,1: nodes, asked, T, z",
    )
    arguments = parser.parse_args()
    numbers = (map(float, text.split(",")) for text in arguments.cells)
    cells = [
        Cell(int(n), share, int(rounds), z) for n, share, rounds, z in numbers
    ] or CELLS
    logging.disable(logging.WARNING)
    print(
        "| cell | seen | measured | true ε | ε, half of its interval | covered | proof above |"
    )
    print("|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(arguments.processes) as pool:
        truths = dict(zip(cells, pool.map(truth, cells), strict=True))
        for cell in cells:
            runs = list(
                pool.map(
                    measure,
                    itertools.repeat(cell),
                    range(arguments.runs),
                    chunksize=5,
                )
            )
            for place, sees in enumerate(("final model", "every round")):
                row = line(
                    cell,
                    sees,
                    truths[cell][place],
                    [run[place] for run in runs],
                )
                print(row, flush=True)


if __name__ == "__main__":
    main()
