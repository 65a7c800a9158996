"""The banded matrix mechanism of pfl-research 0.6, as released: it takes the wrong factor.

The noise of its rounds is ``C⁻¹Z``, and what a client adds to its rounds S is hidden as well as
``‖C·1_S‖`` is small: the accounting takes the columns of C to have length 1. pfl finds ``X = CᵀC``
with ones on its diagonal, and then takes ``numpy.linalg.cholesky(X)``, a factor ``X = L·Lᵀ``: its
ROWS have length 1, its columns more. The factor that was meant is the lower triangular one with
``X = CᵀC``.

Here their class runs as it is, with its own optimizer and noise, and canaries add a random vector
of the clip norm in the rounds in which a client may take part; then the same with the other factor.
The score is whitened (docs/notes/whitening.md): it knows nothing of C. "proved" holds with 99%
confidence, by the exact null.

    pip install --no-deps pfl==0.6.0 prv-accountant==0.2.0
    python simulations/in_the_wild/pfl_banded.py    # three minutes; --seeds 1 for a look

Expected::

    rounds apart factor     | ‖C·1‖ claimed ε   score  proved ε  disproved      s
        64    64 released   |  2.83      4.38    2.81      9.17    20 of 20    0.6
        64    64 corrected  |  1.00      4.38    0.98      1.77     0 of 20    0.5
       200    50 released   |  4.00     10.00    3.99     16.11    20 of 20    3.3
       200    50 corrected  |  2.00     10.00    2.01      5.20     0 of 20    3.5
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe import RoundFacts, RunAuditor
from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import EVERY_ROUND, find_evidence, scores_of, seen_by

Floats = NDArray[np.float64]
AddNoise = Callable[[NDArray[np.float32]], NDArray[np.floating]]

DIM, CANARIES, NOISE, DELTA, CONFIDENCE = 20_000, 300, 1.0, 1e-5, 0.99
SETTINGS = (
    (64, 64),
    (200, 50),
)  # rounds, and the least from one participation to the next


def meant(factor: Floats) -> Floats:
    """The lower triangular C with ``CᵀC = L·Lᵀ`` for a lower triangular L."""
    product = factor @ factor.T
    return np.asarray(np.linalg.cholesky(product[::-1, ::-1]).T[::-1, ::-1])


def sensitivity(factor: Floats, separation: int) -> float:
    """Norm of what a client adds by its most exposing rounds, a separation apart."""
    starts = range(min(separation, len(factor)))
    return max(
        float(np.linalg.norm(factor[:, s::separation].sum(axis=1)))
        for s in starts
    )


def audit(
    add_noise: AddNoise, rounds: int, separation: int, seed: int
) -> tuple[float, float, float]:
    """The canaries' mean score, what is proved of ε, and the claimed ε of the accounting."""
    auditor = RunAuditor(CANARIES, 0, seed=seed, delta=DELTA, window=rounds)
    theta = np.zeros(DIM)
    auditor.begin(theta)
    total = auditor.canaries.combine(np.ones((1, CANARIES)))[0]
    for t in range(rounds):
        present = range(CANARIES) if t % separation == 0 else ()
        theta = theta + add_noise(
            total if present else np.zeros(DIM, np.float32)
        )
        auditor.observe(
            theta, RoundFacts(present, 1.0, clip_norm=1.0, replies=1.0)
        )
    record = auditor.record()
    claimed = claim(rounds, separation)
    evidence = find_evidence(record, claimed, DELTA, CONFIDENCE)
    scores = scores_of(seen_by(record, EVERY_ROUND))
    return (
        float(scores.observed.mean() * scores.unit),
        evidence.lower_bound,
        claimed,
    )


def claim(rounds: int, separation: int) -> float:
    """ε of as many Gaussian mechanisms as a client may take part in."""
    return gaussian_epsilon(NOISE, DELTA, -(-rounds // separation))


def released(rounds: int, separation: int) -> Any:
    """A new mechanism of pfl's, as it is."""
    from pfl.internal.ops import pytorch_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism

    set_framework_module(pytorch_ops)
    with tempfile.TemporaryDirectory() as folder:
        before = os.getcwd()
        os.chdir(folder)  # it writes its factor to a folder below
        try:
            return BandedMatrixFactorizationMechanism(
                1.0,
                rounds,
                separation,
                lambda _: SimpleNamespace(cohort_noise_parameter=NOISE),
            )
        finally:
            os.chdir(before)


def corrected(rounds: int, separation: int) -> Any:
    """The same with the factor that was meant."""
    from pfl.privacy.ftrl_mechanism import ForwardSubstitution

    mechanism = released(rounds, separation)
    mechanism._C = meant(mechanism.query_matrix.astype(np.float64)).astype(
        np.float32
    )
    mechanism._C_inv_noise = ForwardSubstitution(mechanism._C, None)
    return mechanism


def noise_of(mechanism: Any, seed: int) -> AddNoise:
    """What pfl's server makes of a round's sum."""
    import torch
    from pfl.stats import MappedVectorStatistics

    seeds = np.random.default_rng((seed, 1))

    def add_noise(total: NDArray[np.float32]) -> NDArray[np.floating]:
        statistics = MappedVectorStatistics(
            {"update": torch.from_numpy(total.copy())}, weight=1
        )
        noisy, _ = mechanism.add_noise(
            statistics, 1, seed=int(seeds.integers(2**31))
        )
        return np.asarray(noisy["update"])

    return add_noise


def main() -> None:
    """Print both settings, as released and with the other factor."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    print(
        "rounds apart factor     | ‖C·1‖ claimed ε   score  proved ε  disproved      s"
    )
    for rounds, separation in SETTINGS:
        for name, make in (("released", released), ("corrected", corrected)):
            began, rows = time.perf_counter(), []
            for seed in range(seeds):
                mechanism = make(rounds, separation)
                rows.append(
                    audit(noise_of(mechanism, seed), rounds, separation, seed)
                )
            score, proved, claimed = np.array(rows).T
            size = sensitivity(mechanism.query_matrix, separation)
            print(
                f"{rounds:6}{separation:6} {name:10} |{size:6.2f}{claimed[0]:10.2f}"
                f"{score.mean():8.2f}{np.median(proved):10.2f}"
                f"{int((proved > claimed).sum()):6} of {seeds}"
                f"{(time.perf_counter() - began) / seeds:7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
