"""What DP noise from a cipher costs: a draw, the server's step and a whole round of the LSTM.

    python benchmarks/noise_cost.py

Each figure is the median of several, ChaCha20 and SFC64 in turn.

Two shared cores, one thread, float64 noise of 4,050,748 numbers, 2026-11-28::

    what                               sfc64    chacha20
    a draw                           0.057 s     0.134 s
    the server's step                0.104 s     0.180 s
    a round of 4 clients of the LSTM  12.6 s      12.5 s

The cipher adds 0.08 s a round: 0.6% of one with four clients, less with more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from fl_epe.config import RunConfig
from fl_epe.mechanism import gaussian_noise
from fl_epe.seeding import NoiseGenerator, Seeds, noise_generator
from fl_epe.simulation import Job, simulate
from fl_epe.simulation.dp_fedavg import ClippedSums, initial_state, next_round
from fl_epe.tasks.stored import SyntheticStackOverflow

_DIM = 4_050_748  # parameters of the paper's LSTM
_KINDS: Sequence[NoiseGenerator] = ("sfc64", "chacha20")


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def config_with(kind: NoiseGenerator, cohort: int, rounds: int) -> RunConfig:
    """A run of the LSTM with the defaults of the task but the size of its cohorts."""
    task = SyntheticStackOverflow()
    settings = {**task.defaults, "rounds": rounds, "clients_per_round": cohort}
    return RunConfig(clients=task.num_clients, noise_generator=kind, **settings)


def draw(kind: NoiseGenerator) -> float:
    """Seconds of one round's noise."""
    return seconds(
        lambda: gaussian_noise(noise_generator(None, kind=kind), _DIM, 0.25)
    )


def step(kind: NoiseGenerator) -> float:
    """Seconds of the server's step: noise, mean, momentum and model."""
    config = config_with(kind, 10, 60)
    state = initial_state(config, np.zeros(_DIM, np.float32))
    sums = ClippedSums(np.zeros(_DIM), clients=10, unclipped=5)
    return seconds(lambda: next_round(config, Seeds.derive(None), state, sums))


def round_of(kind: NoiseGenerator, cohort: int, rounds: int) -> float:
    """Seconds of a round in which real clients train, on average over a run."""
    job = Job(
        SyntheticStackOverflow(),
        config_with(kind, cohort, rounds),
        Seeds.derive(1),
    )
    return seconds(lambda: simulate(job)) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cohort", type=int, default=4, help="clients of a round"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of a run")
    parser.add_argument("--runs", type=int, default=3, help="of each generator")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measures: dict[str, tuple[int, Callable[[NoiseGenerator], float]]] = {
        "draw": (9, draw),
        "server's step": (9, step),
        "round": (
            options.runs,
            lambda kind: round_of(kind, options.cohort, options.rounds),
        ),
    }
    for name, (times, measure) in measures.items():
        found = {kind: [0.0] * times for kind in _KINDS}
        for i in range(times):
            for kind in _KINDS:
                found[kind][i] = measure(kind)
        old, new = (statistics.median(found[kind]) for kind in _KINDS)
        print(
            f"{name}: {old:.3f} s with sfc64, {new:.3f} s with chacha20",
            flush=True,
        )


if __name__ == "__main__":
    main()
