"""Every audit of the list: runs, says where it is from, gives the same again, and is written."""

import dataclasses
import html
import json

import pytest

from fl_epe.audits import AUDITS, AuditSettings
from fl_epe.cli import main
from fl_epe.reporting import AuditResult, write_audit

QUICK = AuditSettings(quick=True, seed=1)
ALWAYS = ("gaussian", "dp-sgd", "broken", "substitute")  # one of each kind; the others are slow


@pytest.fixture(scope="module")
def results():
    """Each audit's quick result, made when first asked for."""
    made = {}

    def result(name):
        if name not in made:
            made[name] = AUDITS[name].run(QUICK)
        return made[name]

    return result


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in AUDITS],
)
def test_an_audit_says_what_it_found(name, results, tmp_path):
    result = results(name)
    assert isinstance(result, AuditResult)
    assert result.name == name
    assert result.finding.endswith(".")
    assert result.settings == QUICK.to_dict()
    assert result.passed is not False
    assert all(len(row) == len(table.columns) for table in result.tables for row in table.rows)
    files = write_audit(result, tmp_path / "new" / "folder")
    assert len(files) == 1 + len(result.tables) + len(result.pictures)
    for picture in result.pictures:
        drawn = (files[0].parent / f"{picture.name}.svg").read_text()
        assert picture.text
        assert f"<desc>{html.escape(picture.text)}</desc>" in drawn
    saved = json.loads(files[0].read_text())
    assert saved == json.loads(json.dumps(result.to_dict()))
    assert result.finding in result.text()
    assert AUDITS[name].source


def test_the_list_names_every_audit(capsys):
    assert main(["audit", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(AUDITS)
    assert main(["audit", "list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(AUDITS)


def test_an_audit_is_run_by_its_name(capsys, tmp_path):
    command = ["audit", "gaussian", "--quick", "--seed", "1"]
    assert main([*command, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert AUDITS["gaussian"].run(QUICK).text() in out
    assert f"Written: {tmp_path / 'audit.json'}" in out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "audit.json").read_text())


def test_an_unknown_audit_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["audit", "gausian"])
    assert stop.value.code == 2
    assert "gausian" in capsys.readouterr().err


def test_settings_are_checked():
    for field, value in (("delta", 0.0), ("confidence", 1.0), ("observations", 1), ("seed", -1)):
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(QUICK, **{field: value})
