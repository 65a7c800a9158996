"""What everybody reads: whose privacy it is, and that one attack is no bound."""

import dataclasses
import html
import re

import numpy as np
import pytest
from records import limit_with_clients, make_record, record_of

from fl_epe.auditing.claims.score_file import bare_scores, summarize_scores
from fl_epe.reporting import as_text, summarize, write_report
from fl_epe.reporting.chart_epsilon import epsilon_chart
from fl_epe.reporting.details import details
from fl_epe.reporting.score_report import score_sentences
from fl_epe.reporting.sentences import (
    CAVEAT,
    HEADINGS,
    first_sentence,
    meaning,
    table_note,
    what_to_do,
)
from fl_epe.reporting.summary import settings_of
from fl_epe.wording import number

RUNS = {
    "ok": limit_with_clients,
    "little": lambda **more: limit_with_clients(noise=6.0, often=1, **more),
    "secret": lambda **more: limit_with_clients("poisson", **more),
    "unreliable": lambda **more: limit_with_clients(
        doubts=("the noise looks wrong",), **more
    ),
    "faulty": lambda **more: limit_with_clients(
        mechanism_faults=("step 1 has no noise",), **more
    ),
    "diverged": lambda **more: limit_with_clients(
        last_model_is_finite=False, **more
    ),
    "no-noise": lambda **more: make_record(
        noise_multiplier=0.0, sum_noise_multiplier=0.0, **more
    ),
    "not-measured": lambda **more: record_of(0, **more),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        pytest.param("client", id="client"),
        pytest.param("hospital", id="hospital"),
        pytest.param("client (node)", id="node"),
    ],
)
@pytest.mark.parametrize("run", RUNS)
def test_the_first_sentence_names_the_unit(run, unit):
    text = first_sentence(summarize(RUNS[run](unit=unit)))
    assert f"one {unit}" in text
    assert unit == "client" or "one client " not in text.replace(unit, "")


def test_after_the_first_time_the_unit_has_no_brackets():
    text = as_text(summarize(limit_with_clients(unit="client (node)")))
    assert text.count("(node)") == 1


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_every_measured_answer_has_the_caveat(run, tmp_path):
    summary = summarize(RUNS[run]())
    measured = any(one.estimate is not None for one in summary.answers)
    assert measured is (run != "not-measured")
    write_report(summary, tmp_path)
    page = html.unescape((tmp_path / "report.html").read_text())
    shown = (first_sentence(summary), " ".join(as_text(summary).split()), page)
    assert all((CAVEAT in text) is measured for text in shown)


def test_scores_have_the_caveat_too():
    drawn = np.random.default_rng(1).standard_normal(400)
    found = summarize_scores(
        bare_scores(drawn[:200] + 1, drawn[200:], None), 1e-5
    )
    assert found.estimate is not None
    assert CAVEAT in score_sentences(found)[0]


def test_a_limit_by_theory_is_called_one():
    """Also where the estimate is above it, by chance."""
    summary = summarize(limit_with_clients())
    every = summary.answers[1]
    limit = dataclasses.replace(
        every.analytical, epsilon=every.estimate.epsilon * 0.99
    )
    answers = summary.answers[0], dataclasses.replace(every, analytical=limit)
    told = first_sentence(dataclasses.replace(summary, answers=answers))
    assert (
        f"ε ≈ {number(every.estimate.epsilon)}, theory ≤ {number(limit.epsilon)}"
        in told
    )


def test_clients_that_differ_by_their_rounds_alone_are_said_to():
    (line, *_) = dict(details(summarize(limit_with_clients())))[
        "Which clients are worst off?"
    ]
    assert "rounds each. Their ε differ by" in line


@pytest.mark.parametrize("run", RUNS)
def test_a_stronger_attack_stands_beside_what_theory_allows_it(run):
    """Not where theory allows anything, and not where the run is known to break its assumptions."""
    summary = summarize(RUNS[run]())
    limit = summary.answers[1].analytical.epsilon
    allowed = (
        f"{CAVEAT}: theory allows {number(limit)} if implemented as claimed."
    )
    is_said = run not in ("faulty", "no-noise", "not-measured")
    assert (allowed in first_sentence(summary)) is is_said


@pytest.mark.parametrize(
    ("unit", "has_records"),
    [
        pytest.param("hospital", True, id="hospital"),
        pytest.param("example", False, id="example"),
        pytest.param("record", False, id="record"),
    ],
)
def test_the_note_says_that_a_unit_is_not_one_of_its_records(unit, has_records):
    note = table_note(summarize(limit_with_clients(unit=unit)))
    assert note.startswith(f"ε compares one {unit}'s random updates")
    assert ("(not one record's)" in note) is has_records


