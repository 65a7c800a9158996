"""Estimate, proof and theory that stand together are of one client, adversary and adjacency.

The walk goes over every place where they do: the table, report.json, runs side by side. What it
compares them with is asked of the core afresh, for the adversary that the place names.
"""

import csv
import dataclasses
import io
import json
import math
from typing import Any

import numpy as np
import pytest
from records import limit_with_clients

from fl_epe.auditing import Adversary, AuditedClient, answer
from fl_epe.reporting import (
    as_report,
    compare_runs,
    summarize,
    write_runs_compared,
)
from fl_epe.reporting.charts import VIEW_NAMES
from fl_epe.reporting.sentences import table_note, table_rows
from fl_epe.wording import number

BAND = np.eye(30) + 0.5 * np.eye(30, k=-1)
RECORDS = {
    "epochs": limit_with_clients("epochs"),
    "poisson": limit_with_clients("poisson"),
    "fixed-size": limit_with_clients("fixed-size"),
    "balls-in-bins": limit_with_clients("balls-in-bins"),
    "correlated": limit_with_clients("epochs").with_values(
        **{"mechanism.strategy": BAND}
    ),
    "correlated-secret": limit_with_clients("poisson").with_values(
        **{"mechanism.strategy": BAND}
    ),
}
NUMBERS = ("epsilon", "low", "high", "proved", "analytical")


@pytest.fixture(scope="module", params=RECORDS)
def case(request):
    """The record's kind, the record and its summary."""
    record = RECORDS[request.param]
    return record.mechanism.participation, record, summarize(record)


def of_one_question(found):
    """Whether all parts of an answer are of its adversary."""
    same = found.analytical.knows_rounds == found.adversary.knows_rounds
    return same and found.estimate.adversary == found.adversary


def wrong_places(record, entries):
    """Entries of report.json, or rows of a CSV, that are not the core's for their adversary."""
    wrong = []
    for entry in entries:
        adversary = Adversary(entry["sees"], knows_rounds=entry["knows_rounds"])
        right = answer(record, adversary, entry["delta"])
        client = AuditedClient.of(record)
        values = (
            right.estimate.epsilon,
            right.estimate.low,
            right.estimate.high,
            right.proved or None,
            right.analytical.epsilon,
        )
        alike = (
            of_one_question(right)
            and entry["participations"] == client.participations
            and entry["adjacency"] == right.analytical.adjacency
            and [entry[name] for name in NUMBERS] == list(values)
        )
        wrong += [] if alike else [entry["sees"]]
    return wrong


@pytest.mark.slow
def test_the_adversary_is_that_of_the_claim(case):
    law, _, summary = case
    for found in summary.answers:
        assert of_one_question(found)
        assert found.adversary.knows_rounds is (not law.hidden)
    assert len({found.participations for found in summary.answers}) == 1
    assert bool(summary.answers_with_known_rounds) is law.hidden
    assert all(
        found.adversary.knows_rounds and of_one_question(found)
        for found in summary.answers_with_known_rounds
    )


def test_report_json(case):
    _, record, summary = case
    written = json.loads(json.dumps(as_report(summary), allow_nan=False))
    assert wrong_places(record, written["answer"]) == []
    assert wrong_places(record, written["details"]["told_rounds"]) == []
    asked = {(e["knows_rounds"], e["adjacency"]) for e in written["answer"]}
    assert len(asked) == 1  # both rows of the table answer one question


def test_the_walk_finds_what_is_not_alike(case):
    _, record, summary = case
    entries = as_report(summary)["answer"]
    other = answer(
        record, Adversary("all", knows_rounds=not entries[1]["knows_rounds"])
    )
    if (
        other.estimate is not None
        and other.analytical.epsilon != entries[1]["analytical"]
    ):
        assert wrong_places(
            record, [entries[1] | {"analytical": other.analytical.epsilon}]
        )
    assert wrong_places(record, [entries[1] | {"participations": 1.0}])
    assert wrong_places(
        record, [entries[1] | {"epsilon": entries[0]["epsilon"]}]
    )
    swapped = dataclasses.replace(
        summary.answers[1],
        adversary=Adversary(
            "all", knows_rounds=bool(summary.answers_with_known_rounds)
        ),
    )
    assert not of_one_question(swapped)


def test_the_table(case):
    law, _, summary = case
    for row, found in zip(table_rows(summary), summary.answers, strict=True):
        assert row[0] == VIEW_NAMES[found.adversary.sees]
        estimate, limit = found.estimate, found.analytical.epsilon
        assert row[1].rstrip("†") == number(estimate.epsilon)
        assert row[2] == f"{number(estimate.low)} – {number(estimate.high)}"
        assert row[3] == ("–" if not found.proved else number(found.proved))
        assert (
            limit is None
            or math.isinf(limit)
            or row[4].rstrip("*") == f"≤ {number(limit)}"
        )
    note = table_note(summary)
    assert ("not its rounds" in note) is law.hidden
    assert f"{summary.answers[0].analytical.adjacency} adjacency" in note


@pytest.mark.slow
def test_runs_side_by_side(tmp_path):
    found = compare_runs(RECORDS)
    for pair in found.differences:
        one, other = (
            next(
                run for run in found.runs if run.letter == letter
            ).summary.answers[list(VIEW_NAMES).index(pair.adversary)]
            for letter in (pair.first, pair.second)
        )
        assert one.adversary == other.adversary
        assert one.analytical.adjacency == other.analytical.adjacency
    letters = {run.name: run.letter for run in found.runs}
    compared = {(pair.first, pair.second) for pair in found.differences}
    assert (letters["epochs"], letters["correlated"]) in compared
    assert (letters["epochs"], letters["poisson"]) not in compared
    assert (
        letters["poisson"],
        letters["fixed-size"],
    ) not in compared  # other adjacency
    assert any("different questions" in note for note in found.notes)
    write_runs_compared(found, tmp_path)
    rows = csv.DictReader(
        io.StringIO((tmp_path / "comparison.csv").read_text("utf-8"))
    )
    for row in rows:
        entry: dict[str, Any] = {
            name: float(row[name]) if row[name] else None for name in NUMBERS
        }
        entry |= {
            name: float(row[name]) for name in ("participations", "delta")
        }
        entry |= {"sees": row["sees"], "adjacency": row["adjacency"]}
        entry["knows_rounds"] = row["knows_rounds"] == "True"
        assert wrong_places(RECORDS[row["directory"]], [entry]) == []
