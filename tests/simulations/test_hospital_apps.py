"""The two apps of three hospitals, on Flower and in the loop of NVIDIA FLARE's client API."""

import collections
import dataclasses
import importlib
import json
import re
import sys
import threading
import tomllib
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fl_epe.simulation import InProcessGrid

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]

ROOT = Path(__file__).parents[2]
APPS = ROOT / "simulations/apps"
FLOWER, FLARE = APPS / "three-hospitals", APPS / "nvflare_records"


@pytest.fixture
def task(monkeypatch):
    """The task of the apps; canaries' directions follow from what torch was seeded with."""
    monkeypatch.setattr(
        "fl_epe.silos.audit.secrets.randbits", lambda _: torch.initial_seed()
    )
    monkeypatch.syspath_prepend(FLOWER)
    return importlib.import_module("three_hospitals.task")


def settings(**changed):
    manifest = tomllib.loads((FLOWER / "pyproject.toml").read_text("utf-8"))
    return manifest["tool"]["flwr"]["app"]["config"] | changed


def run(config):
    """The Flower app, its server and three nodes in this process; each node's state at the end."""
    server, client = (
        importlib.import_module(f"three_hospitals.{side}_app")
        for side in ("server", "client")
    )
    states = {}
    turn = threading.Lock()
    answered: collections.Counter[int] = collections.Counter()

    def answer(message, context):
        with turn:  # torch has one generator for all nodes, which take turns in any order
            silo = int(context.node_config["partition-id"])
            answered[silo] += 1
            torch.manual_seed(2**59 + 2**40 * silo + answered[silo])
            states[context.node_id] = context.state
            return client.app(
                message, dataclasses.replace(context, run_config=config)
            )

    own = Context(0, 0, {}, RecordDict(), config)
    with InProcessGrid(answer, nodes=3) as grid:
        server.main(grid, own)
    return states


def test_hospitals_are_unequal_and_have_no_record_in_common(task):
    parts = {name: task.hospital_records(name) for name in task.HOSPITALS}
    rows = [
        tuple(row.tolist())
        for part in parts.values()
        for row in part.tensors[0]
    ]
    assert {name: len(part) for name, part in parts.items()} == task.HOSPITALS
    assert len(set(rows)) == len(rows)
    assert sum(p.numel() for p in task.Net().parameters()) >= 2000


