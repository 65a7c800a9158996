"""`simulations/studies/schedule_bounds.py`: a part of its table."""

import pytest

from simulations.studies import schedule_bounds


@pytest.mark.slow
def test_no_analytical_epsilon_of_a_few_schedules_is_below_the_exact_one(
    tmp_path,
):
    for spec in schedule_bounds.schedules(4, 8, tmp_path)[:3]:
        rows = schedule_bounds.measure(spec, 4, 8)
        assert len(rows) == len(schedule_bounds.NOISES)
        assert not any(schedule_bounds.below(row) for row in rows)


@pytest.mark.slow
def test_drawn_clients_agree_and_no_analytical_epsilon_is_below_the_exact_one():
    lines: list[str] = []
    assert schedule_bounds.main([4], [2], runs=20, say=lines.append) == 0
    assert [line.split()[:3] for line in lines[1:]] == [["4", "8", "40"]]
