"""Six apps with and without an audit under Ray, and on a real SuperLink with SuperNodes."""

import shutil
from pathlib import Path

import pytest
from app_server import NO_HARM, compare
from every_app import case_named
from flower_processes import flwr_run, superlink, supernode
from flwr.serverapp import ServerApp

from fl_epe.simulation.flower_internals import simulate_with_ray

TESTS = Path(__file__).parents[1]
NODES = (
    5  # so that two canaries in the place of clients are less than half of them
)
# A start() of its own; a dictionary of node ids; replies that are deltas; a mod that clips; mods of
# the app's own; scikit-learn.
APPS = [
    "own_loop",
    "clients_by_node_id",
    "delta_replies",
    "dp_client_fixed",
    "frameworks.custom_mods",
    "frameworks.sklearn_logistic",
]
CASES = [
    APPS[0],
    *(pytest.param(name, marks=pytest.mark.weekly) for name in APPS[1:]),
]
MANIFEST = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "strangers"
version = "0.1.0"
license = "Apache-2.0"
dependencies = ["fl-epe", "flwr>=1.41", "scikit-learn>=1.4"]

[tool.flwr.app]
publisher = "fl-epe"

[tool.flwr.app.components]
serverapp = "app_server:app"
clientapp = "{name}:app"

[tool.flwr.app.config]
app-name = "{name}"
nodes = {nodes}
output = ""
"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # of Ray's, in its own threads
@pytest.mark.parametrize("name", CASES)
def test_under_ray(name, tmp_path):
    server = ServerApp()
    output = tmp_path / "out"

    @server.main()
    def main(grid, context):
        compare(name, NODES, output, grid)

    simulate_with_ray(
        server,
        case_named(name).client_app,
        NODES,
        {"client_resources": {"num_cpus": 1}},
    )
    assert (output / "verdict.txt").read_text() == NO_HARM


@pytest.mark.slow  # two runs of two rounds each, minutes where the machine is busy
@pytest.mark.superlink
@pytest.mark.parametrize("name", CASES)
def test_on_a_superlink(name, processes, tmp_path):
    address = superlink(processes)
    for partition in range(NODES):
        supernode(processes, address, partition, NODES)
    output = tmp_path / "out"
    printed = flwr_run(processes, _app(tmp_path, name), {"output": str(output)})
    assert (output / "verdict.txt").exists(), printed
    assert (output / "verdict.txt").read_text() == NO_HARM


def _app(folder: Path, name: str) -> Path:
    """A Flower app that holds all apps of `tests/apps`, one of them as its client."""
    app = folder / f"app-{name}"
    shutil.copytree(
        TESTS / "apps", app, ignore=shutil.ignore_patterns("__pycache__")
    )
    for module in ("app_runs", "app_server", "no_harm"):
        shutil.copy(TESTS / "support" / f"{module}.py", app)
    (app / "pyproject.toml").write_text(MANIFEST.format(name=name, nodes=NODES))
    return app
