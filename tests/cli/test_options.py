"""Options made from dataclasses."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Annotated, Literal

import pytest

from fl_epe.cli.options import Group, Parser, add_options, command_from
from fl_epe.config import RunConfig
from fl_epe.limit import ComparisonPlan


@dataclasses.dataclass
class Inner:
    """Attributes:
    depth: of it.
    hidden: left out.
    """

    depth: int
    hidden: int = 1


class TestOptions:
    @dataclasses.dataclass
    class Settings:
        """Synthetic.

        Attributes:
            must: has no default.
            where: comes without a name.
            count: how many of
                `them`, 5% at most.
            share: of all (default: what fits).
            names: several.
            way: one of two.
            often: a number or a word.
            loud: a flag.
            table: by name.
            inner: what belongs together.
        """

        must: str
        where: Annotated[str, "PLACE"] = "here"
        count: int = 3
        share: float | None = None
        names: tuple[str, ...] = ("a", "b")
        way: Literal["up", "down"] = "up"
        often: float | Literal["always"] = 1.0
        loud: bool = False
        table: Mapping[str, int] = dataclasses.field(default_factory=dict)
        inner: Annotated[
            Mapping[str, int], Group(Inner, without=("hidden",))
        ] = dataclasses.field(default_factory=dict)

    @pytest.fixture
    def parser(self):
        parser = Parser()
        add_options(parser, self.Settings)
        return parser

    def test_only_what_is_typed_is_given(self, parser):
        words = [
            "there",
            "--must",
            "x",
            "--names",
            "c",
            "d",
            "--way",
            "down",
            "--loud",
        ]
        words += [
            "--share",
            "0.5",
            "--table",
            "a-b=1",
            "--table",
            "c=x",
            "--depth",
            "2",
        ]
        more = {
            "way": "down",
            "loud": True,
            "share": 0.5,
            "inner": {"depth": 2},
        }
        more["table"] = {"a_b": 1, "c": "x"}
        expected = self.Settings("x", "there", names=("c", "d"), **more)
        assert command_from(self.Settings, parser.parse_args(words)) == expected
        assert command_from(
            self.Settings, parser.parse_args(["--must", "x"])
        ) == self.Settings("x")

    @pytest.mark.parametrize(
        ("word", "value"), [("always", "always"), ("2.5", 2.5)]
    )
    def test_a_number_or_a_word(self, word, value, parser):
        words = ["--must", "x", "--often", word]
        assert (
            command_from(self.Settings, parser.parse_args(words)).often == value
        )

    @pytest.mark.parametrize(
        "words",
        [
            "",
            *(
                f"--must x --{it}"
                for it in ("count 1.5", "way left", "often never", "table a")
            ),
        ],
        ids=["missing", "wrong-type", "wrong-choice", "wrong-word", "no-pair"],
    )
    def test_what_is_missing_or_wrong_is_refused(self, words, parser):
        with pytest.raises(SystemExit):
            parser.parse_args(words.split())

    def test_help_is_the_docstring_with_the_defaults(self, parser):
        texts = " ".join(parser.format_help().split())
        for text in (
            "--must TEXT has no default",
            "--count N how many of them, 5% at most (default: 3)",
            "--share X of all (default: what fits)",
            "several (default: a b)",
            "one of two (default: up)",
            "--loud a flag",
            "--often X|always a number or a word (default: 1.0)",
            "--table NAME=VALUE by name",
            "PLACE comes without a name (default: here)",
            "what belongs together: --depth N of it",
        ):
            assert text in texts
        assert "hidden" not in texts

    @pytest.mark.slow
    def test_options_work_without_docstrings(self):
        command = [sys.executable, "-OO", "-m", "fl_epe", "run", "--help"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True
        )
        assert "--noise-multiplier X" in done.stdout

    @pytest.mark.parametrize("settings", [RunConfig, ComparisonPlan])
    def test_every_setting_is_documented(self, settings):
        for field in dataclasses.fields(settings):
            assert re.search(rf"^ +{field.name}: \S", settings.__doc__, re.M), (
                field.name
            )
