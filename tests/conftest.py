import pytest
from flower_processes import Processes


@pytest.fixture
def processes(tmp_path):
    """Flower processes with a private home; all of them end with the test."""
    home = tmp_path / "flwr"
    home.mkdir()
    running = Processes(home)
    yield running
    running.end_all()
