"""`simulations/studies/overlap.py`: ε of one canary is right where canaries overlap."""

import numpy as np
import pytest

from simulations.studies import overlap

pytestmark = pytest.mark.slow


def test_the_length_of_a_sum_has_the_law_of_random_directions():
    rng, runs, dim, count = np.random.default_rng(0), 4000, 50, 20
    squares = overlap.sum_squares(rng, runs, dim, count)
    deviation = np.sqrt(2 * count * (count - 1) / dim)
    assert squares.mean() == pytest.approx(
        count, abs=3 * deviation / np.sqrt(runs)
    )
    # The square's tails are a gamma law's, of kurtosis 3 + 12/dim.
    error = np.sqrt((2 + 12 / dim) / runs) / 2
    assert squares.std() == pytest.approx(deviation, rel=3 * error)


def test_the_quick_form_prints_what_is_judged():
    lines: list[str] = []
    overlap.main(quick=True, say=lines.append)
    tables = [table.split("\n") for table in "\n".join(lines).split("\n\n")]
    assert [len(table) for table in tables] == [5, 5]
    for row in tables[0][1:]:
        (
            share,
            _,
            _,
            _,
            truth,
            plain,
            projected,
            _,
            covers,
            _,
            with_norm,
            _,
            covers_with_norm,
        ) = row.split()
        # Medians of 100 runs; ε of 1,000 canaries at expected score 10 varies by 10% a run.
        assert float(projected) == pytest.approx(float(truth), rel=0.05)
        assert float(with_norm) == pytest.approx(float(truth), rel=0.03)
        if float(share) > 0.05:
            assert float(plain) < 0.7 * float(truth)
        for cell in (covers, covers_with_norm):  # 3 standard errors of 100 runs
            assert float(cell.rstrip("%")) >= 95 - 3 * np.sqrt(95 * 5 / 100)
    for row in tables[1][1:]:
        *_, error, wide, width, covers, _ = row.split()
        assert abs(float(error)) < 3.5
        assert float(wide) == pytest.approx(
            float(width), rel=3.5 / np.sqrt(2 * 100)
        )
        assert float(covers.rstrip("%")) >= 95 - 3 * np.sqrt(95 * 5 / 100)
