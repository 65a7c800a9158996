r"""TensorFlow Privacy 0.9.0: fast clipping, averages without noise, and a divisor that tells.

    pip install --no-deps --target build/wild/tf_privacy tensorflow-privacy==0.9.0 \
        tensorflow-cpu==2.21.0 tf_keras==2.21.0 astunparse flatbuffers gast h5py ml_dtypes \
        opt_einsum six termcolor wrapt
    PYTHONPATH=build/wild/tf_privacy python simulations/in_the_wild/tf_privacy_dp.py --seeds 20
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import wild

from fl_epe.auditing import Scores
from fl_epe.checks import Floats

DIM, ROWS, ROUNDS = 8, 5, 8
WEIGHTS = 4000  # of the wide model
CANARY = 5 * np.eye(DIM)[0]
OTHERS = 0.1 * np.eye(DIM)[1:ROWS]

Make = Callable[[], wild.Release]
"""Builds and traces what a game releases; TensorFlow seeds noise where a graph is traced."""


def tensorflow() -> Any:
    """TensorFlow, with the Keras that the library was written for."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    vars(sys)["skip_tf_privacy_import"] = True  # its own switch: import only what is asked for
    return importlib.import_module("tensorflow")


def seeded(make: Make, canary: Floats, **options: Any) -> wild.Game:
    """A game whose noise repeats with its seed."""

    def game(observations: int, seed: int) -> Scores:
        tensorflow().random.set_seed(seed)
        return wild.played(make(), canary, **options)(observations, seed)

    return game


def accounted(event: Any) -> float:
    """ε of an event that a query returned."""
    import dp_accounting

    return float(dp_accounting.rdp.RdpAccountant().compose(event).get_epsilon(wild.DELTA))


def stated(noise: float) -> float:
    """ε of one step with all examples, as the library's statement says it."""
    from tensorflow_privacy.privacy.analysis import compute_dp_sgd_privacy_lib as library

    statement = library.compute_dp_sgd_privacy_statement(
        ROWS, ROWS, 1, noise, wild.DELTA, used_microbatching=False
    )
    found = re.search(r"once per epoch:\s*([\d.]+)", statement)
    assert found and "add-or-remove-one" in statement
    return float(found[1])


def result(query: Any, updates: Any) -> Any:
    """The noisy sum of a query, its next state and its event."""
    state = query.initial_global_state()
    params, sample = query.derive_sample_params(state), query.initial_sample_state(updates[0])
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

    *_, event = result(query, tf.zeros((1, DIM)))
    game = seeded(make, CANARY, others=OTHERS)
    return wild.Lead("GaussianSumQuery, z = 1", accounted(event), game, method="gdp")


def adaptive() -> wild.Lead:
    """A noisy sum and the clip norm that it moves to, with little noise on the count."""
    tf = tensorflow()
    from tensorflow_privacy.privacy.dp_query import quantile_adaptive_clip_sum_query as adaptive

    count_noise, expected = 0.5, 10
    query = adaptive.QuantileAdaptiveClipSumQuery(
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
            count = -expected * np.log(float(clip_norm))  # of ±½, as who sees it would compute it
            return np.append(np.asarray(noisy, np.float64), count)

        return release

    *_, event = result(query, tf.zeros((1, DIM)))
    canary = np.append(0.999 * np.eye(DIM)[0], 0.0)  # not clipped
    rest = np.repeat([10.0, 0.1], ROWS)[:, None] * np.eye(DIM)[1 + np.arange(2 * ROWS) % (DIM - 1)]
    others = np.hstack([rest, np.zeros((2 * ROWS, 1))])  # half of them clipped
    weights = np.append(np.eye(DIM)[0], 0.5 / count_noise**2)
    game = seeded(make, canary, others=others, weights=weights)
    name = f"QuantileAdaptiveClipSumQuery, σ_b = {count_noise:g}"
    return wild.Lead(name, accounted(event), game, method="gdp")


def tree(efficient: bool) -> wild.Lead:
    """Sums with noise of a tree over rounds, in one of which a record takes part."""
    tf = tensorflow()
    import dp_accounting
    from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant as accountant
    from tensorflow_privacy.privacy.dp_query import restart_query, tree_aggregation
    from tensorflow_privacy.privacy.dp_query import tree_aggregation_query as queries

    class Nodes(tree_aggregation.ValueGenerator):  # type: ignore[misc]
        """In place of the noise of the i-th node, the i-th unit vector."""

        def initialize(self) -> Any:
            return tf.constant(0)

        def next(self, state: Any) -> tuple[Any, Any]:
            return tf.one_hot(state, 4 * ROUNDS), state + 1

    kind = tree_aggregation.EfficientTreeAggregator if efficient else tree_aggregation.TreeAggregator
    nodes, sums = kind(Nodes()), []
    state = nodes.init_state()
    for _ in range(ROUNDS):
        noise, state = nodes.get_cumsum_and_update(state)
        sums.append(np.asarray(noise, np.float64))
    factor = np.diff(sums, axis=0, prepend=0)
    precision = np.linalg.inv(factor @ factor.T)
    taken = int(np.argmax(np.diag(precision)))  # the round that tells most

    def make() -> wild.Release:
        query = queries.TreeResidualSumQuery.build_l2_gaussian_query(
            clip_norm=1.0,
            noise_multiplier=2.0,
            record_specs=tf.TensorSpec((DIM,)),
            noise_seed=int(tf.random.uniform((), maxval=2**62, dtype=tf.int64)),
            use_efficient=efficient,
        )
        query = restart_query.RestartQuery(
            query, restart_query.PeriodicRoundRestartIndicator(ROUNDS)
        )
        state = query.initial_global_state()

        @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
        def one_tree(state: Any, updates: Any) -> Any:
            params, seen = query.derive_sample_params(state), []
            for t in range(ROUNDS):
                sample = query.initial_sample_state(updates[0])
                if t == taken:
                    for update in updates:
                        sample = query.accumulate_record(params, sample, update)
                noisy, state, _ = query.get_noised_result(sample, state)
                seen.append(noisy[0])
            return tf.stack(seen), state

        def release(updates: Floats) -> Floats:
            nonlocal state  # each observation is a new tree
            seen, state = one_tree(state, tf.constant(updates, tf.float32))
            return np.asarray(seen, np.float64)

        return release

    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    rdp = accountant.compute_rdp_tree_restart(2.0, [ROUNDS], orders)
    claim, _ = dp_accounting.rdp.compute_epsilon(orders, rdp, wild.DELTA)
    game = seeded(make, CANARY, others=OTHERS, weights=precision[taken])
    name = f"TreeResidualSumQuery, {'efficient' if efficient else 'plain'}, {ROUNDS} rounds"
    return wild.Lead(name, float(claim), game, method="gdp")
