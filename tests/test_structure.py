"""What the tree promises: who imports whom, what is public, what an import costs."""

import ast
import functools
import graphlib
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import missing
import pytest

import fl_epe

ROOT = Path(fl_epe.__file__).parent
MODULES = sorted(
    str(path.relative_to(ROOT.parent).with_suffix("")).replace("/", ".")
    for path in ROOT.rglob("*.py")
)
FILES = {module.removesuffix(".__init__") for module in MODULES}
TESTS = Path(__file__).parent
OPEN_ROOMS = {"data", "tasks"}
HEAVY = {
    "torch",
    "flwr",
    "ray",
    "matplotlib",
    "sklearn",
    "jinja2",
    "datasets",
    "dp_accounting",
    "opacus",
    "tensorboard",
    "mlflow",
    "wandb",
}
MAY_IMPORT = {
    "accounting": {"dp_accounting"},
    "auditing": {"pyarrow"},
    "conformance": {"dp_accounting", "flwr", "torch"},
    "data": {"datasets", "pyarrow", "h5py", "google"},
    "dp_sgd": {"torch", "opacus"},
    "flower": {"flwr"},
    "messages": {"flwr"},
    "models": {"torch"},
    "reporting": {"matplotlib", "jinja2"},
    "limit": {"matplotlib", "jinja2"},
    "loggers": {"tensorboard", "mlflow", "wandb"},
    "schedules": {"pyarrow"},
    "silos": {"flwr", "opacus", "torch"},
    "simulation": {"flwr", "torch", "ray"},
    "tasks": {"torch", "sklearn", "datasets"},
    "training": {"torch"},
}


@functools.cache
def _imports(module):
    return list(_found_imports(module))


def _tree(module):
    path = ROOT.parent / module.replace(".", "/")
    file = path.with_suffix(".py")
    if not file.exists():
        file = path / "__init__.py"
    return ast.parse(file.read_text("utf-8"))


def _found_imports(module):
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "fl_epe":
                yield from (f"fl_epe.{alias.name}" for alias in node.names)
            else:
                yield node.module


def test_rooms_import_only_from_rooms_below():
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [linter, "--no-cache"],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout


def _named(module):
    """The modules of the package that a file imports, also for types alone or by a string."""
    tree = _tree(module)
    texts = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        ast.get_docstring(node, clean=False)
        for node in ast.walk(tree)
        if isinstance(node, texts)
    }
    no_import = docstrings | {"fl_epe"}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(source)):
                for alias in node.names:
                    file = f"{source}.{alias.name}"
                    yield file if file in FILES else source
            case ast.Constant(value=str(text)) if text not in no_import:
                yield text


def test_no_files_import_one_another_in_a_circle():
    graph = {
        module: {
            name for name in _named(module) if name in FILES and name != module
        }
        for module in FILES
    }
    assert sum(map(len, graph.values())) > 500
    # A circle raises a CycleError that names it.
    graphlib.TopologicalSorter(graph).prepare()


def test_heavy_packages_stay_in_their_rooms():
    assert not [
        (module, name)
        for module in MODULES
        for name in _imports(module)
        if (package := name.split(".")[0]) in HEAVY
        and package not in MAY_IMPORT.get(module.split(".")[1], set())
    ]


def test_a_room_is_entered_by_its_door():
    """Outside a room, which is a folder, only what its ``__init__`` exports is imported."""
    assert not [
        (module, name)
        for module in MODULES
        for name in _imports(module)
        if name.startswith("fl_epe.")
        and name.count(".") > 1
        and name.split(".")[1] not in OPEN_ROOMS | {module.split(".")[1]}
        and not (ROOT.parent / name.replace(".", "/")).is_dir()
    ]


def test_every_room_has_its_tests():
    """A folder of tests for each room of the package, for the simulations and the benchmarks."""
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    assert folders == rooms | {"benchmarks", "simulations"}


def test_no_two_files_of_tests_have_one_name():
    """Tests are imported by the names of their files alone."""
    names = [
        path.stem for path in TESTS.rglob("*.py") if path.stem != "conftest"
    ]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("package", ["fl_epe", "fl_epe.flower"])
def test_public_names_exist_and_have_docstrings(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name).__doc__, name


def test_names_that_stay():
    assert {
        "AuditRecord",
        "CanarySet",
        "delta_two_gaussians",
        "epsilon_from_cosines",
        "epsilon_from_record",
        "epsilon_from_scores",
        "epsilon_lower_bound",
        "epsilon_two_gaussians",
    } <= set(fl_epe.__all__)
    from fl_epe import flower

    assert "DPFedAvg" in flower.__all__


