"""The convolutional network."""

import torch

from fl_epe.models import Cnn

CNN_PARAMETERS = 1_206_590


def test_the_cnn_has_the_papers_number_of_parameters():
    sizes = {name: values.numel() for name, values in Cnn().named_parameters()}
    assert sum(sizes.values()) == CNN_PARAMETERS
    assert sizes["conv1.weight"] + sizes["conv1.bias"] == 320
    assert sizes["conv2.weight"] + sizes["conv2.bias"] == 18_496
    assert sizes["dense1.weight"] + sizes["dense1.bias"] == 1_179_776
    assert sizes["dense2.weight"] + sizes["dense2.bias"] == 7_998


def test_making_a_model_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    Cnn()
    assert torch.equal(torch.random.get_rng_state(), before)
