r"""TensorFlow Privacy 0.9.0: norms of fast clipping, averages without noise, a telling divisor.

    pip install --no-deps --target build/wild/tf_privacy tensorflow-privacy==0.9.0 \
        tensorflow-cpu==2.21.0 tf_keras==2.21.0 astunparse flatbuffers gast h5py ml_dtypes \
        opt_einsum six termcolor wrapt
    PYTHONPATH=build/wild/tf_privacy python simulations/in_the_wild/tf_privacy_dp.py --seeds 20

With a registry of layers `DPModel` computes norms of gradients layer by layer, and misses two
factors. ``loss_weights`` multiply the loss whose gradients are released, and not the one whose
norms are taken: with a weight of w an example counts w times. The squared norms of a layer's k
calls are added, where its gradient is the sum of k parts: the norm is up to √k times as large.
(The repository has repaired the latter since, in no release so far.) Without the registry both are
right.

Nothing refuses `BatchNormalization`, whose averages of inputs are weights of the model and get no
noise. The library's statement speaks of all checkpoints.

The noisy sum is divided by the number of examples that came. Of d weights, how much the numbers
vary tells n examples from n − 1 with μ ≈ √(2d)/n, whatever the noise multiplier is. The statement
claims add-or-remove-one adjacency, and has an ε for Poisson sampling, under which the size of a
batch is secret. Where it is public it tells nothing; that is the control in the row below.

Claims: of queries, what the RDP accountant says of the event that they return; of the tree, what
the library's own accountant says; of steps, what `compute_dp_sgd_privacy_statement` prints.
The scores of the tree weigh its rounds by the inverse of their noise's covariance, for which the
tree is run on unit vectors instead of noise.

Expected with 1000 observations; each control passes in 20 of 20 seeds::

                                                  claimed   proved by       severity
    GaussianSumQuery                                 4.73     3.61 gdp      none found
    QuantileAdaptiveClipSumQuery, σ_b = 0.5          7.08     5.08 gdp      none found
    TreeResidualSumQuery, 8 rounds, z = 2            4.73     2.71 gdp      none found
    DPKerasSGDOptimizer                              4.73     3.51 gdp      none found
    VectorizedDPKerasSGDOptimizer                    4.73     2.91 gdp      none found
    4,000 weights, 5 or 4 examples, z = 4            1.01     5.81 weighted critical
    4,000 weights, 5 examples, z = 4                 1.01        0 weighted none found
    DPModel, loss_weights=[10]                       4.73     3.61 gdp      none found
    DPModel, fast clipping                           4.73     2.78 gdp      none found
    the same, loss_weights=[10]                      4.73     33.5 gdp      critical
    the same, a layer called 8 times                 4.73     11.8 gdp      critical
    averages of BatchNormalization, z = 4            1.01        6 weighted critical
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_epe.auditing import Scores
from fl_epe.checks import Floats
from simulations.in_the_wild import wild

DIM, ROWS, ROUNDS = 8, 5, 8
WIDE = 4000  # weights of the wide model
CANARY, OTHERS = 5 * np.eye(DIM)[0], 0.1 * np.eye(DIM)[1:ROWS]

Make = Callable[[], wild.Release]
"""Builds what a game plays; TensorFlow seeds the noise of a graph when it traces it."""


def tensorflow() -> Any:
    """TensorFlow with the Keras that the library was written for."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    vars(sys)["skip_tf_privacy_import"] = (
        True  # its own switch: import only what is asked for
    )
    return importlib.import_module("tensorflow")


def lead(
    name: str,
    claim: float,
    make: Make,
    *,
    canary: Floats = CANARY,
    played: dict[str, Any] | None = None,
    method: str | None = "gdp",
    **options: Any,
) -> wild.Lead:
    """A lead whose noise repeats with the game's seed; most of them add Gaussian noise."""

    def game(observations: int, seed: int) -> Scores:
        tensorflow().random.set_seed(zlib.crc32(f"{name} {seed}".encode()))
        return wild.played(
            make(), canary, **{"others": OTHERS, **(played or {})}
        )(observations, seed)

    return wild.Lead(name, claim, game, method=method, **options)


