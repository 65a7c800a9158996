"""Parameters as views on a flat vector."""

import pytest
import torch

from fl_epe.models import bind_parameters


def test_parameters_are_views_on_the_flat_vector():
    model = torch.nn.Linear(2, 3)
    flat = torch.arange(9.0)
    bind_parameters(model, flat)
    flat += 1
    assert model.weight.flatten().tolist() == [1, 2, 3, 4, 5, 6]
    assert model.bias.tolist() == [7, 8, 9]


def test_a_flat_vector_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"flat.shape=\(8,\) == \(9,\)"):
        bind_parameters(torch.nn.Linear(2, 3), torch.zeros(8))
