"""The two apps of three hospitals, on Flower and in the loop of NVIDIA FLARE's client API."""

import dataclasses
import importlib
import sys
import tomllib
import types
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from fl_epe.simulation import InProcessGrid

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]

APPS = Path(__file__).parents[2] / "simulations" / "apps"
FLOWER, FLARE = APPS / "three-hospitals", APPS / "nvflare_records"


@pytest.fixture
def task(monkeypatch):
    monkeypatch.syspath_prepend(FLOWER)
    return importlib.import_module("three_hospitals.task")


def settings(**changed):
    manifest = tomllib.loads((FLOWER / "pyproject.toml").read_text("utf-8"))
    return manifest["tool"]["flwr"]["app"]["config"] | changed


def run(config):
    """The Flower app, its server and three nodes in this process."""
    server, client = (
        importlib.import_module(f"three_hospitals.{side}_app") for side in ("server", "client")
    )

    def answer(message, context):
        return client.app(message, dataclasses.replace(context, run_config=config))

    own = Context(0, 0, {}, RecordDict(), config)
    with InProcessGrid(answer, nodes=3) as grid:
        server.main(grid, own)


def test_hospitals_are_unequal_and_have_no_record_in_common(task):
    parts = [task.hospital_records(number) for number in range(3)]
    rows = [tuple(row.tolist()) for part in parts for row in part.tensors[0]]
    assert [len(part) for part in parts] == list(task.RECORDS) == [60, 150, 245]
    assert len(set(rows)) == len(rows)
    assert sum(p.numel() for p in task.Net().parameters()) >= 2000


def test_the_flower_app_learns(task, tmp_path):
    torch.manual_seed(1)
    run(settings(**{"num-server-rounds": 4, "output": str(tmp_path)}))
    net = task.Net()
    net.load_state_dict(torch.load(tmp_path / "final_model.pt"))
    loss, accuracy = task.public_accuracy(net)
    assert loss < 0.3
    assert accuracy > 0.85