def accounted(event: Any) -> float:
    """ε of an event that a query returned."""
    import dp_accounting

    return float(
        dp_accounting.rdp.RdpAccountant().compose(event).get_epsilon(wild.DELTA)
    )


def stated(noise: float) -> float:
    """ε of one step with all examples, as the library's statement says it."""
    from tensorflow_privacy.privacy.analysis import (
        compute_dp_sgd_privacy_lib as library,
    )

    statement = library.compute_dp_sgd_privacy_statement(
        ROWS, ROWS, 1, noise, wild.DELTA, used_microbatching=False
    )
    match = re.search(
        r"add-or-remove-one.*once per epoch:\s*([\d.]+)", statement, re.DOTALL
    )
    assert match is not None
    return float(match[1])


def result(query: Any, updates: Any) -> Any:
    """The noisy sum of a query, its next state and its event."""
    state = query.initial_global_state()
    params, sample = (
        query.derive_sample_params(state),
        query.initial_sample_state(updates[0]),
    )
    for update in updates:
        sample = query.accumulate_record(params, sample, update)
    return query.get_noised_result(sample, state)


def summed() -> wild.Lead:
    """A noisy sum of clipped records."""
    tf = tensorflow()
    from tensorflow_privacy.privacy.dp_query import gaussian_query

    query = gaussian_query.GaussianSumQuery(l2_norm_clip=1.0, stddev=1.0)

    def make() -> wild.Release:
        @tf.function(input_signature=[tf.TensorSpec((None, DIM))])  # type: ignore[untyped-decorator]
        def one_sum(updates: Any) -> Any:
            noisy, _, _ = result(query, updates)
            return noisy

        return lambda updates: np.asarray(one_sum(updates), np.float64)

    _, _, event = result(query, tf.zeros((1, DIM)))
    return lead("GaussianSumQuery", accounted(event), make)


def adaptive() -> wild.Lead:
    """A noisy sum and the clip norm that it moves to, with little noise on the count."""
    tf = tensorflow()
    from tensorflow_privacy.privacy.dp_query import (
        quantile_adaptive_clip_sum_query as queries,
    )

    count_noise, expected = 0.5, 10
    query = queries.QuantileAdaptiveClipSumQuery(
        initial_l2_norm_clip=1.0,
        noise_multiplier=1.0,
        target_unclipped_quantile=0.5,
        learning_rate=1.0,
        clipped_count_stddev=count_noise,
        expected_num_records=expected,
    )

    def make() -> wild.Release:
        @tf.function(input_signature=[tf.TensorSpec((None, DIM))])  # type: ignore[untyped-decorator]
        def one_sum(updates: Any) -> Any:
            noisy, state, _ = result(query, updates)
            return noisy, state.sum_state.l2_norm_clip

        def release(updates: Floats) -> Floats:
            noisy, clip_norm = one_sum(updates[:, :DIM])
            count = -expected * np.log(
                float(clip_norm)
            )  # of ±½, as who sees it would compute it
            return np.append(np.asarray(noisy, np.float64), count)

        return release

    _, _, event = result(query, tf.zeros((1, DIM)))
    canary = np.append(0.999 * np.eye(DIM)[0], 0.0)  # not clipped
    clipped, unclipped = 10 * np.eye(DIM)[1:6], 0.1 * np.eye(DIM)[1:6]
    other_updates = np.hstack(
        [np.vstack([clipped, unclipped]), np.zeros((10, 1))]
    )
    weights = np.append(np.eye(DIM)[0], 0.5 / count_noise**2)
    played = {"others": other_updates, "weights": weights}
    name = f"QuantileAdaptiveClipSumQuery, σ_b = {count_noise:g}"
    return lead(name, accounted(event), make, canary=canary, played=played)


