"""One finished run of the command line, for every test that only reads one."""

import contextlib
import io

import pytest
from small_run import ROUNDS, SEED, SMALL

from fl_epe.cli.main import main


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Where the run wrote, and what it printed."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    words = [
        *SMALL,
        "--rounds",
        ROUNDS,
        "--seed",
        SEED,
        "--checkpoint-every",
        "2",
    ]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*words, "--output", str(output)]) == 0
    return output, printed.getvalue()
