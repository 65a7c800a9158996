"""Strategies of correlated noise: their matrices, the noise they make, and their errors."""

import numpy as np
import pytest

from fl_epe.config import RunConfig
from fl_epe.mechanism.strategies import (
    banded,
    blt,
    parse_strategy,
    square_root_coefficients,
    toeplitz,
    tree,
)
from fl_epe.seeding import Seeds
from fl_epe.simulation.dp_fedavg import ClippedSums, initial_state, next_round
from simulations.studies.correlated_noise import prefix_errors

ROUNDS = 24
SPECS = (
    "tree",
    "banded:bands=5",
    "toeplitz",
    "toeplitz:bands=5",
    "blt",
    "blt:buffers=2",
)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("rounds", [5, 7, ROUNDS])
def test_no_column_is_longer_than_1_and_the_first_is_not_shorter(spec, rounds):
    matrix = parse_strategy(spec, rounds).matrix()
    lengths = np.linalg.norm(matrix, axis=0)
    assert matrix.shape == (rounds, rounds)
    np.testing.assert_array_equal(matrix, np.tril(matrix))
    assert lengths[0] == pytest.approx(1)
    assert lengths.max() <= 1 + 1e-12
    if spec.startswith(("tree", "banded")):
        np.testing.assert_allclose(lengths, 1)


@pytest.mark.parametrize(
    "spec", ["tree", "banded:bands=1", "toeplitz", "blt:buffers=1"]
)
def test_a_single_round_has_fresh_noise(spec):
    np.testing.assert_allclose(parse_strategy(spec, 1).matrix(), [[1.0]])


@pytest.mark.parametrize("spec", SPECS)
def test_the_noise_of_each_round_is_that_of_the_inverse(spec):
    strategy = parse_strategy(spec, ROUNDS)
    fresh = np.random.default_rng(0).standard_normal((ROUNDS, 3))
    state = (np.zeros(3, np.float32),) * strategy.buffers
    noises = []
    for t, row in enumerate(fresh):
        noise = strategy.correlate(t, state, row)
        state = strategy.next_state(state, noise)
        assert [vector.shape for vector in state] == [(3,)] * strategy.buffers
        noises.append(noise)
    np.testing.assert_allclose(
        noises, np.linalg.solve(strategy.matrix(), fresh), atol=1e-6
    )


def test_the_tree_has_the_products_of_its_nodes():
    nodes = [
        [start <= t < start + 2**level for t in range(11)]
        for level in range(5)
        for start in range(0, 11, 2**level)
    ]
    sums = np.array(nodes, float)
    matrix = tree(11).matrix()
    np.testing.assert_allclose(5 * matrix.T @ matrix, sums.T @ sums, atol=1e-12)


@pytest.mark.parametrize(
    ("matrix", "mean_square"),
    [
        # jax_privacy 2.0.0: dense.per_query_error, and toeplitz.loss for the square root.
        (tree(64).matrix(), 6.339347500917224),
        (banded(64, 8).matrix(), 7.363557161206055),
        (banded(64, 16).matrix(), 5.492742371720436),
        (toeplitz(64).matrix(), 4.9714571679236395),
        (toeplitz(64, 8).matrix(), 7.395300831513772),
    ],
    ids=["tree", "banded-8", "banded-16", "toeplitz", "toeplitz-8"],
)
def test_errors_are_those_of_jax_privacy(matrix, mean_square):
    assert np.mean(prefix_errors(matrix) ** 2) == pytest.approx(
        mean_square, rel=1e-6
    )


def test_a_buffered_strategy_is_nearly_the_best_of_its_kind():
    """jax_privacy 2.0.0's `buffered_toeplitz.optimize` has 9.327014 for three buffers."""
    assert prefix_errors(blt(512, 3).matrix()).max() ** 2 == pytest.approx(
        9.327014, rel=1e-3
    )
    assert square_root_coefficients(64)[-1] == pytest.approx(
        0.07094031336820429
    )


def test_a_file_is_scaled_and_used_as_it_is(tmp_path):
    path = tmp_path / "strategy.npy"
    np.save(path, 4 * banded(6, 3).matrix())
    strategy = parse_strategy(str(path), 6)
    assert strategy.buffers == 2
    np.testing.assert_allclose(strategy.matrix(), banded(6, 3).matrix())


@pytest.mark.parametrize(
    "matrix",
    [
        np.eye(5),
        np.ones((6, 6)),
        np.diag([1.0, 0, 1, 1, 1, 1]),
        np.full((6, 6), np.nan),
    ],
    ids=["another-size", "not-lower", "no-diagonal", "nan"],
)
def test_a_file_with_something_else_is_named(tmp_path, matrix):
    path = tmp_path / "strategy.npy"
    np.save(path, matrix)
    with pytest.raises(ValueError, match=r"strategy\.npy"):
        parse_strategy(str(path), 6)


@pytest.mark.parametrize(
    "spec",
    [
        "trees",
        "banded",
        "banded:bands=0",
        "banded:bands=25",
        "banded:buffers=3",
        "blt:buffers=x",
        "tree:=3",
        "trees:=3",
    ],
)
def test_what_is_none_is_named(spec):
    with pytest.raises(ValueError, match=spec):
        RunConfig(clients=48, rounds=ROUNDS, mechanism=spec)


def test_the_means_of_a_run_have_that_noise():
    common = {
        "clients": 48,
        "rounds": 6,
        "num_canaries": 10,
        "canary_participations": 1,
        "clipping": "fixed",
    }
    means_by_mechanism = []
    for mechanism in ("independent", "banded:bands=3"):
        config = RunConfig(mechanism=mechanism, **common)
        seeds = Seeds.derive(1)
        state = initial_state(config, np.zeros(4, np.float32))
        means = []
        for _ in range(6):
            state, released = next_round(
                config, seeds, state, ClippedSums(np.zeros(4))
            )
            means.append(released["mean"])
        means_by_mechanism.append(np.array(means))
    fresh, correlated = means_by_mechanism
    np.testing.assert_allclose(
        correlated, np.linalg.solve(banded(6, 3).matrix(), fresh), rtol=1e-5
    )
