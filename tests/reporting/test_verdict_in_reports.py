"""What a report says about its bounds: the verdict, the rows, the dependence, all at once."""

import dataclasses
import json

import numpy as np
import pytest
from records import make_record, record_of

from fl_epe.cli.main import main
from fl_epe.limit import limit_record
from fl_epe.reporting import as_text, most_text, summarize, write_report
from fl_epe.reporting.notes import notes
from fl_epe.reporting.verdict import statement_cells
from fl_epe.schedules import Poisson, ShuffledEpochs

HEADLINES = (("final", 0), ("all", 1))


def _named(verdict, **changes):
    return make_record(verdict=verdict, **changes)


@pytest.mark.parametrize(("sees", "place"), HEADLINES)
def test_exactly_one_bound_is_the_verdict(sees, place):
    method = "clopper-pearson" if sees == "all" else "gdp"
    found = summarize(_named(f"{sees}:{method}")).to_dict()
    assert found["verdict"]["fixed_before_the_run"]
    assert found["verdict"]["method"] == found[sees]["bound_method"] == method
    assert found["verdict"]["epsilon"] == found[sees]["lower_bound"]
    roles = {
        (name, row["method"]): row["role"] for name, _ in HEADLINES for row in found[name]["bounds"]
    }
    assert [place for place, role in roles.items() if role == "verdict"] == [(sees, method)]
    assert roles["final", "jeffreys"] == "not a bound"
    assert [row["role"] for row in found["rows"]].count("verdict") == 1
    assert found["rows"][place]["role"] == "verdict"


def test_the_largest_possible_bound_stands_only_where_there_is_one():
    summary = summarize(_named("auto"))
    for ceiling, shown in ((3.0, ["3.00"]), (1e6, []), (np.inf, [])):
        row = dataclasses.replace(summary.statements[0], ceiling=ceiling)
        ((_, cells),) = statement_cells(dataclasses.replace(summary, statements=(row,)))
        assert [text for name, text in cells if name == "largest possible bound"] == shown


@pytest.mark.slow
def test_an_old_record_falls_back_on_the_rule_by_design():
    old, new = summarize(make_record()), summarize(_named("auto"))
    assert not old.verdict.recorded
    assert new.verdict.recorded
    assert old.verdict.epsilon == new.verdict.epsilon is not None
    assert "as the record names none" in as_text(old, 1000)
    assert "named before the run" in as_text(new, 1000)


def test_a_verdict_that_the_scores_do_not_allow_is_none_and_no_other_takes_its_place():
    found = summarize(_named("one-run")).verdict
    assert found.epsilon is None
    assert found.reason == "the scores do not allow 'one-run'"
    coins = summarize(_named("one-run", inclusion="coin"))
    assert coins.verdict.epsilon is not None
    assert "Steinke" in " ".join(notes(coins))


def test_a_verdict_that_was_not_measured_says_why():
    summary = summarize(record_of(0, verdict="auto"))
    assert summary.verdict.epsilon is None
    assert "no bound, because no canary took part" in as_text(summary, 1000)


@pytest.mark.parametrize(
    ("schedule", "adjacency"),
    [
        (ShuffledEpochs(6, 1), "zero-out"),
        pytest.param(Poisson(6, 0.3), "add-or-remove", marks=pytest.mark.slow),
    ],
)
def test_every_row_states_what_it_is_about(schedule, adjacency, tmp_path):
    record = limit_record(schedule, 0.5, 1e-3, num_canaries=40, unobserved=40)
    summary = write_report(record, tmp_path)
    page = (tmp_path / "report.html").read_text()
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    text = as_text(summary, 1000, details=True)
    assert len(rows) == len(summary.rows())
    for row in rows:
        assert row["adjacency"] == adjacency
        assert row["unit"] == "client"
        for part in (row["knows"], row["assumption"]):
            assert part
            assert part.replace("'", "&#39;") in page
            assert part in text
    assert page.count("<dt>adjacency</dt>") == len(rows)


