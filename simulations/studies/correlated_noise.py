"""What the final model tells if the noise of rounds is correlated, in the limit of a large model.

One participation in the first round of T, noise alone, z = 0.25, no momentum, δ = 1e-5. Who sees
every round's model learns the same from each of these mechanisms. Who sees only the final model is
hidden by the noise of the sum of all rounds, and that is what correlated noise makes small. "error"
is the root mean square error of the rounds' prefix sums, over z.

    python simulations/studies/correlated_noise.py    # a minute; --rounds 256 for a look

Measured: the last table of docs/notes/correlated-noise.md.
"""

import argparse

import numpy as np
import scipy

from fl_epe import epsilon_two_gaussians
from fl_epe.auditing import Adversary, seen_by
from fl_epe.checks import Floats
from fl_epe.limit import expected_record
from fl_epe.mechanism import parse_strategy
from fl_epe.schedules import ShuffledEpochs

NOISE, DELTA = 0.25, 1e-5
MECHANISMS = (
    "banded:bands=1",
    "banded:bands=8",
    "banded:bands=64",
    "tree",
    "toeplitz",
    "blt:buffers=3",
)


def prefix_errors(matrix: Floats) -> Floats:
    """Standard deviations of the noise in the sums of the first 1 … T rounds, for Z of variance 1.

    Rows' lengths of ``A·C⁻¹``, where A is the prefix-sum matrix; their root mean square is the
    strategy's error.
    """
    inverse = scipy.linalg.solve_triangular(
        matrix, np.eye(len(matrix)), lower=True
    )
    return np.asarray(np.linalg.norm(np.cumsum(inverse, axis=0), axis=1))


def row(mechanism: str, rounds: int) -> tuple[float, float, float]:
    """ε for every round's model and for the final one, and the error."""
    made = parse_strategy(mechanism, rounds)
    assert made is not None
    strategy = made.matrix()
    record = expected_record(
        ShuffledEpochs(rounds, 1), NOISE, DELTA, rounds, strategy=strategy
    )
    final, every_round = (
        seen_by(record, Adversary(sees)).expected_scores.by_round
        for sees in ("final", "all")
    )
    shifts = np.array([np.sqrt(every_round[0]), final[0]])
    every, last = np.asarray(epsilon_two_gaussians(0, 1, shifts, 1, DELTA))
    return (
        float(every),
        float(last),
        float(np.sqrt(np.mean(prefix_errors(strategy) ** 2))),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2048)
    rounds = parser.parse_args(arguments).rounds
    print("mechanism        every round: ε  final model: ε   error")
    for mechanism in MECHANISMS:
        every, final, error = row(mechanism, rounds)
        name = "independent" if mechanism == "banded:bands=1" else mechanism
        print(f"{name:16}{every:15.2f}{final:16.3f}{error:8.2f}", flush=True)


if __name__ == "__main__":
    main()
