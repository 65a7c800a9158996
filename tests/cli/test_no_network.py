"""The command line sends nothing anywhere: no telemetry, no look for updates."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SILENT = (
    "FLWR_TELEMETRY_ENABLED",
    "FLWR_DISABLE_UPDATE_CHECK",
    "RAY_USAGE_STATS_ENABLED",
)
CLOUDS = ("169.254.169.254", "metadata.google.internal")
"""Where Ray asks which cloud it is in, whatever its settings. Nothing about the run goes there."""

TINY = (
    "run", "digits", "--num-clients", "4", "--clients-per-round", "2", "--num-canaries", "2",
    "--unobserved", "2", "--rounds", "1", "--local-epochs", "1", "--workers", "1", "--delta", "0.1",
    "--clipping", "fixed", "--canary-participations", "1", "--seed", "1", "--output", "out",
)  # fmt: skip
EVENT = (
    "from fl_epe.cli import main; status = main({words!r}); "
    "from flwr.supercore.telemetry import EventType, event; "
    "event(EventType.START_SIMULATION_ENTER).result(); raise SystemExit(status)"
)


def watched(folder, *program, **settings):
    """What a child process of Python wanted from outside, without variables that silence it."""
    log = folder / "watched"
    environment = {
        k: v for k, v in os.environ.items() if k not in SILENT
    } | settings
    environment |= {
        "WATCHED": str(log),
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT / "tests/support/watched"), str(ROOT)]
        ),
    }
    done = subprocess.run(
        [sys.executable, *program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done, log.read_text().splitlines() if log.exists() else []


@pytest.mark.slow
def test_a_run_in_process_stays_on_this_machine(tmp_path):
    done, left = watched(tmp_path, "-m", "fl_epe", *TINY)
    assert done.returncode in (0, 3), (
        done.stderr
    )  # 3: too few canaries took part to say an ε
    assert (tmp_path / "out" / "record.npz").exists()
    assert left == []


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.ray
def test_a_run_under_ray_stays_on_this_machine(tmp_path):
    done, left = watched(tmp_path, "-m", "fl_epe", *TINY, "--backend", "ray")
    assert done.returncode in (0, 3), done.stderr
    assert (tmp_path / "out" / "record.npz").exists()
    assert [line for line in left if line.split()[1] not in CLOUDS] == []


@pytest.mark.slow
def test_an_event_of_flower_is_not_sent(tmp_path):
    done, left = watched(tmp_path, "-c", EVENT.format(words=["schedules"]))
    assert done.returncode == 0, done.stderr
    assert left == []


@pytest.mark.slow
def test_what_leaves_is_seen_and_a_users_own_setting_wins(tmp_path):
    """The same program with telemetry on: what the other tests look for can be found."""
    code = EVENT.format(words=["schedules"])
    _, left = watched(tmp_path, "-c", code, FLWR_TELEMETRY_ENABLED="1")
    assert left
    assert "telemetry" in left[0]


def test_the_command_line_sets_what_flower_reads_before_flower_is_imported():
    code = "import sys, fl_epe.cli; raise SystemExit('flwr' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
