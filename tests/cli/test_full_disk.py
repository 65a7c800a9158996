"""``fl-epe run`` on a disk that fills up at the end: what is lost is said, the rest is left."""

import errno
import os

import pytest
from small_run import SMALL

from fl_epe import AuditRecord
from fl_epe.cli.main import main
from fl_epe.cli.run_log import RUN_LOG

SMALL = [*SMALL, "--rounds", "2", "--seed", "3", "--checkpoint-every", "99"]


def _read_only(*arguments, **named):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def _full(*arguments, **named):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
def test_a_record_and_a_report_without_room(tmp_path, capsys, monkeypatch):
    output = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(AuditRecord, "save", _full)
        assert main([*SMALL, "--output", str(output)]) == 1
    printed, said = capsys.readouterr()
    assert "round 2/2" in printed
    assert "The run is finished, but [Errno 28] No space left" in said
    assert "Free some space." in said
    assert f"continue with: fl-epe resume {output}" in said
    kept = {path.name for path in output.iterdir()}
    assert kept == {"checkpoint.npz", "checkpoint-previous.npz", RUN_LOG}
    with monkeypatch.context() as patched:
        patched.setattr("fl_epe.reporting.write_report", _read_only)
        assert main(["resume", str(output)]) == 1
    again, said = capsys.readouterr()
    assert "round 2/2" in again
    assert "round 1/2" not in again  # nothing is trained again
    assert "Free some space" not in said
    assert "Change the permissions there." in said
    assert f"continue with: fl-epe report {output}" in said
    assert {path.name for path in output.iterdir()} == {"record.npz", RUN_LOG}
    assert main(["report", str(output)]) in (0, 3)
