"""Cohorts of fixed size: the bound on ε beside what one set of updates of the others really leaks.

    python simulations/studies/fixed_size_bound.py [--draws 1000000]

The adversary sees every round's sum, knows all updates, and is not told the cohorts. Zero-out
adjacency: the client's update u, or 0. In each round a cohort of a fixed share q of the clients is
drawn, and whoever stands in the client's place otherwise has an update v of at most the same norm.
docs/notes/fixed-size.md proves that v = −u is the worst above loss 0, and v = u below it.

First it looks for a worse v, in length and angle, by the divergence of a single round, integrated
in the plane of u and v. Then for each number of rounds, share and noise: the bound; ε of the case
v = −u, by a sampled mixture, with its standard error; ε by the Rényi divergence of replacing a
client (dp-accounting); and ε of coins at the same rate, which is what v = 0 gives.

Expected output, about five minutes: no v is worse, by rounding at most; and the table of the note,
in which no bound is below a sampled mixture by more than three standard errors.
"""

import argparse
import math

import dp_accounting
import numpy as np
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray

from fl_epe.accounting import fixed_size_epsilon, poisson_epsilon
from simulations.studies.drawn_losses import epsilon_of

Floats = NDArray[np.float64]

SETTINGS = (
    (512, 4 / 512, 4e-5, (0.5, 1.0, 2.0, 4.0)),
    (50, 0.1, 1e-3, (0.5, 1.0, 2.0, 4.0)),
    (200, 0.02, 1e-3, (0.5, 1.0, 2.0)),
    (10, 0.5, 1e-3, (1.0, 2.0, 4.0)),
)
CLIENTS = 10_000
BATCH = 20_000  # draws at once


def divergence(
    other: tuple[float, float], rate: float, noise: float, factor: float
) -> float:
    """Hockey-stick divergence of a round with the update from one without, and the other way.

    Args:
        other: the update v along u and across it, in units of u.
        rate: share of the clients in a cohort.
        noise: z.
        factor: e^ε.
    """
    line = np.linspace(-10 - 1 / noise, 10 + 1 / noise, 1201)
    along, across = np.meshgrid(line, line, indexing="ij")

    def density(x: float, y: float) -> Floats:
        squares = (along - x / noise) ** 2 + (across - y / noise) ** 2
        return np.asarray(
            np.exp(-squares / 2) / (2 * math.pi) * (line[1] - line[0]) ** 2
        )

    unsampled = (1 - rate) * density(*other)
    present, absent = (
        rate * density(1, 0) + unsampled,
        rate * density(0, 0) + unsampled,
    )
    return float(
        max(
            np.maximum(present - factor * absent, 0).sum(),
            np.maximum(absent - factor * present, 0).sum(),
        )
    )


def search(
    rate: float, noise: float, epsilon: float
) -> tuple[float, float, tuple[float, float]]:
    """The divergence at v = ±u, the largest of all v, and its v."""
    factor = math.exp(epsilon)
    losses = {}
    for length in np.linspace(0, 1, 6):
        for angle in np.linspace(0, math.pi, 13):
            other_update = length * math.cos(angle), length * math.sin(angle)
            losses[other_update] = divergence(other_update, rate, noise, factor)
    worst = max(losses, key=losses.__getitem__)
    ends = [
        divergence((sign, 0.0), rate, noise, factor) for sign in (-1.0, 1.0)
    ]
    return max(ends), losses[worst], worst


def sampled(
    rounds: int, rate: float, noise: float, delta: float, draws: int
) -> tuple[float, float]:
    """ε of v = −u by drawn privacy losses, and its standard error."""
    rng = np.random.default_rng(44)
    signal = 1 / noise
    losses = []
    for _ in range(-(-draws // BATCH)):
        shifts = np.where(rng.random((BATCH, rounds)) < rate, signal, -signal)
        scores = shifts + rng.standard_normal((BATCH, rounds))
        # Logarithms over the density at 0.
        at = [sign * signal * scores - signal**2 / 2 for sign in (1, -1)]
        log_absent = math.log(1 - rate) + at[1]
        ratio = np.logaddexp(math.log(rate) + at[0], log_absent) - np.logaddexp(
            math.log(rate), log_absent
        )
        losses.append(ratio.sum(axis=1))
    return epsilon_of(np.concatenate(losses), delta)


def by_renyi(rounds: int, rate: float, noise: float, delta: float) -> float:
    """ε of replace-one by dp-accounting, where an update moves by twice the clip norm."""
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        CLIENTS, round(rate * CLIENTS), dp_accounting.GaussianDpEvent(noise / 2)
    )
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = RdpAccountant(neighboring_relation=relation)
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def main() -> None:
    """Print the search and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1_000_000)
    draws = parser.parse_args().draws
    for rate, noise, epsilon in (
        (0.1, 1.0, 0.1),
        (0.1, 1.0, 1.0),
        (0.5, 2.0, 0.3),
        (0.02, 0.5, 2),
    ):
        at_ends, largest, worst = search(rate, noise, epsilon)
        where = f"({worst[0]:.2f}, {worst[1]:.2f})"
        print(
            f"q = {rate:g}, z = {noise:g}, ε = {epsilon:g}: {at_ends:.6g} at v = ±u,",
            end=" ",
        )
        print(f"at most {largest:.6g} over all v, at {where}", flush=True)
    print(
        "rounds      q      δ    z   bound  sampled (± error)   Rényi   coins"
    )
    for rounds, rate, delta, noises in SETTINGS:
        for noise in noises:
            bound = fixed_size_epsilon(
                noise, CLIENTS, round(rate * CLIENTS), rounds, delta
            )
            exact, error = sampled(rounds, rate, noise, delta, draws)
            renyi, coins = (
                by_renyi(rounds, rate, noise, delta),
                poisson_epsilon(noise, rate, rounds, delta),
            )
            print(
                f"{rounds:6}  {rate:5.3f}  {delta:5.0e}  {noise:3g}  {bound:6.3f}"
                f"  {exact:7.3f} ± {error:5.3f}  {renyi:7.3f}  {coins:6.3f}"
                f"{'' if bound >= exact - 3 * error else '  BELOW'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
