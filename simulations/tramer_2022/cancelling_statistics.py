"""Statistics that look for one kind of mistake: noise that repeats, is shared, or can be guessed.

The inner product with the canary (`ALONG_CANARY`) is the best statistic against Gaussian noise
that is fresh in each step and each coordinate. Noise that is not may cancel when two parts of what
was released are subtracted. Each of these statistics is as valid as the inner product: whoever sees
the release can compute it.

Examples:
    >>> import numpy as np
    >>> noise, canary = np.array([0.7, -0.2, 0.7, -0.2]), np.array([1.0, 0.0, 0.0, 0.0])
    >>> round(between_tensors(dim=4).score((canary + noise)[None], canary[None]), 12)
    1.0
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.conformance.games import Statistic

Matrix = NDArray[np.float64]


def between_steps(lag: int) -> Statistic:
    """What is released in a step less what was released ``lag`` steps before, along the canary's.

    Noise that a resumed run draws once more cancels. The canary must have another direction in each
    step, or it cancels as well; updates of others must be the same in each step.

    Raises:
        ValueError: if ``lag`` < 1.
    """
    if lag < 1:
        raise ValueError(f"Expected lag={lag} >= 1.")

    def score(released: Matrix, canaries: Matrix) -> float:
        if released.shape[0] <= lag:
            raise ValueError(f"Expected steps={released.shape[0]} > lag={lag}.")
        return _along(
            released[lag:] - released[:-lag], canaries[lag:] - canaries[:-lag]
        )

    return Statistic(f"between steps {lag} apart", score)


def between_tensors(dim: int, tensors: int = 2) -> Statistic:
    """Each tensor less the next one, along the canary's: noise that tensors share cancels.

    A canary that is the same in all tensors, such as a constant, cancels as well and is refused.

    Args:
        dim: number of entries of a release, which are those of ``tensors`` tensors of one size.
        tensors: at least 2.

    Raises:
        ValueError: if ``dim`` entries cannot be partitioned.
    """
    if tensors < 2 or dim % tensors:
        raise ValueError(
            f"Expected dim={dim} to be a multiple of tensors={tensors} >= 2."
        )
    size = dim // tensors

    def score(released: Matrix, canaries: Matrix) -> float:
        steps = canaries[:, size:] - canaries[:, :-size]
        if canaries.any() and not steps.any():
            raise ValueError(
                "Expected a canary that differs between tensors: the difference cancels this one."
            )
        return _along(released[:, size:] - released[:, :-size], steps)

    return Statistic("between tensors", score)


def nearest_noise(
    noises: ArrayLike, absent: ArrayLike, shift: ArrayLike
) -> Statistic:
    """How much nearer to noise that can be drawn a release is with the canary than without it.

    Of every step's release the adversary takes off what it would be without noise, with the canary
    and without it, and looks up the nearest of all the noise that can be drawn.

    Args:
        noises: all noise that can be drawn, in the unit of the release, shape (m, d).
        absent: the noiseless release without the canary, shape (d,).
        shift: what the canary adds to it, shape (d,).
    """
    table, base, step = (
        np.array(values, np.float64) for values in (noises, absent, shift)
    )

    def distance(rest: Matrix) -> float:
        return float(np.sqrt(((table - rest) ** 2).sum(axis=1).min()))

    def score(released: Matrix, canaries: Matrix) -> float:
        return sum(
            distance(row - base) - distance(row - base - step)
            for row in released
        )

    return Statistic(f"nearest of {len(table)} noises", score)


def whitened(factor: ArrayLike, workload: ArrayLike) -> Statistic:
    """The likelihood ratio's statistic for steps whose noise is ``factor`` times fresh noise.

    For a canary that takes part in one step, whose direction the releases of all steps are read
    along.

    Args:
        factor: F, shape (s, s), of full rank: step t has the noise ``sum_i F[t, i] n_i``.
        workload: A, shape (s, s): what an update in step i adds to the release of step t.
    """
    inverse = np.linalg.inv(np.array(factor, np.float64))
    expected = inverse @ np.array(workload, np.float64)

    def score(released: Matrix, canaries: Matrix) -> float:
        at = int(np.argmax(np.abs(canaries).max(axis=1)))
        unit = canaries[at] / np.linalg.norm(canaries[at])
        return float(expected[:, at] @ inverse @ (released @ unit))

    return Statistic("whitened", score)


def _along(released: Matrix, canaries: Matrix) -> float:
    """Inner product of each row with a unit vector along its canary, summed up."""
    norms = np.linalg.norm(canaries, axis=1)
    is_present = norms > 0
    products = (released * canaries).sum(axis=1)[is_present]
    return float((products / norms[is_present]).sum())
