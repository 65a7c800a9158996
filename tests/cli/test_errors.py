"""What the command line says when something is wrong: one line that names what was typed."""

import argparse
import dataclasses
import errno
import functools
import json
import math
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from fl_epe.checks import (
    ArgumentError,
    argument_context,
    check_types,
    rename_arguments,
)
from fl_epe.cli import console, main
from fl_epe.cli.main import parser_for
from fl_epe.config import RunConfig
from fl_epe.files import LOCK
from fl_epe.limit import ComparisonPlan
from fl_epe.schedules import SCHEDULES

FL_EPE = [sys.executable, "-m", "fl_epe"]
COMMANDS = (
    ("run", "digits"),
    ("resume", "RUN"),
    ("report", "RUN"),
    ("compare",),
    ("advise", "noise", "--target-epsilon", "1"),
    ("advise", "log", "{log}", "--noise-multiplier", "1"),
    ("estimate", "{scores}"),
    ("schedules",),
    ("data", "convert", "emnist", "source", "target"),
)
UNREAL = ("nan", "inf", "-inf", "1e999", "x", "")
HUGE = "9" * 400


def _name(words):
    """Of a command in a test's name: its words, without its files."""
    return "-".join(word for word in words[:2] if word[0] != "{")


def fails(capsys, words, status=2):
    """The line of error of a command that ends with this status."""
    try:
        ended: object = main([str(word) for word in words])
    except SystemExit as end:  # argparse's way
        ended = end.code
    printed = capsys.readouterr().err
    assert ended == status, printed
    assert printed.startswith("fl-epe: error: ")
    assert len(printed.splitlines()) == 1
    assert "Traceback" not in printed
    return printed


@functools.cache
def parser_of(words):
    """The parser of a command."""
    parser = parser_for(words)
    for word in words[:2]:
        actions = [
            a
            for a in parser._actions
            if isinstance(a, argparse._SubParsersAction)
        ]
        if actions and word in actions[0].choices:
            parser = actions[0].choices[word]
    return parser


def options_that_take(kinds):
    """Each option of each command whose value is of one of these kinds, by what its help shows."""
    return [
        pytest.param(
            words, action.option_strings[-1], id=f"{_name(words)}{name}"
        )
        for words in COMMANDS
        for action in parser_of(words)._actions
        if action.option_strings
        and action.metavar in kinds
        and action.nargs != 0
        for name in action.option_strings[-1:]
    ]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    rows = [f"{t},{c}\n" for t in range(6) for c in range(10) if (t + c) % 3]
    path.write_text("round,client_id\n" + "".join(rows))
    scores = "".join(f"0.{i},-0.{i}\n" for i in range(1, 9))
    path.with_name("scores.csv").write_text("observed,unobserved\n" + scores)
    return path


def filled(words, log):
    return [
        word.format(log=log, scores=log.with_name("scores.csv"))
        for word in words
    ]