def tree() -> wild.Lead:
    """Sums with the noise of a tree over rounds, in one of which a record takes part."""
    tf = tensorflow()
    import dp_accounting
    from tensorflow_privacy.privacy.analysis import (
        tree_aggregation_accountant as accountant,
    )
    from tensorflow_privacy.privacy.dp_query import restart_query as restarts
    from tensorflow_privacy.privacy.dp_query import tree_aggregation as trees
    from tensorflow_privacy.privacy.dp_query import (
        tree_aggregation_query as queries,
    )

    class Nodes(trees.ValueGenerator):  # type: ignore[misc]
        """Instead of the noise of the i-th node, the i-th unit vector."""

        def initialize(self) -> Any:
            return tf.constant(0)

        def next(self, state: Any) -> tuple[Any, Any]:
            return tf.one_hot(state, 4 * ROUNDS), state + 1

    nodes, sums = trees.EfficientTreeAggregator(Nodes()), []
    state = nodes.init_state()
    for _ in range(ROUNDS):
        noise, state = nodes.get_cumsum_and_update(state)
        sums.append(np.asarray(noise, np.float64))
    factor = np.diff(sums, axis=0, prepend=0)
    precision = np.linalg.inv(factor @ factor.T)
    audited_round = int(
        np.argmax(np.diag(precision))
    )  # the round in which it shows most

    def make() -> wild.Release:
        query = restarts.RestartQuery(
            queries.TreeResidualSumQuery.build_l2_gaussian_query(
                clip_norm=1.0,
                noise_multiplier=2.0,
                record_specs=tf.TensorSpec((DIM,)),
                noise_seed=int(
                    tf.random.uniform((), maxval=2**62, dtype=tf.int64)
                ),
            ),
            restarts.PeriodicRoundRestartIndicator(ROUNDS),
        )
        state = query.initial_global_state()

        @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
        def one_tree(state: Any, updates: Any) -> Any:
            params, released = query.derive_sample_params(state), []
            for t in range(ROUNDS):
                sample = query.initial_sample_state(updates[0])
                if t == audited_round:
                    for update in updates:
                        sample = query.accumulate_record(params, sample, update)
                noisy, state, _ = query.get_noised_result(sample, state)
                released.append(noisy[0])
            return tf.stack(released), state

        def release(updates: Floats) -> Floats:
            nonlocal state  # each observation is a tree of its own
            seen, state = one_tree(state, tf.constant(updates, tf.float32))
            return np.asarray(seen, np.float64)

        return release

    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    rdp = accountant.compute_rdp_tree_restart(2.0, [ROUNDS], orders)
    claim, _ = dp_accounting.rdp.compute_epsilon(orders, rdp, wild.DELTA)
    name = f"TreeResidualSumQuery, {ROUNDS} rounds, z = 2"
    return lead(
        name, float(claim), make, played={"weights": precision[audited_round]}
    )


def optimized(kind: Callable[..., Any], noise: float, size: int = DIM) -> Make:
    """One step of an optimizer for ``size`` weights, from gradients of examples."""
    tf = tensorflow()

    def make() -> wild.Release:
        optimizer = kind(
            l2_norm_clip=1.0, noise_multiplier=noise, learning_rate=1.0
        )
        weights = tf.Variable(tf.zeros(size))

        @tf.function(input_signature=[tf.TensorSpec((None, DIM))])  # type: ignore[untyped-decorator]
        def one_step(gradients: Any) -> Any:
            weights.assign(tf.zeros(size))
            optimizer.minimize(
                lambda: tf.linalg.matvec(gradients, weights[:DIM]), [weights]
            )
            return -weights

        return lambda updates: np.asarray(one_step(updates), np.float64)

    return make


def spread(make: Make) -> Make:
    """The same, of which is only told how small the numbers are, in the canary's direction."""

    def make_told() -> wild.Release:
        release = make()
        return lambda updates: (
            -np.log(np.square(release(updates)).mean()) * np.eye(DIM)[0]
        )

    return make_told


