"""The notebooks run from top to bottom, print no warning, and what they print is what they say."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = [
    pytest.param(path, id=path.stem)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
]


BAD = re.compile(r"^(Faulty|Unreliable|Diverged|Not measured), as", re.M)


def outputs(book):
    return [output for cell in book.cells for output in cell.get("outputs", ())]


def printed(book):
    return "".join(output.get("text", "") for output in outputs(book))


def accuracies(text):
    return [
        float(found)
        for found in re.findall(
            r"accuracy(?: on held-out data:)? ([\d.]+)%", text
        )
    ]


def theories(text):
    """What theory allows every round's model in each table of a report."""
    return [
        float(found)
        for found in re.findall(r"^every round .* ≤ ([\d.]+)", text, re.M)
    ]


def check_tour(text):
    first, second = accuracies(text)
    assert min(first, second) > 85  # "learned", "nearly as good"
    assert abs(first - second) < 6
    before, after = theories(text)
    assert after < before / 3
    assert re.search(
        r"^under ε = 1 +right in at most 73.1% of cases$", text, re.M
    )
    assert (
        len(
            re.findall(
                r"^this attack, .* right practically always$", text, re.M
            )
        )
        == 2
    )


def check_flower_app(text):
    assert "ε ≤ 1 is disproved: claimed" in text
    assert "ε ≤ 100 is not disproved" in text
    assert 77.5 < theories(text)[0] < 78.5
    assert accuracies(text)[0] > 80


def check_audit(text):
    assert "status: ok" in text
    assert "warnings: none" in text


def check_schedules(text):
    line = re.compile(
        r"^(\S+) +(median|worst-case) +client, .*?(known|secret) +ε = ([\d.]+)",
        re.M,
    )
    found = {
        (name, who): (knows, float(value))
        for name, who, knows, value in line.findall(text)
    }
    assert found["poisson", "median"][0] == "secret"
    medians = {
        name: value
        for (name, who), (_, value) in found.items()
        if who == "median"
    }
    assert min(medians, key=medians.__getitem__) == "poisson"
    worst, usual = found["poisson", "worst-case"], found["epochs", "worst-case"]
    assert worst[1] > 1.5 * usual[1]
    assert found["epochs", "worst-case"][1] == found["epochs", "median"][1]


CHECKS = {
    "tour": check_tour,
    "your-flower-app": check_flower_app,
    "read-an-audit": check_audit,
    "schedules": check_schedules,
}


def check(name, book):
    """What a notebook prints agrees with its text."""
    text = printed(book)
    assert not BAD.search(text)
    CHECKS[name](text)


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebooks_are_short_and_hold_outputs_that_agree_with_their_text(path):
    book = nbformat.read(path, 4)
    nbformat.validate(book)
    assert len(book.cells) <= 16
    assert not any(cell.metadata for cell in book.cells)
    assert not re.search(r"(/home|/root|/tmp|/work)/", printed(book))
    check(path.stem, book)


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_what_notebooks_name_exists(path):
    text = "\n".join(cell.source for cell in nbformat.read(path, 4).cells)
    for name in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (path.parent / name).is_file(), name
    for name in re.findall(r"`(docs/[\w./-]+)`", text):
        assert (ROOT / name).is_file(), name


@pytest.mark.weekly
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_notebooks_run(path, tmp_path):
    book, here = nbformat.read(path, 4), {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(
        book, kernel_name="python3", timeout=600, resources=here
    )
    client.execute(env=os.environ | {"TMPDIR": str(tmp_path)})
    found = outputs(book)
    assert {"stream"} <= {output.output_type for output in found}
    assert [
        output.text for output in found if output.get("name") == "stderr"
    ] == []
    check(path.stem, book)