class TestEveryOption:
    @pytest.mark.slow
    @pytest.mark.parametrize(("words", "option"), options_that_take(("X", "N")))
    def test_no_number(self, words, option, log, capsys):
        for text in (*UNREAL, HUGE):
            printed = fails(capsys, [*filled(words, log), f"{option}={text}"])
            assert re.search(rf"{option}\b", printed)

    @pytest.mark.parametrize(("words", "option"), options_that_take(("X", "N")))
    def test_out_of_range(
        self, words, option, log, capsys, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        printed = fails(capsys, [*filled(words, log), f"{option}=-7"])
        assert option in printed
        assert (
            option[2:].replace("-", "_") not in printed or "-" not in option[2:]
        )

    @pytest.mark.parametrize(
        ("words", "option"), options_that_take(("TEXT", "PATH"))
    )
    def test_empty(self, words, option, log, capsys):
        assert option in fails(capsys, [*filled(words, log), option, ""])

    def test_options_are_found(self):
        assert len(options_that_take(("X", "N"))) > 50
        assert len(options_that_take(("TEXT", "PATH"))) > 10

    @pytest.mark.parametrize("words", COMMANDS, ids=_name)
    def test_no_abbreviation_and_a_hint(self, words, log, capsys):
        assert parser_of(words).allow_abbrev is False
        printed = fails(capsys, [*filled(words, log), "--debu"])
        assert (
            "unrecognized arguments: --debu (did you mean --debug?)" in printed
        )


RUN = ("run", "digits")
LIMIT = (
    "compare",
    "--workers",
    "1",
    "--output",
    "out",
    "--participations",
    "1",
)


class TestOneLine:
    @pytest.mark.parametrize(
        ("words", "parts"),
        [
            (
                [*RUN, "--clip-count-std", "0"],
                ["--noise-multiplier=0.25", "--clip-count-std=0.0"],
            ),
            (
                [*RUN, "--noise-multiplier", "1e-300"],
                ["--noise-multiplier=1e-300 in [1e-06"],
            ),
            (
                [*RUN, "--noise-multiplier", "1e300"],
                ["--noise-multiplier=1e+300 in [1e-06"],
            ),
            ([*RUN, "--clip-quantile", "2"], ["--clip-quantile=2.0"]),
            ([*RUN, "--server-momentum", "1"], ["--server-momentum=1.0"]),
            (
                [*RUN, "--clients-per-round", "500"],
                ["=500 <= --num-clients=120"],
            ),
            ([*RUN, "--canary-participations", "99"], ["(0, --rounds=60]"]),
            (
                [*RUN, "--participation", "trace:path=log.csv"],
                ["--participation", "compare"],
            ),
            (
                [*RUN, "--rounds", "7", "--participation", "balls-in-bins"],
                [
                    "--rounds=7 * --clients-per-round=24 / --num-clients=120 = 1.4"
                ],
            ),
            (
                [*LIMIT, "--noise-multipliers", "1e300"],
                ["--noise-multipliers=1e+300"],
            ),
            (
                [*LIMIT, "--set", "local-epochs=2"],
                ["--set", "only with a task to train"],
            ),
            (
                [
                    *LIMIT,
                    "--task",
                    "digits",
                    "--schedules",
                    "epochs",
                    "--set",
                    "local-epochs=x",
                ],
                ["--set local-epochs='x' to be an integer"],
            ),
            (["estimate", "."], ["'.' to be a file"]),
        ],
        ids=lambda value: None,
    )
    def test_what_was_typed(self, words, parts, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        printed = fails(capsys, words)
        assert [part for part in parts if part not in printed] == [], printed

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            (
                "min-separation:separation=abc",
                "separation='abc' to be an integer",
            ),
            (
                "min-separation:separation=1e400",
                "separation=inf to be an integer",
            ),
            ("capped:of=poisson,per_run=1.5", "per_run=1.5 to be an integer"),
            ('capped:{"of": [], "per_run": 2}', "of=[] to be text"),
            (
                'capped:{"of": "", "per_run": 2}',
                "of='' to be text that is not empty",
            ),
            ("capped:of=5,per_run=2", "of=5 to be text"),
            ("drop-out:of=epochs,rate=abc", "rate='abc' to be a finite number"),
            (
                'drop-out:{"of": "epochs", "rate": true}',
                "rate=True to be a finite number",
            ),
            (
                "device-classes:rates=1,shares=1",
                "rates=1 to be a list of numbers",
            ),
            ("poisson:rounds=3", "unknown option rounds=3"),
            ("poisson:kind=3", "unknown option kind='poisson'"),
            ("capped:of=poisson,of=epochs,per_run=1", "each option once"),
            ('drop-out:{"of": ' + "[" * 100_000, "a JSON object"),
        ],
        ids=range(13),
    )
    @pytest.mark.parametrize(
        "words",
        [
            (*RUN, "--participation"),
            (*LIMIT, "--schedules"),
            ("advise", "noise", "--target-epsilon", "1", "--participation"),
        ],
        ids=["run", "compare", "advise"],
    )
    def test_inside_a_schedule(self, words, spec, message, capsys):
        printed = fails(capsys, [*words, spec])
        assert f"In {words[-1]}=" in printed
        assert message in printed.replace(spec, "")

    def test_characters_that_move_the_cursor_are_written_out(self, capsys):
        printed = fails(capsys, ["estimate", "a\x1b[2J\nb"])
        assert "\x1b" not in printed

    def test_a_name_in_a_path_is_no_option(self, capsys):
        assert "'rounds=3/x.csv'" in fails(capsys, ["advise", "noise", "--target-epsilon", "1",
            "--participation", "trace:path=rounds=3/x.csv"])  # fmt: skip