@pytest.mark.parametrize(
    ("run", "words"),
    [
        pytest.param("ok", "zeros in the same run (zero-out", id="zero-out"),
        pytest.param(
            "secret",
            "the same run without it (add-or-remove",
            id="add-or-remove",
        ),
    ],
)
def test_the_note_says_with_which_run_this_one_is_compared(run, words):
    assert f", with {words} adjacency)" in table_note(summarize(RUNS[run]()))


def test_an_interval_that_begins_at_zero_shows_nothing():
    summary = summarize(RUNS["little"](seed=2))
    assert any(
        one.estimate.low == 0 < one.estimate.epsilon for one in summary.answers
    )
    assert (
        "An interval from 0 shows neither a leak nor its absence."
        in table_note(summary)
    )


def test_a_lower_bound_is_never_called_a_proof_in_a_heading():
    assert "at least (95%)" in HEADINGS
    assert not any("proved" in heading for heading in HEADINGS)


def test_the_server_is_said_to_be_no_adversary():
    known = dict(details(summarize(limit_with_clients())))["Who knows what?"]
    assert any(
        "The server" in line and "it is trusted" in line for line in known
    )


@pytest.mark.parametrize(
    "run", [name for name in RUNS if name != "not-measured"]
)
def test_nothing_is_cleared_for_publication(run):
    summary = summarize(RUNS[run]())
    text = f"{first_sentence(summary)} {what_to_do(summary)}"
    for words in ("ublish the final model", "othing has to change", "in up to"):
        assert words not in text


def test_a_proof_stands_beside_what_it_assumes():
    summary = summarize(limit_with_clients())
    assert summary.answers[1].proved
    assert "independent is assumed, not proven" in meaning(summary)[1]


def test_the_worst_client_has_an_interval_and_theory():
    lines = dict(details(summarize(limit_with_clients())))[
        "Which clients are worst off?"
    ]
    worst = [line for line in lines if "worst-case" in line]
    assert len(worst) == 2
    for line in worst:
        assert re.search(
            r"ε is [\d.]+ \([\d.]+ – [\d.]+; theory allows [\d.]+\) from", line
        )


def test_the_statistics_of_the_paper_say_why_they_differ():
    lines = dict(details(summarize(limit_with_clients(noise=0.25))))
    paper = lines["What do the statistics of Andrew et al. (2024) say?"]
    assert any("It need not agree with the table" in line for line in paper)


def test_the_page_begins_with_what_was_run(tmp_path):
    record = limit_with_clients(
        unit="hospital", task="my:task", ended="2026-01-31T23:59:59Z"
    )
    write_report(summarize(record), tmp_path)
    page = (tmp_path / "report.html").read_text()
    top = page[page.index("<h1>") : page.index("<main")]
    for words in (
        "one hospital of",
        "my:task",
        "120 clients",
        "30 rounds",
        "2026-01-31 23:59",
    ):
        assert words in top


def test_settings_that_nobody_set_are_not_shown(tmp_path):
    record = limit_with_clients(
        settings={"delta": None, "server_momentum": 0.9}
    )
    write_report(summarize(record), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert settings_of(record)["server_momentum"] == "0.9"
    assert "num_canaries" not in settings_of(record)  # stands once, as canaries
    assert "<td>None</td>" not in page
    assert ">server_momentum</th><td>0.9</td>" in page


class TestPicture:
    """ε against participations."""

    def chart(self):
        record = limit_with_clients(noise=0.25)
        chart = epsilon_chart(record, summarize(record).answers)
        assert chart is not None
        return chart

    def test_every_mark_is_in_the_legend(self):
        named = {
            trace["name"]
            for trace in self.chart().traces
            if trace["showlegend"]
        }
        for what in ("canaries", "at least"):
            assert {f"{what}, final model", f"{what}, every round"} <= named

    def test_its_axis_ends_where_somebody_took_part(self):
        chart = self.chart()
        ticks = chart.layout["xaxis"]["tickvals"]
        assert ticks[0] == 0
        assert ticks[-1] <= max(
            max(trace["x"]) for trace in chart.traces if trace["type"] != "bar"
        )

    def test_it_says_its_delta(self):
        assert self.chart().title.startswith("ε at δ = 1e-05")
