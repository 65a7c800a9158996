"""docs/notes/report-json.md lists the keys of report.json: all that are written, and no others."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from records import make_record, record_of

from fl_epe.auditing import EarlyStop, EpsilonEstimate, RoundFacts, RunAuditor
from fl_epe.limit import limit_record
from fl_epe.reporting import summarize, summarize_unmeasured, write_report
from fl_epe.schedules import Poisson

PAGE = Path(__file__).parents[2] / "docs" / "notes" / "report-json.md"
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", re.M)


def documented_shapes():
    """The keys of each heading, with their types and whether they may be missing."""
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.M)[1:]
    shapes = {}
    for section in sections:
        name = section.partition("\n")[0]
        shapes[name] = {
            key: (kind, "not always" in text) for key, kind, text in ROW.findall(section)
        }
    for name in ("final", "all"):
        shapes[name] = shapes["result"] | shapes[name]
    return shapes


SHAPES = documented_shapes()


def documented():
    """Every heading and key of the page."""
    return {(shape, key) for shape, keys in SHAPES.items() for key in keys}


def written(value, shape="report"):
    """Every key of a report, below the heading of the page that its place has."""
    for key, content in value.items():
        yield shape, key
        kind, _ = SHAPES[shape].get(key, ("unknown", False))
        if content is not None and (inner := re.search(r"\[(.+?)\]\(", kind)):
            for part in content if kind.startswith("list of") else [content]:
                yield from written(part, inner[1])


def _known_sum():
    rng = np.random.default_rng(2)
    record = make_record()
    shapes = {"observed": (6, 40), "unobserved": (6, 30)}
    residuals = {
        f"{side}.residuals": rng.normal(size=shape) / 100 for side, shape in shapes.items()
    }
    sums = {f"{side}.sums": np.zeros(shape) for side, shape in shapes.items()}
    norms = {"norms.residuals": record.norms.means, "norms.sums": np.zeros(6)}
    return record.with_values(**residuals, **sums, **norms)


def _agreeing():
    """Rounds whose means agree, in which canaries are a good part."""
    rng, dim, everybody = np.random.default_rng(3), 512, range(40)
    auditor = RunAuditor(40, 40, seed=1, delta=1e-3)
    auditor.begin(theta := np.zeros(dim, np.float32))
    same = rng.standard_normal(dim).astype(np.float32) / 8
    added = auditor.canaries.combine(np.full((1, 40), 0.1, np.float32), numbers=everybody)[0]
    for _ in range(4):
        theta = theta + same + added
        auditor.observe(theta, RoundFacts(everybody, contribution=0.1, clip_norm=1.0))
    return auditor.record(task="synthetic")


@pytest.fixture(scope="module")
def reports():
    shown = EpsilonEstimate(1.0, 0.5, 2.0, 1e-3, 0.95, "m")
    stopped = {"stopped": EarlyStop(3, shown), "stop_when": "x", "num_rounds": 6}
    run = {"started": "2026-01-31T23:59:59Z", "ended": "2026-02-01T00:09:59Z", "commands": ("a",)}
    uneven = limit_record(
        Poisson(6, 0.3), 0.5, 1e-3, num_canaries=40, unobserved=40, population=400
    )
    settings = {"num_clients": 400, "schedule": "poisson", "canary_participations": 1.8}
    records = {
        "synthetic": make_record(**stopped, **run),
        "uneven": uneven.with_values(**settings),
        "plain": make_record(),
        "known sum": _known_sum(),
        "agreeing": _agreeing(),
        "few": record_of(1),
        "metrics": make_record(
            metrics={
                "eval_round": np.array([3.0, 6.0]),
                "eval_loss": np.array([2.0, 1.0]),
                "eval_accuracy": np.array([0.5, 0.6]),
            }
        ),
        "other metric": make_record(
            metric="mean_error",
            metrics={
                "eval_round": np.array([3.0, 6.0]),
                "eval_loss": np.array([2.0, 1.0]),
                "eval_accuracy": np.array([5.0, 6.0]),
            },
        ),
    }
    summaries = {name: summarize(record) for name, record in records.items()}
    summaries["unmeasured"] = summarize_unmeasured("the model was never seen", delta=1e-3)
    out = {name: summary.to_dict() for name, summary in summaries.items()}
    return json.loads(json.dumps(out, allow_nan=False))


def test_every_key_that_is_written_is_documented(reports):
    for name, report in reports.items():
        assert not set(written(report)) - documented(), name


def test_every_key_that_is_documented_is_written(reports):
    found = set().union(*(written(report) for report in reports.values()))
    assert sorted(documented() - found) == []


def test_keys_that_are_always_there_are(reports):
    always = {key for key, (_, rare) in SHAPES["report"].items() if not rare}
    for report in reports.values():
        assert always <= report.keys()


def test_types_are_those_of_the_page(reports):
    types = {"number": int | float, "text": str, "true or false": bool, "list": list}
    for report in reports.values():
        for key, (kind, _) in SHAPES["report"].items():
            if kind in types and report.get(key) is not None:
                assert isinstance(report[key], types[kind]), key


@pytest.mark.parametrize(("name", "status"), [("plain", 0), ("few", 3), ("unmeasured", 3)])
def test_the_exit_status_is_that_of_the_status(reports, name, status):
    assert reports[name]["exit_status"] == status
    assert (reports[name]["status"] == "ok") == (status == 0)


def test_the_run_is_told_and_unknown_in_old_records(reports, tmp_path):
    assert reports["synthetic"]["run"]["commands"] == ["a"]
    assert reports["plain"]["run"] == {"started": None, "ended": None, "commands": None}
    record = make_record(started="2026-01-31T23:59:59Z")
    again = type(record).load(record.save(tmp_path / "record.npz"))
    assert again.provenance.started == "2026-01-31T23:59:59Z"
    summary = write_report(again, tmp_path)
    assert dataclasses.asdict(summary)["run"]["started"] == "2026-01-31T23:59:59Z"


def test_a_run_that_is_no_table_is_refused(tmp_path):
    record = make_record(commands="fl-epe run digits")
    record.save(tmp_path / "record.npz")
    with pytest.raises(ValueError, match=r"provenance\.commands"):
        type(record).load(tmp_path / "record.npz")
