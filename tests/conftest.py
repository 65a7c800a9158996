import os

import pytest
from flower_processes import Processes
from hypothesis import settings

# What these modules assert is shown with its values, as in a test.
pytest.register_assert_rewrite("every_schedule", "no_harm")

# Bits are compared: they are the same everywhere on CPUs. GPU tests name their device.
os.environ.setdefault("FL_EPE_DEVICE", "cpu")

# Laws are tried on the same cases every time, on any machine, however busy it is.
settings.register_profile("fl_epe", derandomize=True, deadline=None, database=None, max_examples=30)
settings.load_profile("fl_epe")


@pytest.fixture
def processes(tmp_path):
    """Flower processes with a private home; all of them end with the test."""
    home = tmp_path / "flwr"
    home.mkdir()
    running = Processes(home)
    yield running
    running.end_all()
