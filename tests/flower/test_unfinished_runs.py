"""A report made before the last round, or of a run that went on, never says "final model"."""

import pytest
from flower_clients import drifting_app, model
from flwr.serverapp import strategy as flower

from fl_epe.flower import CanaryAudit, InProcessGrid

NODES = 20


def started(*lengths, **settings):
    """An audit after several starts of so many rounds, each with the last model."""
    strategy = flower.FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES)
    audit, arrays = (
        CanaryAudit(strategy, delta=1e-5, seed=1, **settings),
        model(),
    )
    with InProcessGrid(drifting_app(), NODES) as grid:
        for length in lengths:
            arrays = audit.start(grid, arrays, num_rounds=length).arrays
    return audit


def text_of(audit, folder=None):
    return " ".join(audit.report(folder, details=True).split())


@pytest.mark.slow
@pytest.mark.parametrize("between", [False, True], ids=["once", "after-each"])
def test_a_second_start_without_rounds_is_not_measured_and_the_report_says_so(
    between, tmp_path
):
    strategy = flower.FedAvg(fraction_evaluate=0.0, min_available_nodes=NODES)
    audit = CanaryAudit(strategy, delta=1e-5, seed=1)
    with InProcessGrid(drifting_app(), NODES) as grid:
        first = audit.start(grid, model(), num_rounds=5)
        if between:
            assert "final model" in text_of(audit)
        audit.start(grid, first.arrays, num_rounds=5)
    text = text_of(audit, tmp_path)
    assert text.startswith(
        "Unreliable, as later rounds are not measured, as the canaries took part"
    )
    assert "give CanaryAudit rounds=…, those of all its starts together" in text
    assert "from the model after round 5 (" in text
    assert "final model" not in text.partition("What do the statistics of")[0]


@pytest.mark.slow
def test_before_the_last_of_the_rounds_that_were_announced():
    text = text_of(started(5, rounds=10))
    assert text.startswith(
        "Whether one client (node) took part, this audit's attack"
    )
    assert "final model" in text_of(started(5, 5, rounds=10))


@pytest.mark.slow
def test_another_model_is_another_run_and_the_first_has_a_final_one():
    audit = started(5)
    with InProcessGrid(drifting_app(), NODES) as grid:
        audit.start(grid, model(), num_rounds=5)
    assert "from the final model (" in text_of(audit)


def test_a_single_round_says_how_to_tell_that_there_are_no_more():
    audit = started(1)
    assert "rounds=1 if there is a single round" in text_of(audit)
    assert "from the final model (" in text_of(started(1, rounds=1))
