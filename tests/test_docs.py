"""Code in the documents runs: every Python block that says so."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = [
    (path.name, number, code)
    for path in sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
    for number, code in enumerate(
        re.findall(r"^```python run\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )
]


@pytest.mark.parametrize(("name", "number", "code"), BLOCKS)
def test_block_runs(name, number, code):
    exec(compile(code, f"{name}, block {number}", "exec"), {})  # noqa: S102


def test_files_that_documents_name_exist():
    for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]:
        for name in re.findall(r"`((?:simulations|benchmarks|docs)/[\w./]+)`", path.read_text()):
            assert (ROOT / name).exists(), f"{path.name}: {name}"
