"""`simulations/studies/few_clients.py`: the table of the guide is what the script prints."""

from pathlib import Path

import pytest

from simulations.studies import few_clients

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "few-clients.md"


def test_the_guide_has_the_table_that_the_script_prints(capsys):
    few_clients.main()
    assert capsys.readouterr().out in GUIDE.read_text()


@pytest.mark.parametrize("clients", [3, 5, 10])
@pytest.mark.parametrize("rounds", [60, 120])
def test_every_rounds_epsilon_is_told_to_sixty_percent(clients, rounds):
    every = few_clients.plan_of(clients, rounds).load.forecasts[-1]
    assert (every.high - every.low) / 2 <= 0.6 * every.epsilon
