"""Do intervals and bounds hold where rounds are correlated, for one participation and for many?

Runs of `RunAuditor` with vectors: noise of which a share of the energy is the same in every round,
server momentum, canaries in R random rounds of 30, in 650 and 4,000 dimensions. The truth is ε of
one of the run's canaries drawn at random (`known_expected_score_epsilon`), with the products of the
rounds as they are on average.

"mean" is the mean score's shift over theory, "null" the deviation of canaries that took no part,
"covers" the 95% interval, "so far" runs in which the lower end that is shown is ever above the
truth of its moment (2.5% allowed), "proved" bounds at 95% above the truth at the end.

    python simulations/studies/whitened_runs.py --runs 100    # twenty minutes on two busy cores

Expected::

       dim  R shared momentum |  mean   null  covers  so far  proved, proved by gdp
       650  1    0.0      0.0 |  1.004  1.000   94.0%    1.0%    1.0%    4.0%
       650  1    0.1      0.9 |  1.005  0.999   92.0%    0.0%    0.0%   11.0%
       650  1    0.5     0.95 |  1.003  0.999   91.0%    0.0%    0.0%    4.0%
       650  5    0.0      0.0 |  0.994  1.010   94.0%    0.0%    0.0%    5.0%
       650  5    0.1      0.9 |  0.994  1.012   94.0%    0.0%    0.0%    3.0%
       650  5    0.5     0.95 |  0.995  1.007   94.0%    1.0%    0.0%    3.0%
       650 30    0.0      0.0 |  1.006  0.989   95.0%    2.0%    0.0%    0.0%
       650 30    0.1      0.9 |  1.002  0.993   96.0%    0.0%    0.0%    0.0%
       650 30    0.5     0.95 |  1.000  0.994   99.0%    0.0%    0.0%    1.0%
      4000  1    0.0      0.0 |  0.995  1.010   95.0%    3.0%    1.0%    4.0%
      4000  1    0.1      0.9 |  0.995  1.010   95.0%    3.0%    1.0%    3.0%
      4000  1    0.5     0.95 |  0.995  1.010   95.0%    3.0%    1.0%    4.0%
      4000  5    0.0      0.0 |  0.997  0.980   96.0%    0.0%    0.0%    2.0%
      4000  5    0.1      0.9 |  0.997  0.981   96.0%    1.0%    0.0%    1.0%
      4000  5    0.5     0.95 |  0.998  0.984   95.0%    3.0%    0.0%    4.0%
      4000 30    0.0      0.0 |  0.999  1.000   96.0%    0.0%    0.0%    0.0%
      4000 30    0.1      0.9 |  0.997  0.999   95.0%    0.0%    0.0%    2.0%
      4000 30    0.5     0.95 |  0.998  0.999   94.0%    0.0%    0.0%    2.0%
    covered, all together: 94.78%
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing

import numpy as np
from numpy.typing import NDArray

from fl_epe import RoundFacts, RunAuditor
from fl_epe.accounting import known_expected_score_epsilon
from fl_epe.auditing import EVERY_ROUND, average_case_client, seen_by
from fl_epe.auditing.bounds import lower_bound
from fl_epe.mechanism import ServerSGD

Floats = NDArray[np.float64]

ROUNDS, NOISE, DELTA = 30, 0.5, 1e-5
METHODS = ("weighted", "gdp")


def truth_of(here: NDArray[np.bool_], shared: float, rounds: int = ROUNDS) -> float:
    """ε of a canary drawn at random, who takes part in the rounds of a row of ``here``."""
    products = (1 - shared) * np.eye(rounds) + shared
    inverse = np.linalg.inv(products[: here.shape[1], : here.shape[1]])
    energies = np.einsum("ct,ts,cs->c", here, inverse, here)
    sizes = np.sqrt(energies[energies > 0]) / NOISE
    return known_expected_score_epsilon(sizes, DELTA) if len(sizes) else 0.0


def run(
    seed: int, dim: int, canaries: int, often: int, shared: float, momentum: float
) -> tuple[float, ...]:
    """Mean over theory, squared deviation of the null, covered, ever above, proved above."""
    rng = np.random.default_rng((seed, dim, often))
    auditor = RunAuditor(
        canaries,
        60,
        seed=seed,
        delta=DELTA,
        server=ServerSGD(1.0, momentum),
        planned=canaries * often,
    )
    here = np.array([rng.permutation(ROUNDS) < often for _ in range(canaries)])
    always, theta = rng.standard_normal(dim), np.zeros(dim)
    velocity, above = np.zeros(dim), False
    auditor.begin(theta)
    for t in range(ROUNDS):
        noise = np.sqrt(1 - shared) * rng.standard_normal(dim) + np.sqrt(shared) * always
        present = np.flatnonzero(here[:, t]).tolist()
        total = auditor.canaries.combine(np.ones((1, len(present))), numbers=present)[0]
        velocity = momentum * velocity + NOISE * noise + total
        theta = theta + velocity
        auditor.observe(theta, RoundFacts(present, 1.0, clip_norm=1.0, replies=1.0))
        if (t + 1) % 5 == 0 and (shown := auditor.epsilon_so_far()) is not None:
            above |= shown.low > truth_of(here[:, : t + 1], shared)
    record = auditor.record(noise_multiplier=NOISE, sum_noise_multiplier=NOISE)
    view = seen_by(record, EVERY_ROUND)
    scores, truth = view.scores(), truth_of(here, shared)
    found = average_case_client(view).canaries
    inverse = np.linalg.inv((1 - shared) * np.eye(ROUNDS) + shared)
    theory = np.sqrt(np.einsum("ct,ts,cs->c", here, inverse, here)).mean() / NOISE
    assert scores.unobserved is not None
    proved = [lower_bound(scores, DELTA, method=method) > truth for method in METHODS]
    return (
        scores.observed.mean() * scores.unit / theory,
        float(np.mean(scores.unobserved**2)),
        found.low <= truth <= found.high,
        above,
        *proved,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--canaries", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    print("   dim  R shared momentum |  mean   null  covers  so far  proved, proved by gdp")
    covered: list[float] = []
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        for dim in (650, 4000):
            for often in (1, 5, 30):
                for shared, momentum in ((0.0, 0.0), (0.1, 0.9), (0.5, 0.95)):
                    one = functools.partial(
                        run,
                        dim=dim,
                        canaries=asked.canaries,
                        often=often,
                        shared=shared,
                        momentum=momentum,
                    )
                    rows = np.array(pool.map(one, range(asked.runs), chunksize=10))
                    mean, null, *shares = rows.mean(axis=0)
                    covered.append(shares[0])
                    listed = "".join(f"{share:8.1%}" for share in shares)
                    print(
                        f"{dim:6}{often:3}{shared:7}{momentum:9} | {mean:6.3f} {null**0.5:6.3f}"
                        f"{listed}",
                        flush=True,
                    )
    print(f"covered, all together: {np.mean(covered):.2%}")


if __name__ == "__main__":
    main()
