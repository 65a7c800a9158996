"""What a command waits for is said on a terminal."""

import io

import pytest

from fl_epe.cli import console
from fl_epe.cli.main import main


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(
            "advise canaries --clients 50",
            "what canaries can tell",
            id="advise-canaries",
        ),
        pytest.param(
            "advise log log.csv --noise-multiplier 1",
            "of the log",
            id="advise-log",
        ),
        pytest.param("report {run}", "what the record tells", id="report"),
        pytest.param(
            "compare --schedules trace:path=log.csv --noise-multipliers 1 --workers 1",
            "Reading the participation log",
            id="compare",
        ),
    ],
)
def test_what_is_waited_for_is_said(
    command, said, finished, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("round,client_id\n1,a\n1,b\n2,c\n")
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(console, "MAX_SILENT_SECONDS", 0.0)
    assert main(command.format(run=finished[0]).split()) == 0
    assert said in terminal.getvalue()
