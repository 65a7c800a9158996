"""Options made from dataclasses."""

import argparse
import dataclasses
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Literal

import pytest

from fl_epe import RunConfig
from fl_epe.cli.options import add_options, given
from fl_epe.compare import Plan


class TestOptions:
    @dataclasses.dataclass
    class Settings:
        """Made up.

        Attributes:
            must: has no default.
            count: how many of
                `them`, 5% at most.
            share: of all (default: what fits).
            names: several.
            way: one of two.
            often: a number or a word.
            loud: a flag.
            table: no option.
            hidden: left out.
        """

        must: str
        count: int = 3
        share: float | None = None
        names: tuple[str, ...] = ("a", "b")
        way: Literal["up", "down"] = "up"
        often: float | Literal["always"] = 1.0
        loud: bool = False
        table: Mapping[str, int] = dataclasses.field(default_factory=dict)
        hidden: int = 1

    @pytest.fixture
    def parser(self):
        parser = argparse.ArgumentParser()
        add_options(parser, self.Settings, leave_out=("hidden",))
        return parser

    def test_only_what_is_typed_is_given(self, parser):
        words = ["--must", "x", "--names", "c", "d", "--way", "down", "--loud", "--share", "0.5"]
        typed = given(parser.parse_args(words), self.Settings)
        names = ["c", "d"]
        assert typed == {"must": "x", "share": 0.5, "names": names, "way": "down", "loud": True}
        assert given(parser.parse_args(["--must", "x"]), self.Settings) == {"must": "x"}

    @pytest.mark.parametrize(("word", "value"), [("always", "always"), ("2.5", 2.5)])
    def test_a_number_or_a_word(self, word, value, parser):
        words = ["--must", "x", "--often", word]
        assert given(parser.parse_args(words), self.Settings)["often"] == value

    @pytest.mark.parametrize(
        "words",
        ["", "--must x --count 1.5", "--must x --way left", "--must x --often never"],
        ids=["missing", "wrong-type", "wrong-choice", "wrong-word"],
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
        ):
            assert text in texts
        assert "table" not in texts
        assert "hidden" not in texts

    def test_options_work_without_docstrings(self):
        command = [sys.executable, "-OO", "-m", "fl_epe.cli", "run", "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "--noise-multiplier X" in done.stdout

    @pytest.mark.parametrize("settings", [RunConfig, Plan])
    def test_every_setting_is_documented(self, settings):
        for field in dataclasses.fields(settings):
            assert re.search(rf"^ +{field.name}: \S", settings.__doc__, re.M), field.name
