"""The notebooks run from top to bottom, print no warning, and are stored without outputs."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = [
    pytest.param(path, id=path.stem) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
]


def outputs(book):
    return [output for cell in book.cells for output in cell.get("outputs", ())]


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebooks_are_short_and_hold_no_outputs(path):
    book = nbformat.read(path, 4)
    nbformat.validate(book)
    assert len(book.cells) <= 16
    assert outputs(book) == []
    assert not any(cell.get("execution_count") or cell.metadata for cell in book.cells)


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_what_notebooks_name_exists(path):
    text = "\n".join(cell.source for cell in nbformat.read(path, 4).cells)
    for name in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (path.parent / name).is_file(), name
    for name in re.findall(r"`(docs/[\w./-]+)`", text):
        assert (ROOT / name).is_file(), name


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebooks_run(path, tmp_path):
    book, here = nbformat.read(path, 4), {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(book, kernel_name="python3", timeout=600, resources=here)
    client.execute(env=os.environ | {"TMPDIR": str(tmp_path)})
    found = outputs(book)
    assert {"stream"} <= {output.output_type for output in found}
    assert [output.text for output in found if output.get("name") == "stderr"] == []
