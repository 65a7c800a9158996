"""Is ε of the median client true where clients differ in weight? Coverage, proofs and theory.

30 nodes, 20 rounds, Flower's wrapper with fixed clipping, δ = 10⁻³. The clients and their updates
are those of `few_nodes`, weighted by num-examples: equal, lognormal (σ = 1.5), one with 100 times
as many as the others, one that claims 10⁷. The truth is the game of `few_nodes` with a client of
median weight, who is replaced by no canary; in a run the median client may be, so that the truth is
scaled to its rounds and its share. Printed too is the spread of theory over the canaries' seeds.

Run it: ``python simulations/studies/unequal_weights.py --runs 100``.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import statistics
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray

from fl_epe.auditing import AuditedClient, answers
from simulations.studies.few_nodes import (
    CLIP,
    DIM,
    Coverage,
    Measured,
    app,
    audited_run,
    shifts_of,
    updates,
)

NODES, ROUNDS, DELTA, PAIRS = 30, 20, 1e-3, 40
LAWS = {
    "equal": np.full(NODES, 100),
    "lognormal": np.round(
        100 * np.exp(np.random.default_rng(5).normal(0, 1.5, NODES))
    ),
    "one heavy": np.array([100] * (NODES - 1) + [10_000]),
    "one liar": np.array([100] * (NODES - 1) + [10**7]),
}
NOISES = (0.3, 1.0, 3.0)


def measure(law: str, z: float, seed: int) -> tuple[list[Measured], float]:
    """What an audited run says, of the final model and of every round's, and theory."""
    np.random.seed(seed)  # noqa: NPY002 - Flower's noise is the global generator's
    inner = flower.FedAvg(
        fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES
    )
    strategy = flower.DifferentialPrivacyServerSideFixedClipping(
        inner, z, CLIP, NODES
    )
    clients = app(1, LAWS[law].tolist())
    record = audited_run(strategy, clients, NODES, ROUNDS, seed, DELTA)
    client = AuditedClient.of(record)
    share = median_size(law) / LAWS[law].sum()
    added = (
        client.patterns[:, 0]
        * record.mechanism.contribution_norms
        / (CLIP * share)
    )
    final, every = answers(record)
    measured = [
        Measured.of(final, float(added.sum()) / ROUNDS),
        Measured.of(every, math.sqrt(np.mean(added**2))),
    ]
    theory = every.analytical.epsilon
    return measured, math.nan if theory is None else theory


def median_size(law: str) -> float:
    """The weight of the median client: the lower one of two."""
    return float(np.sort(LAWS[law])[NODES // 2 - 1])


def play(
    law: str, z: float, pair: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What the median client adds along its direction in each round, and the means without it."""
    rng = np.random.default_rng((97, pair))
    u = rng.standard_normal(DIM)
    u /= np.linalg.norm(u)
    sizes = LAWS[law]
    median_client = int(np.argsort(sizes, kind="stable")[NODES // 2 - 1])
    shares = sizes / sizes.sum()
    noise = rng.standard_normal((ROUNDS, DIM)) * z * CLIP / NODES
    runs = []
    for plays in (1.0, 0.0):
        theta, means = np.zeros(DIM), []
        for t in range(ROUNDS):
            real = [updates(1, node, t + 1, theta) for node in range(NODES)]
            real[median_client] = plays * CLIP * u
            clipped = [
                x * min(1.0, CLIP / max(float(np.linalg.norm(x)), 1e-9))
                for x in real
            ]
            means.append(shares @ np.array(clipped) + noise[t])
            theta = theta + means[-1]
        runs.append(np.array(means))
    return (runs[0] - runs[1]) @ u, runs[1]


def truth(law: str, z: float) -> tuple[float, float]:
    """μ of the median client, from the final model and from every round's."""
    games = (play(law, z, pair) for pair in range(PAIRS))
    final, every = shifts_of(games, PAIRS, ROUNDS)
    return math.sqrt(DIM) * float(np.mean(final)), every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="of each cell")
    parser.add_argument("--processes", type=int, default=2, help="at once")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    print(
        "| sizes | z | seen | measured | true ε | ε | covered | proof above | theory, ± |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    cells = list(itertools.product(LAWS, NOISES))
    with ProcessPoolExecutor(arguments.processes) as pool:
        truths = list(pool.map(truth, *zip(*cells, strict=True)))
        for (law, z), shifts in zip(cells, truths, strict=True):
            arguments_of = (
                itertools.repeat(law),
                itertools.repeat(z),
                range(arguments.runs),
            )
            runs = list(pool.map(measure, *arguments_of, chunksize=5))
            theories = [theory for _, theory in runs]
            spread = f"{statistics.mean(theories):.3g} ± {statistics.stdev(theories):.2g}"
            for place, sees in enumerate(("final model", "every round")):
                measured = [
                    run[place]
                    for run, _ in runs
                    if math.isfinite(run[place].epsilon)
                ]
                start = f"| {law} | {z:g} | {sees} | {len(measured) / len(runs):.0%} |"
                if not measured:
                    print(start, " | | | | |", flush=True)
                    continue
                result = Coverage.of(measured, shifts[place], DELTA)
                print(
                    f"{start} {result.truth:.3g} | {result.epsilon:.3g} |"
                    f" {result.covered:.0%} | {result.above:.0%} | {spread} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