class TestLastHandler:
    @pytest.fixture
    def broken(self, monkeypatch):
        def fail(error):
            def raise_it(*_, **__):
                raise error

            monkeypatch.setattr("fl_epe.cli.compare.terminal", raise_it)

        return fail

    @pytest.mark.parametrize(
        "error", [KeyError("key"), TypeError("no\nway"), RecursionError()]
    )
    def test_one_line_and_a_status_of_its_own(self, error, broken, capsys):
        broken(error)
        printed = fails(capsys, ["schedules"], status=1)
        for part in (
            "schedules failed",
            type(error).__name__,
            console.ISSUES,
            "--debug",
        ):
            assert part in printed

    @pytest.mark.parametrize("words", [["schedules", "--debug"]])
    def test_debug_shows_the_traceback(self, words, broken, capsys):
        broken(KeyError("key"))
        assert main(words) == 1
        assert "Traceback (most recent call last)" in capsys.readouterr().err

    def test_too_little_memory(self, broken, capsys):
        broken(MemoryError("cannot allocate 3 TiB"))
        printed = fails(capsys, ["schedules"])
        assert "cannot allocate 3 TiB" in printed
        assert "End other programs, or ask for less" in printed

    @pytest.mark.parametrize(
        ("number", "advice"),
        [
            pytest.param(errno.ENOSPC, "Free some space.", id="full"),
            pytest.param(
                errno.EROFS, "Change the permissions there.", id="read-only"
            ),
            pytest.param(
                errno.EACCES, "Change the permissions there.", id="not-allowed"
            ),
            pytest.param(errno.EIO, "", id="broken"),
        ],
    )
    def test_what_is_advised_about_a_file_suits_it(
        self, number, advice, broken, capsys
    ):
        broken(OSError(number, os.strerror(number), "place"))
        printed = fails(capsys, ["schedules"])
        assert printed.strip().endswith(
            f"{os.strerror(number)}: 'place'. {advice}".strip()
        )

    def test_ctrl_c(self, broken, capsys):
        broken(KeyboardInterrupt())
        assert main(["schedules"]) == 130
        assert capsys.readouterr().err == "Stopped.\n"

    @pytest.mark.slow
    def test_nobody_reads(self):
        command = f"{' '.join(FL_EPE)} schedules | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True
        )
        assert done.stderr == ""
        assert done.returncode in (
            0,
            141,
        )  # 0 if all of it fitted into the pipe

    @pytest.mark.slow
    def test_a_pipe_that_is_closed(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [*FL_EPE, "schedules"], stdout=writer, stderr=subprocess.PIPE
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, b"")

    @pytest.mark.slow
    @pytest.mark.skipif(
        not os.path.exists("/dev/full"), reason="needs /dev/full"
    )
    @pytest.mark.parametrize("words", [["schedules"]], ids="-".join)
    def test_a_full_disk(self, words):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*FL_EPE, *words], stdout=full, stderr=subprocess.PIPE
            )
        assert done.returncode == 2
        assert done.stderr.startswith(
            b"fl-epe: error: No space left on device."
        )
        assert len(done.stderr.splitlines()) == 1

    @pytest.mark.parametrize(
        "words", [["compare"], ["run", "digits"]], ids="-".join
    )
    def test_places_where_nothing_can_be_written(self, words, capsys, tmp_path):
        (tmp_path / "file").write_text("")
        inside = tmp_path / "file" / "x"
        assert f"Not a directory: '{inside}'" in fails(
            capsys, [*words, "--output", inside]
        )


class TestArgumentError:
    def test_says_names_as_the_caller_writes_them(self):
        error = ArgumentError(
            "Expected {a_b} < {c}, not {other}.", a_b="x{c}y", c=2
        )
        assert str(error) == "Expected a_b='x{c}y' < c=2, not {other}."
        options = {"a_b": "--a-b", "c": "--c"}
        assert error.message(options).startswith(
            "Expected --a-b='x{c}y' < --c=2"
        )
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (str(again), again.values) == (str(error), error.values)

    def test_renamed_arguments_in_a_context(self):
        with (
            pytest.raises(
                ArgumentError,
                match=r"In of='x': expected rate=2 in \[0, total=9\]\.",
            ) as e,
            argument_context("of", "x", "total"),
            rename_arguments(t="total"),
        ):
            raise ArgumentError("Expected {rate} in [0, {t}].", rate=2, t=9)
        assert e.value.values == {"of": "x", "total": 9}

    @pytest.mark.parametrize(
        "value", ["5", 2.5, math.inf, math.nan, True, None, [1], 10**19]
    )
    def test_types(self, value):
        @dataclasses.dataclass
        class Settings:
            count: int

        with pytest.raises(ArgumentError, match="count="):
            check_types(Settings(value))

    def test_whole_floats_become_integers(self):
        config = RunConfig(clients=100.0, rounds=8.0)
        assert (type(config.clients), type(config.rounds)) == (int, int)
        assert type(ComparisonPlan(rounds=8.0).rounds) is int


