"""Every example in a docstring of `simulations/` is run, and audits print as text."""

import doctest
import importlib

import pytest

from simulations.shared.audit_script import Result, Table

WITH_EXAMPLES = (
    "tramer_2022.broken_examples",
    "tramer_2022.cancelling_statistics",
    "shared.composed",
    "studies.exchangeable",
    "pradhan_2025.hidden_substitute",
    "nasr_2023.sampled_gaussian",
    "nasr_2023.subsampled_bounds",
    "others.two_layer",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_an_example_gives_what_it_shows(name):
    module = importlib.import_module(f"simulations.{name}")
    names = vars(module) | {"np": importlib.import_module("numpy")}
    result = doctest.testmod(module, extraglobs=names)
    assert result.attempted
    assert not result.failed


def test_tables_are_aligned():
    table = Table(
        "bounds",
        ("bound", "ε ≥", "held"),
        [("gdp", 0.75, True), ("mean", None, False)],
    )
    lines = [
        "bounds",
        "bound   ε ≥  held",
        "gdp    0.75   yes",
        "mean      –    no",
    ]
    assert str(table) == "\n".join(lines)
    assert str(Result("All hold.", [table], ["a note"])).endswith(
        "\n\nNote: a note"
    )
