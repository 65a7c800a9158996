"""`simulations/studies/correlated_digits.py`, with a small model instead of the digits' network."""

import numpy as np
import pytest
from tiny import Tiny

from simulations.studies import correlated_digits as study


@pytest.mark.weekly
def test_scores_are_those_of_theory_and_rows_are_printed(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        study, "load_task", lambda *_, **options: Tiny(clients=study.CLIENTS)
    )
    monkeypatch.setattr(study, "row", lambda *_: (24.0, 1.0, 5.0))
    path = tmp_path / "picture.png"
    study.main(["--seeds", "2", "--most", "8", "--picture", str(path)])
    assert path.read_bytes().startswith(b"\x89PNG")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    together = [line for line in lines if "all" in line[2:3]]
    assert len(together) == 2 * len(study.SCHEDULES) * len(study.NOISE)
    for line in together:
        ratio, error = float(line[6]), float(line[8])
        assert abs(ratio - 1) < 5 * error + 0.001, line
    cells = lines[[line[0] for line in lines].index("rounds") + 1 :]
    assert len(cells) == 1 + len(study.ALWAYS) + len(study.ONCE) + 5


def test_all_mechanisms_have_one_analytical_value():
    from fl_epe.accounting import gaussian_epsilon
    from fl_epe.accounting.sensitivity import strategy_bounds
    from fl_epe.mechanism.strategies import strategy_matrix
    from fl_epe.schedules import make_schedule

    schedule = make_schedule("cyclic", 32, 4)
    for mechanism in (*study.ALWAYS[1:], *study.ONCE):
        z = study.Cell(32, mechanism).settings()["noise_multiplier"]
        bound, *_ = strategy_bounds(
            schedule.law(study.CLIENTS), strategy_matrix(mechanism, 32), z, 0.01
        )
        np.testing.assert_allclose(
            bound.epsilon, gaussian_epsilon(1 / study.MU, 0.01)
        )
