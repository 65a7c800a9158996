"""Making a network of a built-in task costs no imports and no random numbers."""

import subprocess
import sys

import pytest
import torch

from fl_epe.models import Cnn, Lstm


@pytest.mark.slow
def test_no_symbolic_mathematics_is_imported():
    """The device "meta" would: 800 modules, 70 MB and a second in every worker."""
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "from fl_epe.models import Cnn, Lstm\n"
        "Cnn(), Lstm(); new = set(sys.modules) - before\n"
        "print([name for name in ('sympy', 'mpmath', 'torch.fx') if name in new])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("network", [Cnn, Lstm], ids=["cnn", "lstm"])
def test_torch_s_random_numbers_stay(network):
    state = torch.random.get_rng_state()
    network()
    assert torch.equal(torch.random.get_rng_state(), state)
