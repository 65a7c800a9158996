"""Every lower bound on the same data as its peers.

500 + 500 scores N(0, 1) and N(μ, 1), one-sided α = 0.05, δ = 10⁻⁵ ("katz-log": δ = 0).
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fl_epe import epsilon_two_gaussians
from fl_epe.bounds import BOUNDS, epsilon_lower_bound

CANARIES = 500
DELTA = 1e-5
DIM = 100_000
SHIFTS = (0.0, 0.3, 1.0, 2.0, 4.0)


def simulate(method: str, shift: float, trials: int, *, exact_null: bool) -> np.ndarray:
    """Bounds of independent trials; the scores depend on the shift and the trial only."""
    bounds = np.empty(trials)
    delta = 0.0 if method == "katz-log" else DELTA
    for trial in range(trials):
        rng = np.random.default_rng((2026, trial))
        unobserved = rng.normal(0.0, 1.0, CANARIES)
        observed = rng.normal(shift, 1.0, CANARIES)
        if exact_null:
            cosines = observed / np.sqrt(DIM)
            bounds[trial] = epsilon_lower_bound(
                cosines, None, delta, dim=DIM, method=method, seed=trial
            )
        else:
            bounds[trial] = epsilon_lower_bound(
                observed, unobserved, delta, method=method, seed=trial
            )
    return bounds


def needs_unobserved(method: str) -> bool:
    """Whether the method refuses the exact null."""
    try:
        epsilon_lower_bound([0.01, 0.02], None, DELTA, dim=DIM, method=method)
    except ValueError as error:
        return "unobserved" in str(error)
    return False


def main() -> None:
    """Print one table for two groups of scores and one for the exact null."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    trials = parser.parse_args().trials
    truth = {shift: float(epsilon_two_gaussians(0, 1, shift, 1, DELTA)) for shift in SHIFTS}
    for exact_null in (False, True):
        print(f"\n{'exact null' if exact_null else 'two groups'}, {trials} trials")
        head = "  ".join(f"μ={shift:<3} (ε={truth[shift]:6.3f})" for shift in SHIFTS)
        print(f"{'method':16} {'valid':5}  {head}  ms    (median, share above ε)")
        for method, bound in BOUNDS.items():
            if exact_null and needs_unobserved(method):
                continue
            start, cells = time.perf_counter(), []
            for shift in SHIFTS:
                # Pure DP of two Gaussians is infinite, except where they are the same.
                limit = np.inf if method == "katz-log" and shift > 0 else truth[shift]
                values = simulate(method, shift, trials, exact_null=exact_null)
                cells.append(f"{np.median(values):9.3f} {np.mean(values > limit):7.3f}")
            spent = 1e3 * (time.perf_counter() - start) / (trials * len(SHIFTS))
            valid = "yes" if bound.valid else "no"
            print(f"{method:16} {valid:5}  {'  '.join(cells)}  {spent:.0f}", flush=True)


if __name__ == "__main__":
    main()
