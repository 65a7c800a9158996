import os

import pytest
from flower_processes import Processes

# Bits are compared: they are the same everywhere on CPUs. GPU tests name their device.
os.environ.setdefault("FL_EPE_DEVICE", "cpu")


@pytest.fixture
def processes(tmp_path):
    """Flower processes with a private home; all of them end with the test."""
    home = tmp_path / "flwr"
    home.mkdir()
    running = Processes(home)
    yield running
    running.end_all()