def trained(
    noise: float,
    *,
    fast: bool = True,
    calls: int = 1,
    averages: bool = False,
    loss_weights: list[float] | None = None,
) -> Make:
    """One step of training of a linear model, whose gradients are the updates.

    Args:
        noise: the noise multiplier.
        fast: whether the norms of gradients are computed with the registry of layers.
        calls: how often its layer is called, each time with an input of its own.
        averages: whether inputs are normalized, and the averages of that are what is released.
        loss_weights: as Keras takes them.
    """
    tf = tensorflow()
    from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
    from tensorflow_privacy.privacy.keras_models import dp_keras_model

    def make() -> wild.Release:
        layers = tf.keras.layers
        normalize = layers.BatchNormalization(center=False, scale=False)
        dense = layers.Dense(1, use_bias=False)
        inputs = [layers.Input((DIM,)) for _ in range(calls)]
        outputs = [
            dense(normalize(each) if averages else each) for each in inputs
        ]
        model = dp_keras_model.DPModel(
            l2_norm_clip=1.0,
            noise_multiplier=noise,
            use_xla=False,
            layer_registry=layer_registry.make_default_layer_registry()
            if fast
            else None,
            inputs=inputs,
            outputs=layers.add(outputs) if calls > 1 else outputs,
        )
        model.compile(
            tf.keras.optimizers.legacy.SGD(1.0),
            tf.keras.losses.MeanSquaredError(),
            loss_weights=loss_weights,
        )

        @tf.function(input_signature=[tf.TensorSpec((ROWS, DIM))])  # type: ignore[untyped-decorator]
        def one_step(updates: Any) -> Any:
            for weight in model.weights:
                weight.assign(tf.zeros_like(weight))
            model.train_step(([updates] * calls, tf.fill((ROWS, 1), 0.5)))
            return normalize.moving_mean if averages else dense.kernel[:, 0]

        return lambda updates: np.asarray(one_step(updates), np.float64)

    return make


def leads() -> list[wild.Lead]:
    """Three queries, two optimizers, and a model with either way of clipping."""
    tensorflow()
    from tensorflow_privacy.privacy.optimizers import (
        dp_optimizer_keras as looped,
    )
    from tensorflow_privacy.privacy.optimizers import (
        dp_optimizer_keras_vectorized as vectorized,
    )

    loop, vector = (
        looped.DPKerasSGDOptimizer,
        vectorized.VectorizedDPKerasSGDOptimizer,
    )
    same_size = {"adjacency": "zero-out"}

    def step(name: str, make: Make, **options: Any) -> wild.Lead:
        return lead(name, stated(1.0), make, played=same_size, **options)

    def assumed_nothing(name: str, make: Make, **options: Any) -> wild.Lead:
        return lead(f"{name}, z = 4", stated(4.0), make, method=None, **options)

    wide, public = (
        spread(optimized(vector, 4.0, WIDE)),
        "none where the batch's size is public",
    )
    later = "repaired later, not released"
    return [
        summed(),
        adaptive(),
        tree(),
        step("DPKerasSGDOptimizer", optimized(loop, 1.0)),
        step("VectorizedDPKerasSGDOptimizer", optimized(vector, 1.0)),
        assumed_nothing(
            "4,000 weights, 5 or 4 examples", wide, defect=True, note=public
        ),
        assumed_nothing("4,000 weights, 5 examples", wide, played=same_size),
        step(
            "DPModel, loss_weights=[10]",
            trained(1.0, fast=False, loss_weights=[10.0]),
        ),
        step("DPModel, fast clipping", trained(1.0)),
        step(
            "the same, loss_weights=[10]",
            trained(1.0, loss_weights=[10.0]),
            defect=True,
        ),
        step(
            "the same, a layer called 8 times",
            trained(1.0, calls=8),
            defect=True,
            note=later,
        ),
        assumed_nothing(
            "averages of BatchNormalization",
            trained(4.0, averages=True),
            played=same_size,
            defect=True,
        ),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("tensorflow-privacy", leads, observations=1000))
