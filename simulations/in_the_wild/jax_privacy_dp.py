r"""JAX Privacy 2.0.0: clipping and noise of a step, which seem sound.

    pip install --no-deps --target build/wild/jax jax-privacy==2.0.0 jax jaxlib ml_dtypes \
        opt_einsum optax chex absl-py toolz drjax jaxtyping wadler_lindig einshape
    PYTHONPATH=build/wild/jax python simulations/in_the_wild/jax_privacy_dp.py --seeds 20

A step sums clipped gradients of examples and adds noise, independent or correlated by a Toeplitz
matrix; the claim is ε of one participation by the Gaussian mechanism with that noise multiplier.

Expected with 150 observations::

                                                  claimed   proved by       severity
    clipped_grad, gaussian_privatizer                4.38     1.02 weighted none found
    matrix_factorization_privatizer                  4.38     1.38 weighted none found
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fl_epe.accounting import gaussian_epsilon
from fl_epe.checks import Floats
from simulations.in_the_wild import wild

DIM, ROWS, ROUNDS = 8, 5, 8


def leads() -> list[wild.Lead]:
    """Clipped gradients with Gaussian noise, and a matrix mechanism over rounds."""
    import jax
    import jax.numpy as jnp
    from jax_privacy import clipping, noise_addition
    from jax_privacy.matrix_factorization import toeplitz

    seeds = np.random.default_rng()
    gradients = clipping.clipped_grad(
        lambda w, x: jnp.vdot(w, x), l2_clip_norm=1.0
    )
    stddev = float(gradients.sensitivity())

    @jax.jit  # type: ignore[untyped-decorator]
    def one_step(batch: Any, mask: Any, seed: Any) -> Any:
        total = gradients(jnp.zeros(DIM), batch, is_padding_example=mask)
        privatizer = noise_addition.gaussian_privatizer(
            stddev=stddev, prng_key=jax.random.key(seed)
        )
        noisy, _ = privatizer.update(total, privatizer.init(total))
        return noisy

    def step(updates: Floats) -> Floats:
        batch, mask = np.zeros((ROWS, DIM)), np.arange(ROWS) >= len(updates)
        batch[: len(updates)] = updates
        return np.asarray(
            one_step(batch, mask, int(seeds.integers(2**31))), np.float64
        )

    coefficients = toeplitz.optimal_max_error_strategy_coefs(ROUNDS)
    matrix = toeplitz.materialize_lower_triangular(coefficients, ROUNDS)
    matrix = np.asarray(matrix) / np.linalg.norm(np.asarray(matrix)[:, 0])
    inverse = jnp.asarray(np.linalg.inv(matrix))
    whitened = matrix @ np.eye(ROUNDS)[0]  # of a client in the first round

    @jax.jit  # type: ignore[untyped-decorator]
    def all_rounds(total: Any, seed: Any) -> Any:
        privatizer = noise_addition.matrix_factorization_privatizer(
            inverse, stddev=1.0, prng_key=jax.random.key(seed)
        )
        state, released = privatizer.init(total), []
        for t in range(ROUNDS):
            noisy, state = privatizer.update(total * (t == 0), state)
            released.append(noisy[0])
        return jnp.stack(released)

    def rounds(updates: Floats) -> Floats:
        total = updates.sum(axis=0)
        return np.asarray(
            all_rounds(total, int(seeds.integers(2**31))), np.float64
        )

    claim, other_updates = (
        gaussian_epsilon(1.0, wild.DELTA),
        0.1 * np.eye(DIM)[1:ROWS],
    )
    game = wild.played(step, 5 * np.eye(DIM)[0], others=other_updates)
    matrix_game = wild.played(
        rounds, np.eye(ROUNDS)[0], weights=matrix.T @ whitened
    )
    return [
        wild.Lead("clipped_grad, gaussian_privatizer", claim, game),
        wild.Lead("matrix_factorization_privatizer", claim, matrix_game),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("jax-privacy", leads, observations=1000))
