"""The study of nodes that hide the others, with few runs."""

import pytest

from simulations.studies import dominant_nodes as study


@pytest.fixture(autouse=True)
def few_runs(monkeypatch):
    monkeypatch.setattr(study, "RUNS", 20)


@pytest.mark.parametrize("nodes", [3, 5])
def test_honest_nodes_of_one_size_are_seldom_named(nodes):
    run, first = study.named(nodes, sizes=0.0, drift=0.5)
    assert max(run, first) <= 0.05


@pytest.mark.parametrize(
    "lie", [study.claims_all_examples, study.share_one_vector]
)
def test_those_that_hide_the_others_are(lie):
    assert study.named(30, sizes=0.5, drift=0.0, lie=lie) == (1.0, 1.0)
