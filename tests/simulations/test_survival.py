"""The quick forms of `survival.py` and `survival_faults.py`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.studies import survival_faults

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "simulations" / "studies" / "survival.py"
PATIENCE = 800


def _survive(*options):
    """What the script prints, as a process of its own: it forks."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(SCRIPT),
        "--seed",
        "1",
        *options,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_that_is_killed_is_that_which_nobody_killed():
    printed = _survive("--parts", "in process", "--runs", "2")
    (kills,) = re.findall(
        r"in process 2 of 2 equal to the last bit after (\d+) kills", printed
    )
    assert int(kills) >= 2


@pytest.mark.weekly
def test_other_options_make_no_other_run():
    assert "options    2 of 2 equal" in _survive(
        "--parts", "options", "--runs", "2"
    )


@pytest.mark.weekly
def test_the_quick_form():
    printed = _survive("--quick")
    assert "in process 7 of 7 equal" in printed
    assert "plug-in    2 of 2 equal" in printed


@pytest.mark.weekly
@pytest.mark.ray
def test_a_run_under_ray():
    assert "ray        1 of 1 equal to the last bit after 1 kills" in _survive(
        "--parts", "ray", "--runs", "1"
    )


@pytest.mark.weekly
def test_every_fault_is_counted(capsys, monkeypatch):
    monkeypatch.setattr(survival_faults, "TIMEOUT", 8.0)
    assert survival_faults.main(8, 24, 3)
    printed = capsys.readouterr().out
    assert "24 faults in 8 rounds" in printed
    assert printed.endswith("all as it should be\n")
    counted = re.findall(r"(\d+) of (\d+)\n", printed)
    assert len(counted) > 5
    assert all(found == injected for found, injected in counted)
