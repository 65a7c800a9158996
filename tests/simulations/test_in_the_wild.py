"""`simulations/in_the_wild/`: what its scripts share, on small mechanisms of ours."""

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from simulations.in_the_wild import wild

DIM = 4
SCRIPTS = {
    "pfl_joint": "pfl",
    "fedml_dp": "fedml",
    "secretflow_dp": "secretflow_fl",
    "opacus_dp": "opacus",
    "fl4health_dp": "fl4health",
    "flower_dp": "flwr",
    "nvflare_svt": "nvflare",
    "plato_dp": "plato",
    "fedbiomed_dp": "fedbiomed",
    "flsim_dp": "flsim",
    "diffprivlib_dp": "diffprivlib",
    "jax_privacy_dp": "jax_privacy",
    "tf_privacy_dp": "tensorflow_privacy",
    "own_dp_fedavg": "fl_epe",
}


def noisy_sum(noise, rng):
    return lambda updates: (
        updates.sum(axis=0) + rng.normal(0, noise, updates.shape[1])
    )


def lead(noise, claim=4.4, **options):
    game = wild.played(
        noisy_sum(noise, np.random.default_rng(1)), np.eye(DIM)[0]
    )
    return wild.Lead("a sum", claim, game, method="gdp", **options)


@pytest.mark.parametrize(
    ("noise", "severity"),
    [
        pytest.param(1.0, "none found", id="right"),
        pytest.param(0.6, "theoretical", id="half-more"),
        pytest.param(0.1, "critical", id="tenth"),
    ],
)
def test_severity_follows_what_is_proved(noise, severity):
    result = wild.examine(
        lead(noise, defect=severity != "none found"), 1500, seed=1
    )
    assert result.severity == severity
    assert result.as_expected


def test_a_defect_that_is_gone_and_an_accused_control_are_unexpected(capsys):
    assert not wild.print_table([lead(1.0, defect=True)], 200, [1])
    assert not wild.print_table([lead(0.1)], 200, [1])
    assert wild.print_table([lead(1.0), lead(0.1, defect=True)], 200, [1, 2])
    assert "2 of 2 seeds pass" in capsys.readouterr().out


@pytest.mark.slow
def test_no_seed_accuses_a_right_mechanism():
    results = [wild.examine(lead(1.0), 300, seed) for seed in range(20)]
    assert all(result.as_expected for result in results)


def test_no_noise_at_all_is_critical_without_any_assumption():
    game = wild.played(lambda updates: updates.sum(axis=0), np.eye(DIM)[0])
    result = wild.examine(
        wild.Lead("no noise", 1.0, game, defect=True), 400, seed=1
    )
    assert result.severity == "critical"


@pytest.mark.slow
def test_shared_noise_shows_in_a_difference_and_not_in_one_array():
    def release(updates):
        noise = rng.normal(0, 4.0, DIM)
        return updates.sum(axis=0) + np.concatenate([noise[: DIM // 2]] * 2)

    rng = np.random.default_rng(2)
    canary = np.array([1.0, 0.0, -1.0, 0.0])
    games = [
        wild.played(release, canary),
        wild.played(release, canary, weights=np.eye(DIM)[0]),
    ]
    results = [
        wild.examine(wild.Lead("joint", 1.4, game), 400, seed=1)
        for game in games
    ]
    assert [result.severity for result in results] == ["critical", "none found"]


def test_a_package_is_imported_without_its_init(tmp_path, monkeypatch):
    inner = tmp_path / "heavy_outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "heavy_outer" / "__init__.py").write_text(
        "import not_there_at_all"
    )
    (inner / "__init__.py").write_text("import not_there_either")
    (inner / "audited.py").write_text(
        "from missing_helper.part import Helper\nVALUE = 3"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = (
        "heavy_outer",
        "heavy_outer.inner",
        "missing_helper",
        "missing_helper.part",
    )
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    wild.skip_init("heavy_outer", "heavy_outer.inner")
    wild.placeholders("missing_helper", "missing_helper.part")
    assert importlib.import_module("heavy_outer.inner.audited").VALUE == 3
    with pytest.raises(ModuleNotFoundError, match=r"heavy_outer\.absent"):
        wild.skip_init("heavy_outer.absent")


def test_every_script_is_listed():
    folder = Path(wild.__file__).parent
    scripts = {
        path.stem
        for path in folder.glob("*.py")
        if "def leads(" in path.read_text("utf-8")
    }
    assert scripts == set(SCRIPTS)


@pytest.mark.slow
def test_the_own_control_is_not_accused():
    control = importlib.import_module("simulations.in_the_wild.own_dp_fedavg")
    assert all(
        wild.examine(lead_of_control, 300, seed=1).as_expected
        for lead_of_control in control.leads()
    )


@pytest.mark.weekly
@pytest.mark.filterwarnings(
    "ignore"
)  # of libraries that are audited as they are
@pytest.mark.parametrize(
    "script", [pytest.param(name, id=name) for name in SCRIPTS]
)
def test_released_code(script):
    if importlib.util.find_spec(SCRIPTS[script]) is None:
        pytest.skip(f"{SCRIPTS[script]} is not installed")
    leads = importlib.import_module(f"simulations.in_the_wild.{script}").leads()
    results = [(lead, wild.examine(lead, 400, 1)) for lead in leads]
    assert all(
        result.as_expected for lead, result in results if not lead.defect
    )
    defects = [result.as_expected for lead, result in results if lead.defect]
    assert (
        any(defects) or not defects
    )  # so few observations do not show every one
