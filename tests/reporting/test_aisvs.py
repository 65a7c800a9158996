"""What docs/notes/aisvs.md says of a report is true: its fields exist, and its numbers are ours."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from records import make_record
from schemas import shipped_schema

from fl_epe.reporting import as_report, summarize
from fl_epe.reporting.reliability import CODES
from fl_epe.reporting.sentences import guess_limit

PAGE = (Path(__file__).parents[2] / "docs" / "notes" / "aisvs.md").read_text(
    "utf-8"
)
ROWS = [
    line.split("|") for line in PAGE.splitlines() if re.match(r"\| .+\?", line)
]
CELLS = [row[2] for row in ROWS]
NAMED = sorted(
    {name for cell in CELLS for name in re.findall(r"`([^`]+)`", cell)}
)
FIELDS = [name for name in NAMED if "." in name or name == "status"]
NOT_IN_SCHEMA = {
    "details.settings",
    "details.versions",
}  # which leaves them open


def described(schema, path):
    """What a schema says of a path such as ``answer[].low``, or None."""
    here = schema
    for step in path.split("."):
        here = here.get("properties", {}).get(step.removesuffix("[]"))
        if here is not None and step.endswith("[]"):
            here = here["items"]
        if here is None:
            return None
        if "$ref" in here:
            here = schema["$defs"][here["$ref"].rpartition("/")[2]]
    return here


def values(report, path):
    """All values at a path of a report."""
    found = [report]
    for step in path.split("."):
        found = [value[step.removesuffix("[]")] for value in found]
        if step.endswith("[]"):
            found = [value for values in found for value in values]
    return found


def test_the_page_names_fields_in_each_of_its_rows():
    assert len(ROWS) == 15
    assert all(re.search(r"`[^`]+`", cell) for cell in CELLS)
    assert {
        "run.unit",
        "answer[].analytical",
        "answer[].proved",
        "run.canaries",
    } <= set(FIELDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.replace("[]", "")) for p in FIELDS]
)
def test_a_named_field_exists(path):
    if path not in NOT_IN_SCHEMA:
        assert described(shipped_schema("report"), path) is not None
    written = json.loads(json.dumps(as_report(summarize(make_record()))))
    if path != "warnings[].code":  # a sound run has no warning
        assert values(written, path)


def test_a_field_that_is_not_there_would_be_found():
    assert described(shipped_schema("report"), "run.digest") is None


def test_the_codes_of_the_page_are_codes_of_warnings():
    codes = set(NAMED) - set(FIELDS)
    assert codes == {"steps", "exceeds-theory", "not-measured", "strength"}
    assert codes <= CODES.keys()
    assert CODES["exceeds-theory"] == "faulty"


def test_no_report_has_a_digest_of_the_model():
    """As the page says: a verifier has to know otherwise which model was audited."""
    written = json.dumps(as_report(summarize(make_record())))
    assert not re.search(r"\b(digest|sha\d*|hash)\b", written)


@pytest.mark.parametrize(
    ("record", "unbounded"),
    [
        pytest.param(
            {"noise_multiplier": 0.0, "sum_noise_multiplier": 0.0},
            True,
            id="no-noise",
        ),
        pytest.param(
            {"noise_multiplier": None, "sum_noise_multiplier": None},
            False,
            id="unknown",
        ),
    ],
)
def test_without_known_noise_theory_says_nothing(record, unbounded):
    for entry in as_report(summarize(make_record(**record)))["answer"]:
        assert entry["analytical"] is None
        assert ("analytical" in entry["unbounded"]) is unbounded


def test_the_formula_for_accuracy_is_the_one_of_reports():
    code = PAGE.partition("```python\n")[2].partition("```")[0]
    namespace: dict[str, Any] = {}
    exec(code, namespace)  # noqa: S102 - as tests/test_docs.py does
    entry = {
        "epsilon": 1.25,
        "delta": 1e-3,
        "unbounded": ["high"],
        "high": None,
        "low": None,
    }
    assert namespace["guess"](entry, "epsilon") == pytest.approx(
        guess_limit(1.25, 1e-3), abs=1e-12
    )
    assert namespace["guess"](entry, "high") == 1.0
    assert namespace["guess"](entry, "low") is None
