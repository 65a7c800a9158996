"""``fl-epe export`` and the files of a run: what may be shared, and who may read what."""

import json
import stat

import numpy as np
import pytest
from records import limit_with_clients, make_record

from fl_epe import AuditRecord
from fl_epe.cli.main import main


def _mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def run_dir(tmp_path):
    make_record().save(tmp_path / "run" / "record.npz")
    return tmp_path / "run"


def test_a_record_is_for_its_owner_alone(run_dir):
    assert _mode(run_dir / "record.npz") == 0o600


def test_what_others_could_read_before_is_private_afterwards(run_dir):
    path = run_dir / "record.npz"
    path.chmod(0o644)
    make_record().save(path)
    assert _mode(path) == 0o600
    assert [file.name for file in run_dir.iterdir()] == ["record.npz"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "whole_folder",
    [
        pytest.param(True, id="folder", marks=pytest.mark.slow),
        pytest.param(False, id="file"),
    ],
)
def test_a_copy_has_no_seeds_and_the_same_report(
    run_dir, whole_folder, tmp_path, capsys
):
    shared = tmp_path / "shared"
    shared.mkdir()
    source = run_dir if whole_folder else run_dir / "record.npz"
    assert (
        main(
            [
                "export",
                str(source),
                str(shared if whole_folder else shared / "record.npz"),
            ]
        )
        == 0
    )
    assert "a copy of" in capsys.readouterr().out
    copy = shared / "record.npz"
    assert _mode(copy) & 0o044, "others may read it, if the umask lets them"
    record, original = (
        AuditRecord.load(copy),
        AuditRecord.load(run_dir / "record.npz"),
    )
    assert record.provenance.seeds == {}
    assert original.provenance.seeds["canary"] == 2**127
    with np.load(copy) as archive:
        assert all(
            str(2**127).encode() not in bytes(archive[name])
            for name in archive.files
        )
    reports = []
    for folder in (run_dir, shared):
        assert main(["report", str(folder)]) == 0
        reports.append(json.loads((folder / "report.json").read_text()))
    assert reports[0] == reports[1]


def test_a_copy_replaces_nothing(run_dir, capsys):
    assert main(["export", str(run_dir), str(run_dir)]) == 2
    assert "not to exist" in capsys.readouterr().err
    assert AuditRecord.load(run_dir / "record.npz").provenance.seeds


def test_a_folder_without_a_record_says_so(tmp_path, capsys):
    assert main(["export", str(tmp_path), str(tmp_path / "copy.npz")]) == 2
    assert "record.npz' to exist" in capsys.readouterr().err


def test_a_copy_that_names_clients_is_for_its_owner_alone(tmp_path, capsys):
    limit_with_clients().save(tmp_path / "record.npz")
    assert main(["export", str(tmp_path), str(tmp_path / "copy.npz")]) == 0
    assert "personal data" in capsys.readouterr().out
    assert _mode(tmp_path / "copy.npz") == 0o600
