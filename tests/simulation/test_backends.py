"""The same app under Ray, under `flwr run`, and on a real SuperLink with two SuperNodes."""

import importlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
from flower_processes import (
    flwr_run,
    flwr_start,
    ray_node,
    server_apps,
    superlink,
    supernode,
)

from fl_epe import AuditRecord
from fl_epe.config import RunConfig
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.tasks import load_task

APP = Path(__file__).parents[2] / "simulations" / "apps" / "flower_app"
CONFIG = RunConfig(clients=12, rounds=3, clients_per_round=12)
SETTINGS = {"num-clients": 12, "rounds": 3, "clients-per-round": 12, "seed": 5}


@pytest.fixture(scope="module")
def job():
    return Job(load_task("digits", num_clients=12), CONFIG, Seeds.derive(5))


@pytest.fixture(scope="module")
def in_process(job):
    return simulate(job)


def _assert_same_run(record, in_process):
    assert np.array_equal(record.presence, in_process.presence)
    assert np.array_equal(record.clients.ids, in_process.clients.ids)
    assert not record.clients.absent.any()
    # the same model within 1e-5 has the same cosines within 1e-5/√d, and the same norm
    tolerance = 1e-5 / np.sqrt(record.dim)
    np.testing.assert_allclose(
        record.observed.final, in_process.observed.final, atol=tolerance
    )
    np.testing.assert_allclose(
        record.observed.means, in_process.observed.means, atol=tolerance
    )
    assert record.norms.final == pytest.approx(in_process.norms.final, rel=1e-5)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # of Ray's, in its own threads
def test_ray_with_two_workers(job, in_process):
    record = simulate(job, backend="ray", workers=2)
    _assert_same_run(record, in_process)
    assert np.array_equal(
        record.observed.final, in_process.observed.final
    )  # to the last bit


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # of Ray's, in its own threads
def test_ray_on_a_cluster_of_two_nodes(job, in_process, processes, monkeypatch):
    """Both on this machine, each with one CPU."""
    address = f"127.0.0.1:{processes.ports.take()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with tempfile.TemporaryDirectory(
        dir="/tmp"
    ) as folder:  # paths of sockets must be short
        head = ("--head", f"--port={address[10:]}", "--include-dashboard=false")
        ray_node(processes, "ray-head", *head, f"--temp-dir={folder}")
        ray_node(processes, "ray-second", f"--address={address}")
        record = simulate(job, backend="ray", workers=2)
        ray = importlib.import_module("ray")
        ray.init(address=address, log_to_driver=False)
        nodes = ray.nodes()
        ray.shutdown()
        processes.end_all()
    assert [node["Resources"]["CPU"] for node in nodes if node["Alive"]] == [
        1,
        1,
    ]
    _assert_same_run(record, in_process)
    assert np.array_equal(
        record.observed.final, in_process.observed.final
    )  # to the last bit


def _run_app(processes, tmp_path, *options):
    app = shutil.copytree(APP, tmp_path / "app")
    output = tmp_path / "out"
    printed = flwr_run(
        processes, app, {**SETTINGS, "output": str(output)}, *options
    )
    assert (output / "record.npz").exists(), printed + processes.log(
        "superlink"
    )
    assert (output / "report.html").exists()
    return AuditRecord.load(output / "record.npz")


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.ray
def test_flwr_run_in_simulation(processes, tmp_path, in_process):
    superlink(processes, "--simulation")
    federation = "num-supernodes=2 client-resources-num-cpus=1"
    record = _run_app(processes, tmp_path, "--federation-config", federation)
    _assert_same_run(record, in_process)


@pytest.mark.slow
@pytest.mark.superlink
def test_superlink_with_two_supernodes(processes, tmp_path, in_process):
    address = superlink(processes)
    for partition in range(2):
        supernode(processes, address, partition, 2)
    _assert_same_run(_run_app(processes, tmp_path), in_process)


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.superlink
def test_a_server_app_that_is_killed_on_a_superlink_goes_on(
    processes, tmp_path, in_process
):
    address = superlink(processes)
    for partition in range(2):
        supernode(processes, address, partition, 2)
    app, output = shutil.copytree(APP, tmp_path / "app"), tmp_path / "out"
    settings = {**SETTINGS, "output": str(output), "checkpoint-every": "1"}
    flwr_start(processes, app, settings)
    kept = (
        output / "checkpoint-previous.npz"
    )  # of a round, beside the one before the first
    processes.wait_until(kept.exists, "run", "keep a round")
    killed = server_apps(processes)
    for process in killed:
        os.kill(process, signal.SIGKILL)
    assert killed
    assert not (output / "record.npz").exists()
    flwr_run(processes, app, settings)
    record = AuditRecord.load(output / "record.npz")
    _assert_same_run(record, in_process)
    assert np.array_equal(
        record.observed.means, in_process.observed.means
    )  # to the last bit
    assert record.provenance.fault_counts == {}
    assert not kept.exists()
