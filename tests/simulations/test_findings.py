"""`findings/`: each defect is reproduced in a few lines which need the library alone."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "findings"
TEXTS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
LIBRARIES = {
    "fedbiomed": "fedbiomed",
    "fedml": "fedml",
    "fl4health": "fl4health",
    "flower": "flwr",
    "flsim": "flsim",
    "nvflare": "nvflare",
    "opacus": "opacus",
    "pfl": "pfl",
    "plato": "plato",
    "secretflow": "secretflow_fl",
    "tf": "tensorflow_privacy",
}
BESIDE = {"numpy", "torch", "tensorflow", *sys.stdlib_module_names}
NEEDED_BY = {"fl4health": {"flwr"}}
HERE = [path for path in TEXTS if path.name.startswith(("flower", "opacus"))]


def reproduction(path):
    (code,) = re.findall(
        r"```python\n(.*?)```",
        path.read_text("utf-8").split("**Measured.**")[0],
        re.S,
    )
    return code


def imported(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_a_reproduction_is_short_and_needs_the_library_alone(path):
    code = reproduction(path)
    assert len(code.splitlines()) <= 30
    library = LIBRARIES[path.stem.split("-")[0]]
    needed = set(imported(code)) - BESIDE - NEEDED_BY.get(library, set())
    assert needed == {library}
    assert re.search(r"print\(.*\)  # ", code) or re.search(r"^# ", code, re.M)


@pytest.mark.slow
@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
def test_a_reproduction_prints_what_it_says(path):
    """Of the libraries that are installed for the tests; within a tenth, as all are random."""
    code = reproduction(path)
    stated = [
        float(number)
        for number in re.findall(r"^print\(.*\)  # ([\d.]+)", code, re.M)
    ]
    assert stated
    seeded = f"import numpy, torch\nnumpy.random.seed(1)\ntorch.manual_seed(1)\n{code}"
    run = subprocess.run(
        [sys.executable, "-c", seeded],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [
        line
        for line in run.stdout.splitlines()
        if re.fullmatch(r"(tensor\()?[\d.]+\)?", line)
    ]
    printed = [float(line.strip("tensor()")) for line in lines]
    assert printed == pytest.approx(stated, rel=0.15)
