"""Apps for Flower's own places: each makes a bundle, and runs unchanged where Flower runs."""

import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest
from flower_processes import environment, flwr_run, superlink, supernode

from fl_epe import AuditRecord
from fl_epe.limit import runner
from fl_epe.seeding import Seeds
from simulations.andrew_2024 import paper_runs, stackoverflow

pytestmark = pytest.mark.slow

ROOM = Path(__file__).parents[2] / "simulations"
APP, BASELINE = (
    ROOM / "apps" / "canary-audit",
    ROOM / "baselines" / "one-shot-epsilon",
)
HOSPITALS = ROOM / "apps" / "three-hospitals"


def front_matter(readme):
    """The fields between the lines that a README begins with."""
    head = re.findall(r"\A---\n(.*?)\n---\n", readme, re.S)[0]
    return {
        line.partition(":")[0]: line.partition(":")[2]
        for line in head.splitlines()
    }


@pytest.mark.weekly
@pytest.mark.parametrize(
    "app", [APP, BASELINE, HOSPITALS], ids=["app", "baseline", "hospitals"]
)
def test_an_app_makes_a_bundle_of_all_that_it_is(app, tmp_path):
    built = subprocess.run(
        [Path(sys.executable).parent / "flwr", "build", "--app", app],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (bundle,) = tmp_path.glob("*.fab")
    project = tomllib.loads((app / "pyproject.toml").read_text("utf-8"))[
        "project"
    ]
    assert bundle.name.startswith(f"fl-epe.{project['name']}.0-1-0.")
    with zipfile.ZipFile(bundle) as files:
        packed = {name: files.read(name) for name in files.namelist()}
    ours = {
        p.relative_to(app).as_posix(): p for p in app.rglob("*") if p.is_file()
    }
    bundled = {name for name in ours if "__pycache__" not in name}
    assert bundled == packed.keys() - {".info/CONTENT"}
    same = bundled - {"pyproject.toml"}
    assert all(packed[name] == ours[name].read_bytes() for name in same)
    assert "Apache License" in packed["LICENSE"].decode()


def test_the_app_says_what_flower_s_examples_say():
    readme = (APP / "README.md").read_text("utf-8")
    assert front_matter(readme).keys() == {"tags", "dataset", "framework"}
    manifest = tomllib.loads((APP / "pyproject.toml").read_text("utf-8"))
    nodes = manifest["tool"]["flwr"]["app"]["config"]["min-nodes"]
    assert f"**{nodes} SuperNodes**" in readme
    readme = (HOSPITALS / "README.md").read_text("utf-8")
    assert front_matter(readme).keys() == {"tags", "dataset", "framework"}


def settings_of(app):
    manifest = tomllib.loads((app / "pyproject.toml").read_text("utf-8"))
    return manifest["tool"]["flwr"]["app"]["config"]


@pytest.mark.parametrize(
    ("z", "more"), [(0.0496, None), (0.2317, "z0.2317")], ids=["low", "high"]
)
def test_the_baseline_runs_what_the_paper_s_script_runs(
    z, more, monkeypatch, tmp_path
):
    """To the last setting and seed, so that the numbers of its README are of both."""
    monkeypatch.syspath_prepend(BASELINE)
    settings = settings_of(BASELINE)
    if more:
        settings |= tomllib.loads(
            (BASELINE / "conf" / f"{more}.toml").read_text("utf-8")
        )
    found = importlib.import_module("one_shot_epsilon.server_app").job_of(
        settings
    )
    options = Namespace(
        scale=1 / 32,
        data_dir=None,
        task_option=[("max_examples", 64)],
        settings=[],
        noise_multipliers=[z],
        participations=[1],
        seed=0,
    )
    plan = paper_runs.plan_of(stackoverflow.TABLE, options)
    (cell,) = plan.cells()
    jobs = []
    monkeypatch.setattr(
        "fl_epe.simulation.simulate", lambda job, **_: jobs.append(job)
    )
    with pytest.raises(AttributeError):  # there is no record
        runner.train(plan, cell, tmp_path, nodes=1)
    assert found.to_dict() == jobs[0].to_dict()
    assert found.seeds == Seeds.derive(settings["seed"])


@pytest.mark.weekly
@pytest.mark.ray
def test_the_baseline_runs_in_a_simulation(processes, tmp_path):
    superlink(processes, "--simulation")
    federation = "num-supernodes=2 client-resources-num-cpus=1"
    settings = {
        "output": str(tmp_path / "out"),
        "task-num-clients": 8,
        "rounds": 2,
        "clients-per-round": 4,
        "num-canaries": 2,
        "unobserved": 20,
    }
    printed = flwr_run(
        processes, BASELINE, settings, "--federation-config", federation
    )
    assert (tmp_path / "out" / "report.html").exists(), printed + processes.log(
        "superlink"
    )
    assert AuditRecord.load(tmp_path / "out" / "record.npz").rounds == 2


@pytest.mark.weekly
@pytest.mark.ray
def test_the_app_runs_in_a_simulation(processes, tmp_path):
    superlink(processes, "--simulation")
    federation = "num-supernodes=10 client-resources-num-cpus=1"
    settings = {
        "output": str(tmp_path / "out"),
        "num-server-rounds": 6,
        "fraction-train": 1.0,
    }
    printed = flwr_run(
        processes, APP, settings, "--federation-config", federation
    )
    assert (tmp_path / "out" / "report.html").exists(), printed + processes.log(
        "superlink"
    )
    assert AuditRecord.load(tmp_path / "out" / "record.npz").num_canaries >= 2
    assert "every round" in printed


@pytest.mark.ray
def test_three_hospitals_run_in_a_simulation(processes, tmp_path):
    superlink(processes, "--simulation")
    federation = "num-supernodes=3 client-resources-num-cpus=1"
    settings = {"output": str(tmp_path / "out"), "num-server-rounds": 2}
    printed = flwr_run(
        processes, HOSPITALS, settings, "--federation-config", federation
    )
    assert (tmp_path / "out" / "report.html").exists(), printed + processes.log(
        "superlink"
    )
    assert "learns of one record" in " ".join(printed.split())


@pytest.mark.superlink
def test_the_app_runs_on_a_superlink(processes, tmp_path):
    """Two nodes are too few for a canary in two rounds, and the report says so."""
    address = superlink(processes)
    for partition in range(2):
        supernode(processes, address, partition, 2)
    settings = {
        "output": str(tmp_path / "out"),
        "num-server-rounds": 2,
        "min-nodes": 2,
        "fraction-train": 1.0,
    }
    printed = flwr_run(processes, APP, settings)
    assert (tmp_path / "out" / "final_model.pt").exists(), (
        printed + processes.log("superlink")
    )
    assert "No two canaries fit beside 2 clients" in " ".join(printed.split())
