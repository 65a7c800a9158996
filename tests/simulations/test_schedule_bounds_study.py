"""`simulations/studies/schedule_bounds.py`: a part of its table."""

import schedule_bounds


def test_no_analytical_epsilon_is_below_the_exact_one():
    lines: list[str] = []
    assert schedule_bounds.main([4], [2], runs=20, say=lines.append) == 0
    assert [line.split()[:3] for line in lines[1:]] == [["4", "8", "52"]]