class TestText:
    @pytest.mark.parametrize(
        "name",
        [
            "[red]x[/red]",
            *(
                pytest.param(x, marks=pytest.mark.slow)
                for x in ("[/]", ":smile:")
            ),
        ],
        ids=["red", "end", "smile"],
    )
    def test_is_no_markup(self, name, tmp_path, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "200")
        path = tmp_path / "log.csv"
        rows = [f"{t},{c}\n" for t in range(6) for c in (name, "b", "c")]
        path.write_text("round,client_id\n" + "".join(rows))
        assert (
            main(["advise", "log", str(path), "--noise-multiplier", "1"]) == 0
        )
        assert name in capsys.readouterr().out
        assert f"{name}'" in fails(capsys, ["estimate", name])
        path.rename(name.replace("/", "|") + ".csv")
        spec = f"trace:path={name.replace('/', '|')}.csv"
        words = [
            "compare",
            "--workers",
            "1",
            "--schedules",
            spec,
            "epochs",
            "--output",
            "o" + name,
        ]
        assert main([*words, "--noise-multipliers", "1"]) == 0
        printed = "".join(capsys.readouterr().out.split())
        assert spec in printed
        assert f"o{name}/compare.html" in printed

    def test_is_escaped_on_a_page(self, log, capsys, tmp_path):
        odd = log.rename(tmp_path / "<b>&.csv")
        words = [
            "compare",
            "--workers",
            "1",
            "--schedules",
            f"trace:path={odd}",
            "epochs",
        ]
        assert (
            main(
                [
                    *words,
                    "--noise-multipliers",
                    "1",
                    "--output",
                    str(tmp_path / "out"),
                ]
            )
            == 0
        )
        page = (tmp_path / "out" / "compare.html").read_text()
        assert "<b>&" not in page
        assert "&lt;b&gt;&amp;.csv" in page


class TestCommands:
    @pytest.mark.slow
    def test_schedules_that_are_listed_work(
        self, log, capsys, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        assert main(["schedules"]) == 0
        lines = capsys.readouterr().out.splitlines()
        described = [
            line.partition(": ") for line in lines if line.startswith("    ")
        ]
        assert len(described) > 10
        assert [option for option, _, about in described if not about] == []
        examples = [line for line in lines if line.startswith("  fl-epe")]
        specs = [spec for line in examples for spec in shlex.split(line)[3:]]
        assert {*SCHEDULES} & {*lines} == {*SCHEDULES}
        assert {spec.partition(":")[0] for spec in specs} < {*SCHEDULES}
        for spec in specs:
            words = ["advise", "noise", "--target-epsilon", "1", "--json"]
            assert main([*words, "--participation", spec]) == 0, spec
            assert json.loads(capsys.readouterr().out)["noise_multiplier"] > 0

    def test_the_package_is_a_program(self):
        done = subprocess.run(
            [*FL_EPE, "--version"], capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith("fl-epe ")


def with_usual_signals():
    """Whoever started the tests may have them ignored, as a shell does in the background."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.slow
def test_ctrl_c_of_a_process(tmp_path):
    command = [
        *FL_EPE,
        "compare",
        "--workers",
        "1",
        "--rounds",
        "4096",
        "--output",
        tmp_path,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=with_usual_signals,
    )
    end = time.monotonic() + 300
    while time.monotonic() < end and not (tmp_path / LOCK).exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in out + err


@pytest.mark.slow
def test_the_exit_status_of_an_interrupt_in_a_text_that_is_executed(tmp_path):
    """As while SciPy is imported: CPython would end the process by the signal instead."""
    (tmp_path / "mine.py").write_text(
        "import signal\nexec('signal.raise_signal(signal.SIGINT)')\n"
    )
    done = subprocess.run(
        [*FL_EPE, "run", "mine:task"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
