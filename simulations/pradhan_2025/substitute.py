"""Substitute adjacency (Pradhan et al. 2025): the accountant, the worst case, and validity.

    python simulations/pradhan_2025/substitute.py            # the tables below
    python simulations/pradhan_2025/substitute.py --quick    # smaller ones, to see that it works

Measured on 23 November 2026, on two cores that other programs shared, in five minutes. Bounds are
at 95% confidence, with δ = 1e-5. In the first table all are above what add-or-remove promises, also
those that assume no law, and within what substitute adjacency promises. The paper's Figure 2 has
the same setting (T = 500; 25,000 runs of both worlds together, three times) but no numbers in its
text; it finds the same order of the four. It reads error rates as Gaussian DP, we along the
mechanism's own curve. That no bound of the 600 in the third table failed, where 5% may, is because
each rests on two Clopper-Pearson limits. The accountant differs by more than 1e-5 only where ε is
in the hundreds: its grid is refined until ε changes by less than 0.2%. Of clients, "zero-out" is
the promise for known rounds.

The second table is the paper's Figure A5. As it says, substitute ε is more than twice the other
"especially for large q and low σ". It is less than twice where q and σ are both small.

    Worst-case data set, hidden state, 25,000 runs of each world, 95%
         z      q     T  add/remove  ε ≥ any law  ε ≥ curve  hidden  substitute   group
      44.7      1   500       1.994        2.338      4.167   4.380       4.380   4.523
        20      1   500       4.983        5.633     11.213  11.480      11.480  12.903
      11.2   0.25   500       2.004        2.484      4.192   4.365       4.365   4.553
         6   0.25   500       4.103        4.727      8.940   9.138       9.138  10.277
         3 0.0625   500       1.951        2.098      3.914   4.021       4.025   4.441
         2 0.0625   500       3.252        3.562      6.279   6.436       6.465   7.925

    Substitute ε beside add-or-remove at one δ = 1e-5, T = 500: their ratio
         z   q = 0.02  0.0625   0.25      1
       0.7      1.255   1.405  1.674  3.582
         1      1.519   1.646  1.968  3.454
         2      1.919   1.988  2.264  3.150
         4      2.052   2.087  2.263  2.823
         8      2.099   2.109  2.202  2.544

    Bounds above the true ε, of 200 seeds, 200 runs each
         z      q     T   above the hidden pair's   above the accountant's
         3      1    10                      0.0%                     0.0%
         3    0.5    10                      0.0%                     0.0%
         3   0.25    40                      0.0%                     0.0%

    Substitute ε at δ = 1e-5 by the accountant and by direct integration
         z      q     T  accountant  integrated  difference
       0.7   0.02     1     1.55289     1.55289     1.2e-07
       0.7   0.02   500     8.34919     8.34903     1.9e-05
       0.7   0.25     1     5.08604     5.08604     1.2e-08
       0.7   0.25   500   170.52752   170.52746     3.6e-07
       0.7    0.9     1     8.81378     8.81378     3.7e-08
       0.7    0.9   500  1434.98093  1434.02283     6.7e-04
         1   0.02     1     0.45885     0.45885     1.5e-06
         1   0.02   500     4.21369     4.21369     3.5e-07
         1   0.25     1     2.99240     2.99240     2.0e-07
         1   0.25   500    99.48447    99.48442     5.2e-07
         1    0.9     1     6.51616     6.51616     4.9e-08
         1    0.9   500   870.71000   869.75964     1.1e-03
         4   0.02     1     0.02919     0.02919     4.7e-06
         4   0.02   500     0.81968     0.81968     9.0e-06
         4   0.25     1     0.45164     0.45164     7.0e-06
         4   0.25   500    15.11516    15.11506     6.8e-06
         4    0.9     1     1.74274     1.74274     5.6e-07
         4    0.9   500    92.27837    92.27832     5.8e-07
    largest difference: 1.1e-03

    Clients of +c or −c, z = 1, 120 canaries, 20 runs of 6 rounds
    ε zero-out 4.377, substitute 9.997
    gdp          mean 5.575; above zero-out 19, above substitute 0
    weighted     mean 2.227; above zero-out 0, above substitute 0
"""

from __future__ import annotations

import argparse
import dataclasses
import math

from fl_epe.accounting import gaussian_epsilon, poisson_epsilon
from fl_epe.auditing.bounds import lower_bound
from simulations.pradhan_2025.group_privacy import group_epsilon
from simulations.pradhan_2025.hidden_substitute import (
    HiddenSubstitute,
    hidden_substitute_lower_bound,
    play_hidden_state,
)
from simulations.pradhan_2025.substitute_clients import signed_run
from simulations.pradhan_2025.substitute_quadrature import epsilon_by_quadrature

DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is computed."""

    noises: tuple[float, ...] = (0.7, 1.0, 4.0)
    rates: tuple[float, ...] = (0.02, 0.25, 0.9)
    rounds: tuple[int, ...] = (1, 500)
    worst: tuple[tuple[float, float, int], ...] = (
        (44.7, 1.0, 500),
        (20.0, 1.0, 500),
        (11.2, 0.25, 500),
        (6.0, 0.25, 500),
        (3.0, 0.0625, 500),
        (2.0, 0.0625, 500),
    )
    runs: int = 25_000
    seeds: int = 200
    runs_of_a_seed: int = 200
    federated_seeds: int = 20
    outputs: int = 2_000_001
    cells: int = 2**20
    ratio_noises: tuple[float, ...] = (0.7, 1.0, 2.0, 4.0, 8.0)
    ratio_rates: tuple[float, ...] = (0.02, 0.0625, 0.25, 1.0)
    ratio_rounds: int = 500


QUICK = Size(
    noises=(1.0,),
    rates=(0.25,),
    rounds=(1, 50),
    worst=((3.0, 0.25, 40),),
    runs=2000,
    seeds=10,
    runs_of_a_seed=50,
    federated_seeds=0,
    outputs=200_001,
    cells=2**17,
    ratio_noises=(1.0, 8.0),
    ratio_rates=(0.02, 1.0),
    ratio_rounds=50,
)


def accountant_table(size: Size) -> float:
    """Print both ε for each setting; returns the largest relative difference."""
    print("Substitute ε at δ = 1e-5 by the accountant and by direct integration")
    print("     z      q     T  accountant  integrated  difference")
    largest = 0.0
    for z in size.noises:
        for q in size.rates:
            for rounds in size.rounds:
                ours = poisson_epsilon(z, q, rounds, DELTA, replace_one=True)
                direct = epsilon_by_quadrature(
                    z, q, rounds, DELTA, outputs=size.outputs, cells=size.cells
                )
                apart = ours / direct - 1
                largest = max(largest, abs(apart))
                print(
                    f"{z:6g} {q:6g} {rounds:5d} {ours:11.5f} {direct:11.5f} {apart:11.1e}"
                )
    print(f"largest difference: {largest:.1e}\n")
    return largest


def worst_case_table(size: Size) -> list[tuple[float, float, float]]:
    """Print the paper's Figure 2 in numbers; returns add-or-remove, bound, substitute."""
    print(f"Worst-case data set, hidden state, {size.runs:,} runs of each world, 95%")
    print(
        "     z      q     T  add/remove  ε ≥ any law  ε ≥ curve  hidden  substitute   group"
    )
    found = []
    for seed, (z, q, rounds) in enumerate(size.worst):
        pair = HiddenSubstitute(z, q, rounds)
        scores = play_hidden_state(pair, observations=size.runs, seed=seed)
        bound = hidden_substitute_lower_bound(scores, q, rounds, DELTA)
        free = lower_bound(scores, DELTA, method="clopper-pearson")
        apart, group = (
            of(z, q, rounds, DELTA) for of in (poisson_epsilon, group_epsilon)
        )
        substitute = poisson_epsilon(z, q, rounds, DELTA, replace_one=True)
        print(
            f"{z:6g} {q:6g} {rounds:5d} {apart:11.3f} {free:12.3f} {bound:10.3f} "
            f"{pair.epsilon(DELTA):7.3f} {substitute:11.3f} {group:7.3f}",
            flush=True,
        )
        found.append((apart, bound, substitute))
    print()
    return found


def ratio_table(size: Size) -> list[tuple[float, float, float]]:
    """Print the paper's Figure A5 in numbers; returns add-or-remove, substitute, their ratio."""
    print(f"Substitute ε beside add-or-remove at one δ = 1e-5, T = {size.ratio_rounds}")
    print("     z      q  add/remove  substitute   ratio")
    found = []
    for z in size.ratio_noises:
        for q in size.ratio_rates:
            apart = poisson_epsilon(z, q, size.ratio_rounds, DELTA)
            substitute = poisson_epsilon(
                z, q, size.ratio_rounds, DELTA, replace_one=True
            )
            ratio = substitute / apart
            print(
                f"{z:6g} {q:6g} {apart:11.3f} {substitute:11.3f} {ratio:7.3f}",
                flush=True,
            )
            found.append((apart, substitute, ratio))
    print()
    return found


def validity_table(size: Size) -> list[float]:
    """Print the share of seeds whose bound is above the true ε; returns these shares."""
    print(
        f"Bounds above the true ε, of {size.seeds} seeds, {size.runs_of_a_seed} runs each"
    )
    print("     z      q     T   above the hidden pair's   above the accountant's")
    shares = []
    for z, q, rounds in ((3.0, 1.0, 10), (3.0, 0.5, 10), (3.0, 0.25, 40)):
        pair = HiddenSubstitute(z, q, rounds)
        truth, promised = (
            pair.epsilon(DELTA),
            poisson_epsilon(z, q, rounds, DELTA, replace_one=True),
        )
        bounds = [
            hidden_substitute_lower_bound(
                play_hidden_state(pair, observations=size.runs_of_a_seed, seed=seed),
                q,
                rounds,
                DELTA,
            )
            for seed in range(size.seeds)
        ]
        share, of_promise = (
            sum(b > t for b in bounds) / len(bounds) for t in (truth, promised)
        )
        print(f"{z:6g} {q:6g} {rounds:5d} {share:25.1%} {of_promise:24.1%}", flush=True)
        shares.append(share)
    print()
    return shares


def federated_table(size: Size) -> None:
    """Print how often the bounds of one federated run exceed each promise."""
    if not size.federated_seeds:
        return
    apart, substitute = gaussian_epsilon(1.0, DELTA), gaussian_epsilon(0.5, DELTA)
    print(
        f"Clients of +c or −c, z = 1, 120 canaries, {size.federated_seeds} runs of 6 rounds"
    )
    print(f"ε zero-out {apart:.3f}, substitute {substitute:.3f}")
    played = [
        signed_run(1.0, 120, 6, DELTA, seed) for seed in range(size.federated_seeds)
    ]
    for method in ("gdp", "weighted"):
        bounds = [lower_bound(scores, DELTA, method=method) for scores in played]
        mean = math.fsum(bounds) / len(bounds)
        over = [sum(bound > limit for bound in bounds) for limit in (apart, substitute)]
        print(
            f"{method:12} mean {mean:.3f}; above zero-out {over[0]}, above substitute {over[1]}"
        )


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="smaller, to see that it works"
    )
    size = QUICK if parser.parse_args().quick else Size()
    worst_case_table(size)
    ratio_table(size)
    validity_table(size)
    accountant_table(size)
    federated_table(size)


if __name__ == "__main__":
    main()
