import pathlib

import pytest

from fl_epe import data
from fl_epe.data import readers


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    """So that few rows are many batches, and nothing is kept in the user's cache."""
    monkeypatch.setattr(readers, "ROWS_PER_BATCH", 16)
    monkeypatch.setenv("FL_EPE_CACHE", str(tmp_path / "cache"))
    data.open_data.cache_clear()
