"""`benchmarks/gpu.py` on the CPU: the run is DPFedAvg's, it resumes, and it needs no more packages.

What it measures is for a GPU; here it is only made sure that it works there at all.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gpu
import gpu_measures
import gpu_scoring
import numpy as np
import pytest
import torch
from gpu_run import AuditedRun, RunPlan, checkpoints
from tiny import Tiny

from fl_epe.canaries import CanarySet
from fl_epe.canaries.directions import transform
from fl_epe.config import RunConfig
from fl_epe.models import one_thread
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.training import Execution, LocalTraining

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.py"
CPU = Execution(device="cpu", chunk=1)
QUICK = ["--quick", "--device", "cpu"]


def plan(seed=1, **changes):
    task = Tiny()
    settings = {
        "rounds": 6,
        "clients_per_round": 5,
        "num_canaries": 12,
        "unobserved": 8,
    }
    settings |= {"canary_participations": 1}
    drawn = {"noise_generator": "sfc64"}  # as `AuditedRun` draws it
    config = RunConfig(clients=task.num_clients, **settings | drawn | changes)
    return RunPlan(task, config, Seeds.derive(seed), CPU)


def played(run, rounds):
    for _ in range(rounds):
        run.play()
    return run


@pytest.mark.parametrize(
    ("dim", "count"), [(100, 60_000), (65_536, 500), (70_000, 500)]
)
def test_a_tensor_is_scored_like_an_array(dim, count):
    canaries = CanarySet(dim, count, 3)
    x = np.random.default_rng(0).standard_normal(dim).astype(np.float32)
    found = gpu_scoring.dot(canaries, torch.from_numpy(x))
    apart = 1e-5 * float(np.linalg.norm(x)) / dim**0.5
    np.testing.assert_allclose(found, canaries.dot(x), atol=apart)
    assert found.dtype == np.float64
    assert not gpu_scoring.dot(canaries, torch.zeros(dim)).any()


def test_butterflies_are_exact_for_whole_numbers():
    x = np.random.default_rng(1).choice([-1, 1], 1 << 16).astype(np.float32)
    slow = gpu_scoring.butterflies(torch.from_numpy(x.copy()))
    assert np.array_equal(slow.numpy(), transform(x.copy()))


def test_the_run_is_that_of_dp_fedavg():
    own = plan()
    run = played(AuditedRun(own), own.config.rounds)
    found, expected = (
        run.record(),
        simulate(Job(own.task, own.config, own.seeds), workers=1),
    )
    np.testing.assert_array_equal(found.presence, expected.presence)
    np.testing.assert_allclose(
        found.mechanism.clip_norms, expected.mechanism.clip_norms, rtol=0
    )
    np.testing.assert_allclose(
        found.norms.means, expected.norms.means, rtol=1e-6
    )
    for side in ("observed", "unobserved"):
        for name in ("means", "final", "displacement"):
            values = [
                getattr(getattr(record, side), name)
                for record in (found, expected)
            ]
            # The velocity is float32: each entry is off by 2^-24 of itself in every round.
            off = np.abs(values[0] - values[1]).max() * np.sqrt(found.dim)
            assert off < own.config.rounds * 2**-20, name
    assert found.mechanism.server.name == expected.mechanism.server.name
    assert found.mechanism.cohort_size == expected.mechanism.cohort_size


def test_a_run_goes_on_from_its_checkpoint_to_the_bit(tmp_path):
    whole = played(AuditedRun(plan()), 6)
    first = played(AuditedRun(plan()), 2)
    first.save(tmp_path)
    played(first, 1).save(tmp_path)
    (
        tmp_path / "after-00004.part"
    ).mkdir()  # a call that was killed while it wrote
    assert [path.name for path in checkpoints(tmp_path)] == ["after-00003"]
    second = AuditedRun(plan())
    assert second.resume(tmp_path)
    assert second.rounds_done == 3
    played(second, 3)
    np.testing.assert_array_equal(second.theta, whole.theta)
    records = [run.record() for run in (second, whole)]
    for name in ("means", "final", "displacement"):
        values = [getattr(record.observed, name) for record in records]
        np.testing.assert_array_equal(*values)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    played(AuditedRun(plan()), 1).save(tmp_path)
    with pytest.raises(ValueError, match=r"another seeds"):
        AuditedRun(plan(seed=2)).resume(tmp_path)
    with pytest.raises(ValueError, match=r"another config"):
        AuditedRun(plan(noise_multiplier=0.1)).resume(tmp_path)
    assert not AuditedRun(plan()).resume(tmp_path / "empty")


def test_agreement_tells_how_far_updates_are_apart():
    same = gpu_measures.correlation(Tiny(), CPU, LocalTraining())
    rounded = gpu_measures.correlation(
        Tiny(), Execution("cpu", 4, "bf16"), LocalTraining()
    )
    assert same["relative"] == 0
    assert 1e-4 < rounded["relative"] < 2**-5  # bfloat16 keeps eight bits


def test_a_lost_client_is_told(tmp_path):
    own = plan()
    broken = RunPlan(
        Tiny(poisoned=tuple(range(20))), own.config, own.seeds, CPU
    )
    run = played(AuditedRun(broken), 1)
    assert len(run.faults) == 5
    assert run.series["clients"] == [0]


def check(values):
    """Every section is there, and what does not depend on the machine is as it should be."""
    sections = {name.partition("/")[0] for name in values["cells"]}
    assert sections == set(gpu._SECTIONS)
    for name, answer in values["cells"].items():
        if name.startswith("scoring/"):
            assert answer["from_cpu"]["few"] < 1e-5
        if name.startswith("correlation/") and name.endswith("float32"):
            # Rounding is 1e-7; one rectified unit that the last bit turns moves an update by 5e-4.
            assert answer["relative"] < 5e-3
        if name.startswith("speed/"):
            assert answer["chunk"] == int(name.split("/")[3].split()[0])
        if name.startswith(("speed/", "round/")):
            assert answer["notes"] == [], name
            assert not answer.get("faults"), name
    assert values["cells"]["run"]["so_far"]["rounds"] == 6


@pytest.fixture
def linear(monkeypatch):
    """All sections with a linear model of 2,005 parameters."""
    both = dict.fromkeys(("cnn", "lstm"), (Tiny(), LocalTraining()))
    monkeypatch.setattr(gpu.Setting, "batches", lambda _: both)
    monkeypatch.setattr(
        gpu.Setting, "full", lambda _: dict.fromkeys(both, Tiny())
    )
    with one_thread():
        yield


@pytest.mark.weekly
@pytest.mark.usefixtures("linear")
def test_a_call_stops_at_its_budget_and_the_next_goes_on(tmp_path, capsys):
    command = [*QUICK, "--output", str(tmp_path / "first")]
    assert gpu.main([*command, "--budget", "0"]) == 0
    assert "Not finished" in capsys.readouterr().out
    command[-1] = str(tmp_path / "second")
    assert gpu.main([*command, "--resume", str(tmp_path / "first")]) == 0
    out = capsys.readouterr().out
    assert "6 of 6 rounds" in out
    assert re.search(r"ε, every round: [\d.]+ \([\d.]+ – [\d.]+\)", out)
    assert "FAILED" not in out
    assert "Not finished" not in out
    before = (tmp_path / "second" / "quick.json").read_text()
    check(json.loads(before))
    assert gpu.main([*command, "--resume", str(tmp_path / "first")]) == 0
    assert (tmp_path / "second" / "quick.json").read_text() == before


@pytest.mark.usefixtures("linear")
def test_a_failure_leaves_the_rest_and_is_tried_again(
    tmp_path, monkeypatch, capsys
):
    def fail(*_):
        raise RuntimeError("no memory")

    command = [*QUICK, "--sections", "copy", "--output", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(gpu_measures, "copy_bandwidth", fail)
        assert gpu.main(command) == 1
    assert "FAILED copy: RuntimeError: no memory" in capsys.readouterr().out
    assert gpu.main(command) == 0
    values = json.loads((tmp_path / "quick.json").read_text())
    assert values["errors"] == {}
    assert values["cells"]["copy"]["gb_per_s"] > 0


@pytest.mark.usefixtures("linear")
def test_results_of_another_seed_are_not_mixed(tmp_path):
    command = [*QUICK, "--sections", "copy", "--output", str(tmp_path)]
    assert gpu.main(command) == 0
    with pytest.raises(SystemExit, match="Name another --output"):
        gpu.main([*command, "--seed", "2"])


def test_checkpoints_of_the_paper_s_size_can_be_carried():
    """A file is below 16 MiB; model, velocity and scores of 2,048 rounds are the large ones."""
    dim, (rounds, canaries) = 4_050_748, (2048, 2000)
    assert 4 * max(dim, rounds * canaries) + 4096 < 16 << 20


def only(packages):
    """Paths of the modules that these packages and what they require have installed."""
    names, paths = list(packages), set()
    for name in names:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a requirement for another platform
        paths |= {
            found.locate_file(file.parts[0])
            for file in found.files
            if ".." not in file.parts
        }
        for text in found.requires or ():
            required = re.match(r"[\w.-]+", text).group()
            if "extra ==" not in text and required not in names:
                names.append(required)
    return paths


@pytest.mark.weekly
def test_all_of_it_where_only_torch_numpy_and_scipy_are_installed(tmp_path):
    """In a bare interpreter whose packages are links to these three and what they require."""
    site, out = tmp_path / "site", tmp_path / "out"
    site.mkdir()
    for path in only(["torch", "numpy", "scipy"]):
        if Path(path).name != "__pycache__":
            (site / Path(path).name).symlink_to(path)
    environment = {
        "PYTHONPATH": str(site),
        "PATH": os.environ["PATH"],
        "OUT": str(out),
    }
    bare = [sys.executable, "-S"]
    for package in (
        "flwr",
        "dp_accounting",
        "threadpoolctl",
        "matplotlib",
        "fl_epe",
    ):
        command = [*bare, "-c", f"import {package}"]
        found = subprocess.run(
            command, env=environment, capture_output=True, cwd="/", check=False
        )
        assert b"ModuleNotFoundError" in found.stderr, package
    command = [*bare, str(SCRIPT), *QUICK]
    run = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    values = json.loads((out / "quick.json").read_text())
    check(values)