def test_every_bound_has_the_largest_that_it_could_have_shown():
    summary = summarize(limit_record(ShuffledEpochs(6, 2), 0.5, 1e-3, num_canaries=60))
    for row, statement in zip(summary.rows(), summary.statements, strict=True):
        if row.paper:
            assert statement.ceiling is None
        else:
            bound = row.part.lower_bound
            assert bound is not None
            assert statement.ceiling is not None
            assert bound <= statement.ceiling
    assert "So many canaries can show ε ≥" in as_text(summary, 1000, details=True)
    assert "sets no limit" in most_text(np.inf)
    assert "cannot show any" in most_text(0.0)


def test_dependence_is_measured_and_what_cannot_be_told_is_said():
    record = limit_record(ShuffledEpochs(12, 2), 0.5, 1e-3, num_canaries=100, unobserved=60)
    summary = summarize(record)
    assert set(summary.to_dict()["dependence"]) == {"unobserved", "observed"}
    text = " ".join(notes(summary))
    assert "One run cannot show dependence" in text
    assert "depend on each other:" not in text
    shared = record.unobserved.means + np.random.default_rng(0).normal(size=(12, 1)) / np.sqrt(
        record.dim
    )
    warned = " ".join(notes(summarize(record.with_values(**{"unobserved.means": shared}))))
    assert "Warning: the unobserved canaries depend on each other" in warned


@pytest.mark.slow
def test_scores_are_tested_by_participations():
    """A mixture of participations is not Gaussian, and that is no reason for a warning."""
    record = limit_record(Poisson(60, 0.05), 0.05, 1e-3, num_canaries=600, unobserved=2)
    summary = summarize(record)
    part = summary.every_round.headline
    assert part.gaussian.p_value < 1e-4
    assert len(part.gaussian_by_participations) > 3
    assert "“every round matched filter” are not Gaussian" not in " ".join(notes(summary))
    rows = summary.every_round.to_dict()["gaussian_by_participations"]
    assert sum(row["canaries"] for row in rows) <= 600


class TestEstimate:
    @pytest.fixture
    def files(self, tmp_path):
        paths = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            path = tmp_path / f"run{seed}.npz"
            np.savez(path, observed=rng.normal(5, 1, 200), unobserved=rng.normal(0, 1, 200))
            paths.append(str(path))
        return paths

    def _json(self, capsys, *arguments):
        assert main(["estimate", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def test_the_verdict_is_named(self, files, capsys):
        found = self._json(capsys, files[0], "--verdict", "lifted")
        roles = {row["method"]: row["role"] for row in found["bounds"]}
        assert [method for method, role in roles.items() if role == "verdict"] == ["lifted"]
        assert found["verdict"] == "lifted"
        assert 0 < found["ceiling"] < 3
        assert main(["estimate", files[0]]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "So many canaries can show" in printed

    @pytest.mark.parametrize("verdict", ["one-run", "final:gdp", "largest"])
    def test_a_verdict_that_cannot_be_is_refused(self, files, capsys, verdict):
        assert main(["estimate", files[0], "--verdict", verdict]) == 2
        assert "--verdict=" in capsys.readouterr().err


def test_the_order_in_which_a_record_holds_its_canaries_changes_no_number():
    rng = np.random.default_rng(5)
    orders = rng.permutation(40), rng.permutation(30)
    record = make_record(**{"observed.ids": np.arange(40), "unobserved.ids": np.arange(40, 70)})
    other = record.with_values(
        **{
            name: value[..., order]
            for side, order in zip(("observed", "unobserved"), orders, strict=True)
            for name, value in record.by_name().items()
            if value is not None and name.startswith(f"{side}.")
        },
        presence=record.presence[:, orders[0]],
    )
    assert summarize(other).to_dict() == summarize(record).to_dict()


def test_a_verdict_of_another_version_is_refused_by_name():
    with pytest.raises(ValueError, match="verdict='of another version'"):
        summarize(_named("of another version"))
