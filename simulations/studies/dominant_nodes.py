"""How often `find_dominant` names honest nodes, and how often it finds those that hide the others.

    python simulations/studies/dominant_nodes.py

A node adds its share of the examples times a direction times a length that differs by node (half a
unit of a lognormal's σ) and by round. Honest directions have a part in common (the drift). Named in
200 runs of 20 rounds, in what each added over the whole run / in a single round:

| nodes | equal sizes, drift 0 | σ 0.5, drift 0 | σ 0.5, drift 0.5 | σ 1, drift 0 | σ 1, drift 0.5 |
|---|---|---|---|---|---|
| 2 | 0.0% / 0.5% | 3.5% / 3.0% | 4.0% / 3.0% | 17.0% / 19.0% | 17.0% / 19.5% |
| 3 | 0.0% / 0.0% | 0.5% / 2.0% | 0.5% / 2.0% | 10.0% / 10.0% | 10.0% / 10.0% |
| 4 | 0.5% / 0.0% | 1.0% / 0.5% | 0.5% / 0.5% | 16.5% / 15.5% | 14.5% / 14.0% |
| 5 | 0.0% / 0.0% | 0.0% / 1.5% | 0.0% / 1.5% | 8.5% / 11.0% | 2.0% / 10.0% |
| 12 | 0.0% / 0.0% | 0.5% / 2.5% | 0.0% / 0.0% | 15.5% / 17.0% | 1.0% / 4.5% |
| 30 | 0.0% / 0.0% | 0.0% / 0.0% | 0.0% / 0.0% | 6.0% / 5.0% | 0.0% / 0.0% |

With sizes that differ so much the node that is named has ten times the median weight and most of
the energy: ε against whoever is that node is larger than what is said. Of those that hide the
others, among 30 nodes with σ 0.5, by drift 0, 0.5 and 0.9:

| who | named over the run / in a round of 20 |
|---|---|
| lies about its size | 100% / 100%, 100% / 100%, 100% / 100% |
| one update that is 300 times as long, in round 7 | 96% / –, 9% / –, 2% / – |
| a third with one vector a round, 3.9 times as long | 100% / 100%, 0% / 100%, 0% / 40.5% |

Where nodes move together for 20 rounds, what they move is longer than one round's long update,
which then is not most of the model. Measured in November 2026.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fl_epe.flower.dominance import find_dominant

Floats = NDArray[np.float64]

RUNS, ROUNDS, ENTRIES = 200, 20, 1024
LENGTHS = 0.5  # σ of the logarithm of a node's own length
NODES = (2, 3, 4, 5, 12, 30)
SIZES = (
    0.0,
    0.5,
    1.0,
    1.5,
)  # σ of the logarithm of a node's number of examples
DRIFTS = (0.0, 0.5, 0.9)  # cosine of every update with the common direction

Lie = Callable[[Floats], None]
"""Changes what nodes added in each round, ``(rounds, nodes, entries)``, in place."""


def honest(
    rng: np.random.Generator, nodes: int, sizes: float, drift: float
) -> Floats:
    """What each node adds in each round, shape ``(ROUNDS, nodes, ENTRIES)``."""
    common = rng.standard_normal(ENTRIES)
    updates = rng.standard_normal((ROUNDS, nodes, ENTRIES))
    directions = drift * common + np.sqrt(1 - drift**2) * updates
    examples = np.exp(sizes * rng.standard_normal(nodes))
    lengths = np.exp(LENGTHS * rng.standard_normal(nodes))
    by_round = np.exp(0.3 * rng.standard_normal((ROUNDS, nodes)))
    weights = examples / examples.sum() * lengths * by_round
    added: Floats = weights[:, :, None] * directions
    return added


def claims_all_examples(added: Floats) -> None:
    """Node 0 lies about its size, and has nearly all of the weight."""
    added[:, 1:] *= 1e-5


def answers_once_with_a_long_update(added: Floats) -> None:
    """Node 0 does, in one of the rounds."""
    added[6, 0] *= 300


def share_one_vector(added: Floats) -> None:
    """A third of the nodes send one vector of 3.9 times the typical length."""
    third = added.shape[1] // 3
    typical = np.median(np.linalg.norm(added, axis=2))
    lie = np.random.default_rng(0).standard_normal((ROUNDS, 1, ENTRIES))
    added[:, :third] = (
        3.9 * typical * lie / np.linalg.norm(lie, axis=2, keepdims=True)
    )


def named(
    nodes: int, sizes: float, drift: float, lie: Lie | None = None
) -> tuple[float, float]:
    """Share of runs in which nodes are named over the run, and in the run's first round."""
    run, first = 0, 0
    for seed in range(RUNS):
        rng = np.random.default_rng((seed, nodes))
        added = honest(rng, nodes, sizes, drift)
        if lie is not None:
            lie(added)
        run += find_dominant(dict(enumerate(added.sum(axis=0)))) is not None
        first += find_dominant(dict(enumerate(added[0]))) is not None
    return run / RUNS, first / RUNS


def main() -> None:
    """Print the tables."""
    laws = list(itertools.product(SIZES, DRIFTS))
    print(
        "nodes  "
        + "  ".join(f"σ {sizes:g}, {drift:g}" for sizes, drift in laws)
    )
    for nodes in NODES:
        cells = [named(nodes, sizes, drift) for sizes, drift in laws]
        print(
            f"{nodes:5}  "
            + "  ".join(f"{run:6.1%}/{first:6.1%}" for run, first in cells)
        )
    for lie in (
        claims_all_examples,
        answers_once_with_a_long_update,
        share_one_vector,
    ):
        cells = [named(30, 0.5, drift, lie) for drift in DRIFTS]
        print(
            f"{lie.__name__}: "
            + "  ".join(f"{run:.1%}/{first:.1%}" for run, first in cells)
        )


if __name__ == "__main__":
    main()
