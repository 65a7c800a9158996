"""The factor of the rounds' products, and what it does to scores."""

import numpy as np
import pytest

from fl_epe.auditing.record import round_correlation
from fl_epe.auditing.record.round_correlation import (
    Precision,
    Residual,
    RoundCorrelation,
    Whitener,
    reach_of,
    window_of,
)
from fl_epe.checks import ArgumentError

DIM = 400
ROUNDS = 12


def residuals(rounds=ROUNDS, dim=DIM, seed=0):
    """Rounds that share a part, and carry some of the round before them."""
    rng = np.random.default_rng(seed)
    fresh = rng.standard_normal((rounds, dim)) + 0.5 * rng.standard_normal(dim)
    for t in range(1, rounds):
        fresh[t] += 0.6 * fresh[t - 1]
    return fresh


def factor_of(vectors, window=round_correlation.WINDOW):
    whitener = Whitener(vectors.shape[1], window)
    return RoundCorrelation.of(
        [whitener.add(Residual(row)) for row in vectors], vectors.shape[1]
    )


def dense(correlation):
    """L as a square matrix."""
    rounds = len(correlation.factor)
    found = np.zeros((len(correlation.factor),) * 2)
    for t in range(rounds):
        for back in range(min(t + 1, correlation.window)):
            found[t, t - back] = correlation.factor[t, back]
    return found


def test_the_factor_is_that_of_the_cosines():
    vectors = residuals()
    unit = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    correlation = factor_of(vectors)
    assert correlation.window == ROUNDS < window_of(DIM, 800) == 20
    np.testing.assert_allclose(
        dense(correlation), np.linalg.cholesky(unit @ unit.T), atol=1e-6
    )
    precision = Precision.of(ROUNDS, DIM, correlation.parts)
    assert precision.null_std == 1  # nothing is estimated in so few


def test_scores_are_whitened_by_it():
    correlation = factor_of(residuals())
    rng = np.random.default_rng(1)
    lower = dense(correlation)
    values = rng.standard_normal((ROUNDS, 3))
    np.testing.assert_allclose(
        correlation.whiten(values), np.linalg.solve(lower, values)
    )
    few = correlation.whiten(values[:5])  # of the first rounds
    np.testing.assert_array_equal(few, correlation.whiten(values)[:5])
    inverse = np.linalg.inv(lower @ lower.T)
    signal = rng.random(ROUNDS) + 0.5
    apart = signal**2 * np.diag(inverse)
    np.testing.assert_allclose(correlation.single_round_energies(signal), apart)


def test_rounds_beyond_the_window_are_forgotten():
    correlation = factor_of(residuals(), window=4)
    assert correlation.factor.shape == (ROUNDS, 4)
    np.testing.assert_allclose(
        np.linalg.norm(correlation.factor, axis=1), 1, rtol=1e-6
    )
    whole = factor_of(residuals())
    np.testing.assert_allclose(
        correlation.factor[:4], whole.factor[:4, :4], rtol=1e-6
    )
    declared = factor_of(residuals(), window=1)
    assert declared.factor is None
    values = np.ones((ROUNDS, 2))
    assert declared.whiten(values) is values
    known = Precision.of(declared.window, DIM, declared.parts)
    assert known == Precision(unit=np.sqrt((DIM - 3) / DIM))
    np.testing.assert_array_equal(
        declared.single_round_energies(np.full(3, 2.0)), np.full(3, 4.0)
    )


def test_few_dimensions_have_few_rounds():
    assert window_of(650, 800) == 32
    assert window_of(30, 800) == 1
    assert window_of(10**6, 800) == 800
    assert window_of(10**6, 2048) == 2048
    assert window_of(10**6, 10**6) == round_correlation.SKETCH_PARTS // 7


@pytest.mark.parametrize("at", [0, 5])
def test_a_round_without_a_residual_is_alone(at):
    vectors = residuals()
    vectors[at] = 0
    correlation = factor_of(vectors)
    lower = dense(correlation)
    assert lower[at, at] == 1
    assert not lower[at, :at].any()
    assert not lower[at + 1 :, at].any()
    others = np.delete(np.arange(ROUNDS), at)
    alone = dense(factor_of(vectors[others]))
    np.testing.assert_allclose(lower[np.ix_(others, others)], alone, atol=1e-6)


@pytest.mark.parametrize("new", [0.0, 0.01, 0.05])
def test_rounds_that_hardly_differ_are_no_certainty(new):
    """Scores of who took no part vary at most as is assumed, in every direction of the rounds."""
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal(DIM) + new * rng.standard_normal((12, DIM))
    correlation = factor_of(vectors)
    assert np.all(correlation.factor[1:, 0] >= 2 / np.sqrt(DIM) - 1e-6)
    units = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    inverse = np.linalg.inv(dense(correlation))
    variances = np.linalg.eigvalsh(inverse @ units @ units.T @ inverse.T)
    assert variances.max() < 1 + 1e-4