@pytest.mark.slow
def test_the_flower_app_learns_and_says_what_leaks(task, tmp_path, capsys):
    torch.manual_seed(1)
    states = run(settings(**{"num-server-rounds": 2, "output": str(tmp_path)}))
    net = task.Net()
    net.load_state_dict(torch.load(tmp_path / "final_model.pt"))
    loss, accuracy = task.public_accuracy(net)
    assert loss < 0.3
    assert accuracy > 0.85

    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    silos = {silo["silo"]: silo for silo in report["silos"]}
    assert silos.keys() == task.HOSPITALS.keys()
    assert all(silo["unit"] == "record" for silo in silos.values())
    for name in ("east", "south"):
        assert all(
            line["epsilon"] is not None for line in silos[name]["lines"]
        ), silos[name]
    for line in silos["north"]["lines"]:  # 60 records
        assert line["epsilon"] is None
        assert "too few canaries" in line["reason"]
    assert report["faults"] == []
    assert "learns of one record" in capsys.readouterr().out

    for node, (name, records) in enumerate(task.HOSPITALS.items(), 1):
        kept = states[node]["accountant"]
        assert sum(kept["steps"]) == 2 * -(-records // 30), name


class StubFlare(types.ModuleType):
    """The client API of one site whose server averages its model with one that it makes up."""

    def __init__(self, site, weights, start, rounds):
        super().__init__("nvflare.client")
        self.site, self.rounds, self.round = site, rounds, 0
        self.model = {name: value.numpy() for name, value in start.items()}
        self.share = weights[site] / sum(weights.values())
        self.sites = [
            {"name": name, "weight": weight} for name, weight in weights.items()
        ]
        self.rng = np.random.default_rng(0)
        self.sent = []

    def init(self):
        """Nothing to connect to."""

    def get_site_name(self):
        return self.site

    def is_running(self):
        return self.round <= self.rounds

    def is_evaluate(self):
        return self.round == self.rounds

    def receive(self):
        if self.is_evaluate():
            info = {"metrics_aggregation_info": {"site_weights": self.sites}}
            meta = info | {"current_round": self.rounds - 1}
            return types.SimpleNamespace(
                params=self.model, meta=meta, current_round=None
            )
        return types.SimpleNamespace(
            params=self.model, meta={}, current_round=self.round
        )

    def FLModel(self, **fields):  # noqa: N802 - as the client API calls it
        return types.SimpleNamespace(**fields)

    def send(self, model):
        self.sent.append(model)
        self.round += 1
        if not hasattr(model, "params"):
            return
        for name, value in model.params.items():
            others = self.model[name] + 0.02 * self.rng.normal(size=value.shape)
            mixed = self.share * value.numpy() + (1 - self.share) * others
            self.model[name] = mixed.astype(np.float32)


@pytest.fixture
def flare(task, monkeypatch):
    """Run a hospital under a stub of NVIDIA FLARE; returns the stub after it."""

    def go(site, folder, rounds):
        monkeypatch.syspath_prepend(FLARE)
        torch.manual_seed(2)
        stub = StubFlare(site, task.HOSPITALS, task.Net().state_dict(), rounds)
        package = types.ModuleType("nvflare")
        vars(package)["client"] = stub
        monkeypatch.setitem(sys.modules, "nvflare", package)
        monkeypatch.setitem(sys.modules, "nvflare.client", stub)
        monkeypatch.delitem(sys.modules, "hospital_client", raising=False)
        importlib.import_module("hospital_client").main(
            ["--audits", str(folder)]
        )
        return stub

    return go


@pytest.mark.slow
def test_a_hospital_answers_in_the_loop_of_a_client_api(flare, tmp_path):
    stub = flare("south", tmp_path, rounds=4)
    said = (tmp_path / "south" / "answer.txt").read_text("utf-8")
    assert len(stub.sent) == 5
    for line in ("server", "partner", "outsider", "public"):
        assert re.search(rf"^{line} +\d[\d.]* \(", said, re.M), said
    assert "alike" not in said
    assert {name for model in stub.sent for name in vars(model)} == {
        "params",
        "meta",
        "metrics",
    }
    assert all(
        vars(model)["meta"].keys() == {"NUM_STEPS_CURRENT_ROUND"}
        for model in stub.sent[:4]
    )
    assert stub.sent[-1].metrics.keys() == {"accuracy"}


def test_a_hospital_that_is_too_small_says_so_in_that_loop(flare, tmp_path):
    stub = flare("north", tmp_path, rounds=2)
    said = (tmp_path / "north" / "answer.txt").read_text("utf-8")
    assert len(stub.sent) == 3
    assert said.count("not measured") >= 4
    assert "too few" in said


def shown_lines(document):
    """File and line of what a document says is in a file, but ``...``."""
    text = document.read_text("utf-8")
    blocks = re.findall(
        r"^<!-- [^>]*lines of (\S+) -->\n```python\n(.*?)^```",
        text,
        re.M | re.S,
    )
    for path, block in blocks:
        yield from (
            (path, line.strip())
            for line in block.splitlines()
            if line.strip(" .")
        )


def test_the_guide_shows_lines_of_the_apps():
    shown = list(shown_lines(ROOT / "docs/guides/hospitals.md"))
    assert len({path for path, _ in shown}) == 3
    for path, line in shown:
        written = (ROOT / path).read_text("utf-8").splitlines()
        assert line in {one.strip() for one in written}, (path, line)
