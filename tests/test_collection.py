"""Tests have the same names in every process, as workers and reruns find them by name."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CASE = re.compile(r"[A-Za-z0-9_.,:=+-]{1,60}")


def _collect(hash_seed: str) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-o",
        "addopts=",
    ]
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")
    }
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "tests"],
        cwd=ROOT,
        env=environment | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [
        line for line in done.stdout.splitlines() if line.startswith("tests/")
    ]


def _check(names: list[str]) -> None:
    assert len(set(names)) == len(names)
    cases = [name.partition("[") for name in names]
    assert [
        (test, case)
        for test, bracket, case in cases
        if bracket and not CASE.fullmatch(case[:-1])
    ] == []


@pytest.mark.weekly
def test_names_are_the_same_at_any_time_and_in_any_hash_order():
    names = _collect("1")
    assert len(names) > 1000
    _check(names)
    time.sleep(1.1)  # whatever holds the time in seconds has changed by now
    assert _collect("2") == names


def test_cases_are_named_by_short_words(request):
    """Of the tests that are run together with this one."""
    _check([item.nodeid for item in request.session.items])