@pytest.mark.parametrize("dim", [DIM, 40_000])
@pytest.mark.parametrize("forgotten", [0, 3])
def test_it_goes_on_from_its_state(dim, forgotten):
    vectors = residuals(dim=dim)
    whole = Whitener(dim)
    again = Whitener(dim)
    rows = [whole.add(Residual(row)) for row in vectors]
    half = Whitener(dim)
    for row in vectors[:8]:
        half.add(Residual(row))
    again.restore(half.state(), forgotten)
    for row, wanted in zip(
        vectors[8 - forgotten :], rows[8 - forgotten :], strict=True
    ):
        np.testing.assert_array_equal(again.add(Residual(row)), wanted)
    with pytest.raises(ArgumentError, match=r"sketches.shape=\(2, 3\)"):
        again.restore(np.zeros((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "dim", "parts", "width", "own"),
    [
        pytest.param(16, 4000, 331, 1.043, 1.048, marks=pytest.mark.slow),
        pytest.param(48, 4000, 331, 1.074, 1.082, marks=pytest.mark.slow),
        (24, 480, 480, 1.0, 1.050),
    ],
)
def test_what_an_estimated_factor_costs(
    monkeypatch, rounds, dim, parts, width, own
):
    count = 500
    runs = 160
    monkeypatch.setattr(round_correlation, "SKETCH_PARTS", parts)
    shape = np.zeros((rounds, 1))
    shape[::5] = 3.0
    widths = []
    fresh = []
    lengths = []
    for run in range(runs):
        rng = np.random.default_rng(run)
        vectors = rng.standard_normal((rounds, dim))
        correlation = factor_of(vectors)
        unit = vectors / np.linalg.norm(vectors, axis=1)[:, None]
        null = unit @ rng.standard_normal((dim, count))
        signal = correlation.whiten(shape)
        length = np.linalg.norm(signal)
        widths.append(
            np.mean((signal.T @ correlation.whiten(null) / length) ** 2)
        )
        new = rng.standard_normal(
            (rounds, count)
        )  # of directions that the vectors do not have
        fresh.append(
            np.mean((signal.T @ correlation.whiten(new) / length) ** 2)
        )
        lengths.append(length)
    reach = reach_of(rounds, correlation.window)
    assert reach == (26 if rounds == 48 else rounds)
    told = Precision.of(reach, dim, correlation.parts)
    assert np.sqrt(np.mean(widths)) == pytest.approx(told.null_std, abs=0.01)
    assert np.sqrt(np.mean(fresh)) == pytest.approx(told.observed_std, abs=0.01)
    assert (told.null_std, told.observed_std) == pytest.approx(
        (width, own), abs=0.001
    )
    # As long as in the mean over the noise, whose cosines of 4,000 dimensions differ by chance.
    pairs = np.sum((shape @ shape.T) ** 2) - np.sum(shape**4)
    error = told.unit_error(
        float(pairs), float(np.sum(shape**4)), float(np.sum(shape**2))
    )
    wanted = np.linalg.norm(shape)
    assert told.unit * np.mean(lengths) == pytest.approx(
        wanted, rel=3 * error / np.sqrt(runs)
    )
    assert np.std(lengths) / np.mean(lengths) == pytest.approx(error, rel=0.4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dim", "rounds", "window"),
    [(200, 8, 800), (1000, 50, 800), (20_000, 60, 800), (300, 60, 15)],
)
def test_rounds_of_noise_are_independent_and_of_a_common_part_are_not(
    dim, rounds, window
):
    rng = np.random.default_rng(0)
    for _ in range(10):
        noise = rng.standard_normal((rounds, dim))
        common = rng.standard_normal(dim)
        assert factor_of(noise, window).independent(dim)
        assert not factor_of(noise * 0.8 + 0.6 * common, window).independent(
            dim
        )


def test_pairs_of_rounds_lose_what_they_share():
    """Of G = I/2 + 11ᵀ/2 in 8 rounds: G⁻¹ = 2I − 2·11ᵀ/9."""
    half = np.linalg.cholesky(0.5 * np.eye(8) + 0.5)
    factor = np.array(
        [np.pad(row[t::-1], (0, 7 - t)) for t, row in enumerate(half)]
    )
    correlation = RoundCorrelation(factor)
    assert correlation.error_of_independence(
        np.full(8, 3.0), 10**9
    ) == pytest.approx(7 / 8)
    assert correlation.error_of_independence(np.zeros(8), 10**9) == 0
    assert (
        RoundCorrelation(np.ones((8, 1))).error_of_independence(
            np.ones(8), 10**9
        )
        == 0
    )


@pytest.mark.parametrize("dim", [12, 20, 50])
def test_few_dimensions_do_not_enlarge_a_signal(dim):
    """A residual is short by chance, and 1/‖h‖² too large: ε was 21% too large in 12 dimensions."""
    residual = np.random.default_rng(0).standard_normal(
        (100_000, dim - 1)
    )  # but for the canaries
    energies = dim / np.sum(residual**2, axis=1)
    error = energies.std() / np.sqrt(len(energies))
    unit = Precision.of(1, dim, 0).unit
    assert abs(unit**2 * energies.mean() - 1) < 4 * error
