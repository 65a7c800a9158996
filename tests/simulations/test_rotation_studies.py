"""The studies of rotated canaries: `simulations/studies/rotation*.py`."""

import numpy as np
import pytest

from fl_epe import CanarySet
from simulations.studies import rotation, rotation_attacks, rotation_null

pytestmark = pytest.mark.slow


def test_independent_products_have_the_law_of_sphere_canaries():
    dim, count, taking_part, runs = 300, 8, 5, 200
    samples = []
    for kind in range(2):
        products = []
        for seed in range(runs):
            rng = np.random.default_rng((kind, seed))
            hidden = rng.standard_normal(dim).astype(np.float32)
            hidden *= np.float32(9 / np.linalg.norm(hidden))
            if kind:
                canaries = CanarySet(dim, count, seed, "sphere")
                products.append(
                    rotation.products(canaries, taking_part, hidden)
                )
            else:
                products.append(
                    rotation.independent_products(
                        rng, dim, count, taking_part, 9.0
                    )
                )
        # Scores of one that takes part and of one that does not, and the canaries' square.
        samples.append(
            np.array(
                [
                    [first[0, 0], first[0, 7], first[1, 0], first[0, -2]]
                    for first in products
                ]
            )
        )
    for first, second in zip(*(values.T for values in samples), strict=True):
        row = rotation.Row.of("", first, second)
        assert min(row.p_mean, row.p_spread) > 1e-3 / 8


def test_the_fitted_null_is_right_where_canaries_are_nearly_as_many_as_dimensions():
    truth, fitted, by_known_null = map(
        float, rotation_null.shift_row(65_536, 60_000, 0.5, 3).split()[3:]
    )
    # The deviation of 3 × 400 unobserved scores has a standard error of 1/√(2·1200) = 2%.
    assert fitted == pytest.approx(truth, rel=3 * 0.02)
    assert by_known_null == pytest.approx(truth * np.sqrt(0.5), rel=0.02)


def test_a_difference_of_means_or_spreads_is_found():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(200)
    assert rotation.Row.of("", values, values + 0.5).p_mean < 1e-3
    assert rotation.Row.of("", values, 2 * values).p_spread < 1e-3
    assert rotation.Row.of("", values, rng.standard_normal(200)).p_mean > 1e-3


@pytest.mark.weekly
@pytest.mark.parametrize(
    "part", ["embedding", pytest.param("training", marks=pytest.mark.slow)]
)
def test_both_kinds_agree_in_the_quick_form(part, capsys, monkeypatch):
    monkeypatch.setattr(
        rotation,
        "embedding_update",
        lambda _: rotation_null.vector(
            "rows of an embedding", 70_000, np.random.default_rng(1)
        ),
    )
    monkeypatch.setattr(rotation, "QUICK_SEEDS", 6)
    rotation.main(["--quick", part])
    last = capsys.readouterr().out.splitlines()[-1]
    assert float(last.split("number ")[1].split(";")[0]) > 1e-3


def test_scores_of_no_part_are_normal_for_hard_vectors():
    for name in rotation_null.FAMILIES:
        cells = rotation_null.null_row(name, 70_000, 20_000, 1)[22:].split()
        deviation, kurtosis, p_value = map(float, cells[:3])
        # 4.5 standard errors each, so that nine families and three numbers pass for sure.
        assert abs(deviation - 1) < 4.5 / np.sqrt(2 * 20_000), name
        assert abs(kurtosis) < 4.5 * np.sqrt(24 / 20_000), name
        assert p_value > 1e-4, name


def test_pairs_with_one_difference_are_as_rare_as_in_a_random_order():
    cells = rotation_null.pairs_row(1, 100)[8:].split()
    mean, variance, _, _, expected = map(float, cells)
    error = np.sqrt(expected / 100)
    assert abs(mean - expected) < 4 * error
    assert variance < 2 * expected


def test_canaries_that_are_much_of_a_release_narrow_the_null():
    rotated, predicted, independent = map(
        float, rotation_null.share_row(1 << 16, 0.5, 4).split()[3:]
    )
    assert rotated == pytest.approx(predicted, abs=0.05)
    assert independent == pytest.approx(1, abs=0.1)


def test_one_canary_gives_the_others_away_in_half_of_the_families():
    results = [
        rotation_attacks.with_one_canary(1 << 16, seed, 0.0)
        for seed in range(4)
    ]
    broken = [result for result in results if result[0]]
    assert broken
    for _, share, score in broken:
        assert share == 1
        assert score == pytest.approx(
            rotation_attacks.SCORE, abs=4 / np.sqrt(19)
        )


def test_a_noisy_direction_gives_no_whole_numbers():
    assert not rotation_attacks.with_one_canary(1 << 16, 0, 0.03)[0]


def test_without_a_canary_the_adversary_is_blind():
    runs = 20
    for row in rotation_attacks.blind(1 << 16, runs):
        against_sphere = float(row[16:].split()[0])
        assert abs(against_sphere - 0.5) < 4 * np.sqrt(1 / (6 * runs))