def _loaded(*steps):
    """The modules that are loaded after each of these lines of one new process."""
    code = "\n".join(
        ["import sys", *(f"{step}\nprint(*sys.modules)" for step in steps)]
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_importing_the_package_is_light():
    help_of_all = "from fl_epe.cli.main import parser_for; parser_for(['--help']).format_help()"
    scipy = {
        "scipy.special",
        "scipy.optimize",
        "scipy.stats",
        "scipy.linalg",
        "scipy.fft",
    }
    for loaded in _loaded("import fl_epe", help_of_all):
        assert not (HEAVY | scipy) & loaded


PLUG_IN = sorted(
    path.stem
    for path in (ROOT / "flower").glob("*.py")
    if path.stem != "__init__"
)


@pytest.mark.parametrize("name", PLUG_IN)
def test_the_plug_in_stands_without_the_simulation(name):
    own = {f"fl_epe.flower.{other}" for other in PLUG_IN} | {"fl_epe.flower"}
    for imported in _imports(f"fl_epe.flower.{name}"):
        if imported.startswith("fl_epe.flower"):
            assert imported in own, imported
        assert imported.split(".")[0] not in {"torch", "ray", "sklearn"}
        assert imported.split(".")[:2] not in (
            ["fl_epe", "tasks"],
            ["fl_epe", "training"],
            ["fl_epe", "simulation"],
        )


def test_importing_the_plug_in_loads_flower_and_nothing_that_trains_or_draws():
    """A client's process loads only its mod: it imports `canary_mod` anew for every message."""
    anyway, client, server = _loaded(
        "import flwr.app, flwr.clientapp, flwr.serverapp, flwr.serverapp.strategy",
        "from fl_epe.flower import canary_mod",
        "from fl_epe.flower import CanaryAudit, RecordAudit",
    )
    assert "fl_epe.flower.client_canaries" in client
    assert not {
        name
        for name in client
        if name.startswith(("fl_epe.auditing", "fl_epe.account"))
    }
    own = {
        module
        for module in server - anyway
        if module.startswith("fl_epe.flower.")
    }
    assert own == {f"fl_epe.flower.{name}" for name in PLUG_IN}
    unwanted = (HEAVY - {"flwr"}) | {
        "rich",
        "scipy.special",
        "scipy.optimize",
        "scipy.stats",
    }
    assert not unwanted & (server - anyway)  # Flower itself brings rich


def test_the_simulation_is_found_under_the_plug_in_s_name():
    from fl_epe import flower

    assert set(flower.__all__) <= set(dir(flower))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        flower.Nothing  # noqa: B018


def test_without_pytorch_deployments_are_audited_and_records_made():
    """Where torch and scikit-learn are not installed, `fl_epe.flower` and the record still are."""
    code = (
        "import importlib.metadata as m\n"
        "from missing import hide; hide('torch', 'sklearn')\n"
        "version = m.version\n"
        "def missing(name):\n"
        "    if name == 'torch': raise m.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "m.version = missing\n"
        "import fl_epe.flower, fl_epe.reporting\n"
        "from fl_epe.flower import DPFedAvg, InProcessGrid\n"
        "from fl_epe.auditing import installed_versions; print(*installed_versions())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=missing.environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "flwr" in done.stdout.split()
    assert "torch" not in done.stdout.split()


def test_every_module_imports():
    for info in pkgutil.walk_packages([str(ROOT)], "fl_epe."):
        importlib.import_module(info.name)


def test_a_class_s_name_means_one_class():
    """Two rooms once had an ``Answer``, a ``Layout`` and a ``Sample`` each."""
    homes: dict[str, list[str]] = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(
                    str(path.relative_to(ROOT))
                )
    assert len(homes) > 100
    assert {
        name: paths for name, paths in homes.items() if len(paths) > 1
    } == {}


def test_a_name_that_rooms_export_means_one_thing():
    """A noise multiplier was checked by a function with the name of `fl_epe.check_noise`."""
    meanings: dict[str, set[int]] = {}
    for info in pkgutil.iter_modules([str(ROOT)], "fl_epe."):
        module = importlib.import_module(info.name)
        public = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == info.name
            and not name.startswith("_")
        ]
        for name in public:
            meanings.setdefault(name, set()).add(id(getattr(module, name)))
    assert len(meanings) > 100
    assert [
        name for name, objects in meanings.items() if len(objects) > 1
    ] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT.parent / ".ci").glob("*")), ids=lambda path: path.name
)
def test_a_script_removes_its_temporary_folder(path):
    lines = path.read_text().splitlines()
    made = [line for line in lines if "mktemp" in line]
    assert made in ([], ["work=$(mktemp -d)"])
    removed = [
        line
        for line in lines
        if line.startswith("trap ") and 'rm -rf "$work"' in line
    ]
    assert len(removed) == len(made)
