"""What was probably meant, where a name or an option does not exist."""

import contextlib
import dataclasses
import re
import shutil
import subprocess
import sys

import pytest

from fl_epe.cli.main import COMMANDS, main, parser_for
from fl_epe.cli.run import _BUILT_IN_OPTIONS
from fl_epe.tasks import find_task
from fl_epe.tasks.by_name import BUILT_IN


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        pytest.param(
            ["rnu", "digits"],
            "no command 'rnu' (did you mean run?)",
            id="command",
        ),
        pytest.param(["run", "digit"], "(did you mean digits?)", id="task"),
        pytest.param(["run", "hosp"], "(did you mean hosp:task?)", id="file"),
        pytest.param(
            ["run", "digits", "--participation", "poison"],
            "(did you mean poisson?)",
            id="schedule",
        ),
        pytest.param(
            ["run", "digits", "--noise", "0.5"],
            "(did you mean --noise-generator or --noise-multiplier?)",
            id="start",
        ),
        pytest.param(
            ["run", "digits", "--nois", "1"], "(did you mean --noise", id="part"
        ),
    ],
)
def test_what_was_meant(words, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosp.py").touch()
    with contextlib.suppress(SystemExit):  # argparse's way
        main(words)
    assert hint in capsys.readouterr().err


def test_options_of_built_in_tasks_are_known_without_them():
    tasks = [find_task(name).settings for name in BUILT_IN]
    fields = {
        field.name
        for settings in tasks
        for field in dataclasses.fields(settings)
    }
    assert {
        option[2:].replace("-", "_") for option in _BUILT_IN_OPTIONS
    } == fields


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        pytest.param("--nose", "--nose 1", id="of-none"),
        pytest.param("--num-client", "--num-clients?", id="of-the-task"),
    ],
)
def test_a_misspelt_option_does_not_wait_for_torch(typed, hint):
    code = (
        "import sys\nfrom fl_epe.cli import main\n"
        f"try: main(['run', 'digits', {typed!r}, '1'])\n"
        "except SystemExit as stop: print(stop.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2", "False"]
    assert hint in done.stderr


def test_two_dashes_are_no_misspelt_option():
    words = ["run", "--num-clients", "60", "--", "digits"]
    assert (
        parser_for(words).parse_args(words).__dict__["task_options num_clients"]
        == 60
    )


def test_data_that_are_not_there_are_not_looked_up(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    def load(name, *_, **__):
        raise AssertionError(name)

    monkeypatch.setattr("datasets.load_dataset", load)
    assert main(["run", "emnist", "--data-dir", "data/emnist"]) == 2
    assert (
        "--data-dir='data/emnist' to be a file or folder"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_an_exported_record_has_a_report(finished, tmp_path, capsys):
    run, _ = finished
    copy, again = tmp_path / "shared.npz", tmp_path / "again.npz"
    assert main(["export", str(run), str(copy)]) == 0
    shutil.copy(copy, again)
    capsys.readouterr()
    assert main(["report", str(copy)]) == 0
    assert (tmp_path / "report.html").exists()
    assert f"Report: {tmp_path / 'report.html'}" in capsys.readouterr().out
    main(["report", str(copy), str(again), "--output", str(tmp_path)])
    assert (tmp_path / "comparison.html").exists()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(name, id=name.replace(" ", "-"))
        for name, (place, _) in COMMANDS.items()
        if place
    ],
)
def test_help_names_what_a_shell_can_give(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert "None" not in text
    assert "(default: )" not in text
    options = set(re.findall(r"--([a-z]+-[a-z-]+)", text))
    assert not {
        name
        for name in options
        if re.search(rf"\b{name.replace('-', '_')}\b", text)
    }


def test_the_kinds_of_schedules_have_no_types_of_python(capsys):
    assert main(["schedules"]) == 0
    text = capsys.readouterr().out
    assert "None" not in text
    assert "list[" not in text
    assert "    rate: probability of dropping out, in [0, 1)." in text


def test_an_option_that_was_not_typed_is_named_without_a_value(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "summing.py").write_text(
        "def total(updates, rng):\n    return updates.sum(0)\n"
    )
    assert main(["conform", "summing:total"]) == 2
    assert "Expected --epsilon to be claimed" in capsys.readouterr().err
    sys.modules.pop("summing")


def test_help_of_conform_offers_what_a_shell_can_give(capsys):
    with pytest.raises(SystemExit):
        main(["conform", "--help"])
    help_text = capsys.readouterr().out
    assert "--probes" not in help_text
    assert "--clip-rule" not in help_text
