"""``fl-epe run --stop-when``: a run that stops says so and ends with status 0."""

import json

import pytest

from fl_epe import AuditRecord
from fl_epe.cli.main import main

SMALL = [
    "run", "digits", "--num-clients", "120", "--clients-per-round", "4", "--num-canaries", "60",
    "--unobserved", "20", "--rounds", "12", "--seed", "3", "--clipping", "fixed",
]  # fmt: skip


@pytest.mark.slow
def test_a_run_stops_by_its_rule(tmp_path, capsys):
    output = tmp_path / "run"
    assert (
        main(
            [
                *SMALL,
                "--stop-when",
                "epsilon-all-low > 2",
                "--details",
                "--output",
                str(output),
            ]
        )
        == 3
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert "because of its scores (epsilon-all-low > 2)" in printed
    record = AuditRecord.load(output / "record.npz")
    assert 1 <= record.rounds < 12
    report = json.loads((output / "report.json").read_text())
    assert report["run"]["stopped_by"] == "epsilon-all-low > 2"
    assert report["run"]["rounds"] == record.rounds
    assert [one["code"] for one in report["warnings"]] == ["load", "stopped"]
    assert not (output / "checkpoint.npz").exists()
    assert (
        main(["report", str(output)]) == 3
    )  # sixty canaries are most of a round


@pytest.mark.parametrize(
    "rule",
    ["epsilon-all > 8", "epsilon-all-low < 8", "soon"],
    ids=["name", "sign", "word"],
)
def test_another_rule_is_bad_input(rule, tmp_path, capsys):
    assert (
        main([*SMALL, "--stop-when", rule, "--output", str(tmp_path / "run")])
        == 2
    )
    printed = capsys.readouterr().err
    assert f"--stop-when={rule!r}" in printed
    assert len(printed.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_comparison_has_no_rule(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["compare", "epochs", "--stop-when", "epsilon-all-low > 8"])
    assert end.value.code == 2
    assert "--stop-when" in capsys.readouterr().err
