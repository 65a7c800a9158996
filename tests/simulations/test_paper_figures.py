"""Figures of Pradhan et al. (2025) and Tramèr et al. (2022) in small, and what they are made of."""

import numpy as np
import pytest
import torch

from simulations.pradhan_2025 import substitute_scratch, substitute_settings
from simulations.shared.audit_script import Settings
from simulations.shared.small_networks import Networks, digits
from simulations.tramer_2022 import debugging

QUICK = Settings(quick=True)


def test_networks_that_sample_have_their_own_batches():
    train, _ = digits(1)
    examples = train.take(torch.arange(4))
    networks = Networks.drawn(2, 3, seed=1)
    sampled = torch.tensor(
        [[True, False, True, False], [True, True, True, True]]
    )
    total = networks.clipped_sum(examples, 0.5, sampled)
    some = networks.clipped_sum(train.take(torch.tensor([0, 2])), 0.5)
    torch.testing.assert_close(total[0], some[0])
    torch.testing.assert_close(total[1], networks.clipped_sum(examples, 0.5)[1])


def test_networks_from_scratch_differ_and_others_do_not():
    alike = Networks.drawn(2, 3, seed=1)
    different = Networks.drawn(2, 3, seed=1, alike=False)
    assert torch.equal(alike.first[0], alike.first[1])
    assert not torch.equal(different.first[0], different.first[1])


def test_training_leaves_the_weight_of_the_crafted_gradient_alone():
    training = substitute_scratch.Training(0.0, 1.0, 3, examples=20, hidden=4)
    scores, _ = substitute_scratch.played(training, 2, 1)["crafted gradient"]
    step = training.learning_rate / training.examples
    moved = training.steps * step * training.clip_norm
    assert scores.observed == pytest.approx([moved, moved])
    assert scores.unobserved == pytest.approx([-moved, -moved])


def test_figure_4_from_scratch():
    result = substitute_scratch.audit(QUICK)
    assert result.passed
    ((table),) = result.tables
    assert [row[1] for row in table.rows] == [
        "crafted gradient",
        "mislabelled",
        "natural sample",
    ]


@pytest.mark.slow
def test_figures_of_hyperparameters():
    result = substitute_settings.audit(QUICK)
    assert result.passed
    assert [table.title.split(":")[0] for table in result.tables] == [
        "Figure A1",
        "Figure A2",
        "Figure A3",
        "Figure A4",
        "Figure 5",
    ]
    assert all(
        len(row) == len(table.columns)
        for table in result.tables
        for row in table.rows
    )


def test_a_claim_is_refuted_by_losses_and_a_right_one_is_not():
    result = debugging.audit(QUICK)
    assert result.passed
    attacks, *histograms = result.tables
    (claimed, *_, broken), (_, *_, correct) = np.array(
        [row[1:] for row in attacks.rows], float
    )
    assert broken > claimed >= correct
    for table in histograms:
        counts = np.array([row[1:] for row in table.rows], int)
        assert counts.sum(axis=0).tolist() == [200, 200]
