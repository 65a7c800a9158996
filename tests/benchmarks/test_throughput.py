"""`benchmarks/throughput.py` at a tiny size: every variant trains, and the work is the same.

Nothing is timed here.
"""

import io
import sys

import numpy as np
import pytest
import throughput
import throughput_players
import torch
from alone import Alone
from throughput_models import BATCH, Setting, examples
from throughput_players import descend, own_task

from fl_epe.tasks import ClientData
from fl_epe.training import LocalTraining

pytestmark = pytest.mark.slow

TINY = {"batches": 1, "clients": 4, "cohort": 2}
OWN = ["transformer", "tabular"]


@pytest.mark.parametrize("model", OWN)
def test_our_task_has_the_clients_examples(model):
    setting = Setting(model, **TINY)
    task = own_task(setting)
    assert task.num_clients == setting.clients
    assert task.dim == sum(part.numel() for part in setting.net().parameters())
    for client in range(setting.clients):
        expected = ClientData(*examples(setting, client))
        torch.testing.assert_close(
            task.client(client).inputs, expected.inputs, rtol=0, atol=0
        )
        assert task.client(client).targets.tolist() == expected.targets.tolist()


def test_a_step_of_ours_is_one_of_the_loop_s():
    """One batch, no dropout: the order of the examples changes nothing but rounding."""
    setting = Setting("tabular", **TINY)
    net, task = setting.net(), own_task(setting)
    before = (
        torch.nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    )
    local = LocalTraining(throughput_players._RATE, 1, BATCH)
    update = Alone(task).train(before.numpy(), 2, local, seed=1, round_number=1)
    descend(net, setting, 2)
    after = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    assert np.abs(update.values).max() > 1e-3
    np.testing.assert_allclose(
        update.values, (after - before).numpy(), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("model", OWN)
@pytest.mark.parametrize(
    "name", ["ours", "loop", pytest.param("loop 1", id="loop-1")]
)
def test_a_variant_answers_every_line_with_seconds(
    name, model, monkeypatch, capsys
):
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\ngo\n"))
    try:
        throughput_players._PLAYERS[name](Setting(model, **TINY))
    finally:
        torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["seconds", "seconds"]
    assert all(float(line.split()[1]) > 0 for line in lines)


def test_the_table_has_a_row_for_each_variant(monkeypatch, capsys):
    monkeypatch.setattr(throughput, "_LEAST", 0.0)
    sizes = [
        "--clients",
        "4",
        "--cohort",
        "2",
        "--rounds",
        "2",
        "--warm-up",
        "1",
    ]
    arguments = [
        *sizes,
        "--settings",
        "tabular:1",
        "--variants",
        "ours",
        "loop",
    ]
    monkeypatch.setattr(sys, "argv", ["throughput.py", *arguments])
    throughput.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if "×" in row] == ["ours", "loop"]
