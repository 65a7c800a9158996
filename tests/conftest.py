import os

import pytest
from flower_processes import Processes
from hypothesis import settings

# What these modules assert is shown with its values, as in a test.
pytest.register_assert_rewrite("every_schedule", "no_harm")

# Two workers on two cores: threads of one would wait for those of the other, and a product of two
# short vectors would take ten times as long. Set before NumPy is loaded, and for child processes.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Bits are compared: they are the same everywhere on CPUs. GPU tests name their device.
os.environ.setdefault("FL_EPE_DEVICE", "cpu")

# Laws are tried on the same cases every time, on any machine, however busy it is.
settings.register_profile("fl_epe", derandomize=True, deadline=None, database=None, max_examples=30)
settings.load_profile("fl_epe")


@pytest.fixture
def no_pictures(monkeypatch):
    """Reports with blank pictures, for tests of what else is in them: real ones take a second."""
    monkeypatch.setattr("fl_epe.reporting.report.render", lambda draw: b"\x89PNG")


@pytest.fixture
def processes(tmp_path):
    """Flower processes with a private home; all of them end with the test."""
    home = tmp_path / "flwr"
    home.mkdir()
    running = Processes(home)
    yield running
    running.end_all()
