"""`simulations/in_the_wild/flower_accountant.py`: what it prints is what the guide says of it."""

import re
from pathlib import Path

import pytest

from simulations.in_the_wild import flower_accountant

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "flower-accountant.md"


def numbers(text):
    """The numbers of each line of a table that begins with one."""
    lines = [line.strip("| ") for line in text.splitlines()]
    return [
        re.findall(r"\d+(?:\.\d+)?", line)
        for line in lines
        if line[:1].isdigit()
    ]


def test_the_guide_has_the_numbers_that_the_script_expects():
    expected = numbers(flower_accountant.__doc__)
    assert len(expected) == len(flower_accountant.RUNS)
    assert numbers(GUIDE.read_text("utf-8")) == expected


@pytest.mark.weekly
@pytest.mark.filterwarnings(
    "ignore"
)  # dp-accounting's, of orders that do not help
def test_what_is_spent_is_at_least_what_theory_says(capsys):
    flower_accountant.main(["--quick"])
    rows = numbers(capsys.readouterr().out)
    assert len(rows) == len(flower_accountant.RUNS)
    for _, _, spent, exact, theory, *_ in rows:
        assert float(spent) > float(exact) > float(theory)
