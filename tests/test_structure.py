"""What the tree promises: who imports whom, what is public, what an import costs."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fl_epe

ROOT = Path(fl_epe.__file__).parent
MODULES = sorted(
    str(path.relative_to(ROOT.parent).with_suffix("")).replace("/", ".")
    for path in ROOT.rglob("*.py")
)
# Left to right; a module may import from layers to its left, and from its own.
LAYERS = [
    {"checks", "seeding", "two_gaussians", "secret_rounds", "goodness", "score_file"},
    {
        "canary",
        "mechanism",
        "clipped_sum",
        "participation",
        "record",
        "rates",
        "analytical",
        "schedules",
    },
    {
        "config",
        "tracker",
        "scores",
        "expected",
        "limit",
        "band",
        "threshold_bounds",
        "one_run",
        "weighted",
    },
    {"bounds", "estimate", "guarantee"},
    {"summary", "assess", "audit", "watch", "advice", "exposure"},
    {"figures"},
    {"report_notes"},
    {"report", "advice_text"},
    {"data"},
    {"tasks"},
    {"training"},
    {"flower"},
    {"compare"},
    {"cli_advise", "cli_compare", "cli_data"},
    {"cli"},
]
HEAVY = {"torch", "flwr", "ray", "matplotlib", "sklearn", "jinja2", "datasets", "dp_accounting"}
MAY_IMPORT = {
    "tasks": {"torch", "sklearn", "datasets"},
    "training": {"torch"},
    "flower": {"flwr", "torch", "ray"},
    "analytical": {"dp_accounting"},
    "score_file": {"pyarrow"},
    "schedules": {"pyarrow"},
    "figures": {"matplotlib"},
    "report": {"jinja2"},
    "compare": {"matplotlib", "jinja2"},
}


def _layer(module):
    name = module.split(".")[1]
    return next((i for i, layer in enumerate(LAYERS) if name in layer), None)


def _imports(module):
    path = ROOT.parent / module.replace(".", "/")
    path = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "fl_epe":
                yield from (f"fl_epe.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("module", [m for m in MODULES if m not in ("fl_epe.__init__",)])
def test_imports_point_left(module):
    mine = _layer(module)
    assert mine is not None, f"{module} has no layer"
    own = module.split(".")[1]
    for name in _imports(module):
        if name.startswith("fl_epe.") and name.split(".")[1] != own:
            theirs = _layer(name)
            assert (
                theirs is None
                or theirs < mine
                or own == "cli"
                or LAYERS[mine]
                >= {
                    own,
                    name.split(".")[1],
                }
            ), f"{module} imports {name}"
        elif name.split(".")[0] in HEAVY:
            allowed = MAY_IMPORT.get(own, set())
            assert name.split(".")[0] in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("package", ["fl_epe", "fl_epe.flower"])
def test_public_names_exist_and_have_docstrings(package):
    module = importlib.import_module(package)
    assert module.__all__ == sorted(module.__all__)
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


def test_importing_the_package_is_light():
    code = "import fl_epe, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(loaded.stdout.split())


def test_every_module_imports():
    for info in pkgutil.walk_packages([str(ROOT)], "fl_epe."):
        importlib.import_module(info.name)
