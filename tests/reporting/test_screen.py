"""The first screen of a report: short, the answer first, and the most important warning in it."""

import contextlib
import dataclasses
import io
import os
import subprocess
import sys

import numpy as np
import pytest
from records import limit_with_clients, make_record, record_of

from fl_epe.cli.main import main
from fl_epe.cli.report import print_and_write
from fl_epe.reporting import (
    Terminal,
    as_text,
    print_report,
    summarize,
    summarize_unmeasured,
)
from fl_epe.reporting.reliability import CODES, warnings_of
from fl_epe.reporting.sentences import (
    LITTLE,
    SOME,
    guess_limit,
    table_note,
    table_rows,
    what_to_do,
)

limit = limit_with_clients
LONG = tuple(
    f"step {t}: the noise is smaller than what is accounted for by far"
    for t in range(9)
)
RECORDS = {
    "ok": limit,
    "large-delta": lambda: limit(noise=0.25, delta=0.0052),
    "secret": lambda: limit("poisson"),
    "extrapolated": lambda: limit(often=30, clients=10, places=1),
    "faulty": lambda: limit(mechanism_faults=LONG),
    "doubts": lambda: limit(doubts=LONG, caveat=" ".join(LONG), faults=LONG),
    "unmeasured": lambda: record_of(
        0, fault_counts={f"a fault of kind {i}": i for i in range(9)}
    ),
    "crowded": lambda: limit(clients=20),
    "no-noise": lambda: make_record(
        noise_multiplier=0.0, sum_noise_multiplier=0.0
    ),
    "unknown-noise": lambda: make_record(
        noise_multiplier=None, sum_noise_multiplier=None
    ),
}
STATUS = {
    "faulty": "faulty",
    "doubts": "unreliable",
    "unmeasured": "not measured",
}
STATUS |= {"crowded": "unreliable"}


@pytest.fixture(scope="module", params=RECORDS)
def screen(request, tmp_path_factory):
    """Its case, its summary and what the terminal shows."""
    folder, shown = tmp_path_factory.mktemp("run"), io.StringIO()
    with (
        contextlib.redirect_stdout(shown),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("COLUMNS", "80")
        summary = print_and_write(RECORDS[request.param](), folder)
    text = shown.getvalue().replace(str(folder), "runs/digits-20260101-120000")
    return request.param, summary, text.strip("\n")


@pytest.mark.slow
def test_it_is_one_screen(screen):
    _, _, text = screen
    lines = text.splitlines()
    assert len(lines) <= 25
    assert len(text.split()) <= 200
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("name", RECORDS)
def test_every_number_of_the_table_is_whole_in_a_narrow_terminal(name, columns):
    summary, shown = summarize(RECORDS[name]()), io.StringIO()
    print_report(Terminal(file=shown, width=columns), summary)
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    after = lines[
        [line.startswith("How much leaks") for line in lines].index(True) :
    ]
    for first, *cells in table_rows(summary):
        place = next(
            i for i, line in enumerate(after) if line.startswith(first)
        )
        row = after[place].split(maxsplit=len(first.split()))[-1]
        if columns == 80:
            assert all(cell in row for cell in cells)
        else:
            values = [
                line.partition(": ")[2] for line in after[place + 1 : place + 5]
            ]
            assert values == cells


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            "advise noise --target-epsilon 3 --rounds 20", id="advise-noise"
        ),
        pytest.param(
            "advise canaries --clients 120 --participations 12",
            id="advise-canaries",
        ),
        pytest.param(
            "compare --schedules epochs poisson --noise-multipliers 1 --participations 4 "
            "--rounds 20 --workers 1 --output grid",
            id="compare",
        ),
        pytest.param("report a b --output both", id="report-of-two"),
        pytest.param("estimate scores.csv", id="estimate"),
    ],
)
def test_no_command_cuts_a_number(
    words, columns, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(columns))
    for name, noise in (("a", 1.0), ("b", 2.0)):
        (tmp_path / name).mkdir()
        limit(noise=noise).save(tmp_path / name / "record.npz")
    scores = np.random.default_rng(1).normal([3, 0], 1, (40, 2))
    np.savetxt(
        "scores.csv",
        scores,
        delimiter=",",
        header="observed,unobserved",
        comments="",
    )
    assert main(words.split()) == 0
    assert "…" not in capsys.readouterr().out


@pytest.mark.weekly
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_at_least_and_at_most_are_told_apart_in_any_encoding(
    encoding, tmp_path
):
    limit(noise=0.5).save(tmp_path / "record.npz")
    command = [
        sys.executable,
        "-m",
        "fl_epe",
        "report",
        str(tmp_path),
        "--details",
    ]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "80"}
    shown = subprocess.run(
        command, env=environment, capture_output=True, check=True
    ).stdout
    text, rows = shown.decode(encoding), table_rows(summarize(limit(noise=0.5)))
    for row in rows:
        for cell in row[3:]:
            assert (cell if encoding == "utf-8" else plain_of(cell)) in text
    if encoding != "utf-8":
        questions = [line for line in text.splitlines() if line.endswith("?")]
        assert text.count("?") == len(questions)  # those that the report asks


def plain_of(cell):
    """The cell in letters that every encoding has."""
    return cell.replace("≥", ">=").replace("≤", "<=")


def test_in_a_notebook_a_report_is_text_too(monkeypatch):
    """Where rich would show it at once as HTML, and there would be no text to return."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "theory allows" in as_text(summarize(limit()))


def test_the_status_and_its_reason_come_first(screen):
    name, summary, text = screen
    assert summary.status == STATUS.get(name, "ok")
    first = " ".join(text.split()).partition(": ")[0]
    if summary.status == "ok":
        assert text.startswith(
            "Whether one client took part, this audit's attack guesses right"
        )
    else:
        reason = summary.warnings[0].text.split(": ")[0].split()[:12]
        assert first.startswith(
            f"{summary.status.capitalize()}, as {' '.join(reason)}"
        )


def test_who_is_attacked_by_whom(screen):
    name, summary, text = screen
    text = " ".join(text.split())
    if name == "unmeasured":
        assert "it is not known how much this run leaks" in text
        assert "not measured – –" in text
        return
    secret = name == "secret"
    assert ("The adversary knows its updates, not its rounds" in text) is secret
    assert ("on average, drawn in secret" in text) is secret
    assert ("†" in text) is (name == "extrapolated")
    assert ("At δ = 1e-05, usual in larger runs: ε ≈" in text) is (
        name in ("large-delta", "no-noise", "unknown-noise")
    )
    for answer in summary.answers:
        assert f"{answer.estimate.high:.3g}" in text.replace(",", "")
    assert ("∞" in text) is (name == "no-noise")
    assert ("none known" in text) is (name == "unknown-noise")


def test_the_details_answer_questions_and_hide_nothing():
    summary = summarize(limit("poisson"))
    short, long = as_text(summary), as_text(summary, details=True)
    assert long.startswith(short)
    for question in (
        "Can I trust it?",
        "Who knows what?",
        "Which clients are worst off?",
    ):
        assert question in long
    assert "What do the statistics of Andrew et al. (2024) say?" in long
    assert "Another question" in long  # of who knows the rounds
    assert "Another question" not in as_text(summarize(limit()), details=True)


def test_many_warnings_are_counted_where_they_do_not_fit():
    text = " ".join(as_text(summarize(RECORDS["doubts"]())).split())
    assert "more warnings in the details." in text
    whole = " ".join(
        as_text(summarize(RECORDS["doubts"]()), details=True).split()
    )
    assert all(words in whole for words in LONG)


class TestWarnings:
    """What makes an answer unreliable, and what does not."""

    def codes(self, record):
        return [one.code for one in summarize(record).warnings]

    @pytest.mark.slow
    def test_a_sound_run_has_none(self):
        found = [
            self.codes(limit(kind, seed=seed))
            for kind in ("epochs", "poisson")
            for seed in range(5)
        ]
        assert sum(map(bool, found)) <= 1

    def test_scores_that_are_too_wide(self):
        record = limit()
        wide = record.observed.displacement * 3
        assert "width" in self.codes(
            record.with_values(**{"observed.displacement": wide})
        )

    def test_a_null_that_does_not_fit(self):
        record = limit()
        null = record.unobserved.displacement * 2
        assert "null" in self.codes(
            record.with_values(**{"unobserved.displacement": null})
        )

    def test_a_model_that_forgets(self):
        record = limit(noise=0.02, often=2)
        kept = (
            np.arange(30) @ record.presence / record.presence.sum(axis=0) / 15
        )
        forgot = record.observed.displacement * kept
        assert "time" in self.codes(
            record.with_values(**{"observed.displacement": forgot})
        )
        assert "time" not in self.codes(record)

    @pytest.mark.parametrize(
        ("metric", "values", "chance", "found"),
        [
            pytest.param(
                "accuracy",
                [0.2, 0.1],
                {"chance_accuracy": 0.1},
                True,
                id="guess",
            ),
            pytest.param(
                "accuracy",
                [0.1, 0.2],
                {"chance_accuracy": 0.1},
                False,
                id="learned",
            ),
            pytest.param("r2", [-1.0, -0.1], {}, True, id="mean"),
            pytest.param("r2", [-1.0, 0.3], {}, False, id="regression"),
        ],
    )
    def test_a_model_that_does_not_learn(self, metric, values, chance, found):
        metrics = {
            "eval_round": np.array([0, 30]),
            "eval_accuracy": np.array(values),
        }
        assert (
            "learning"
            in self.codes(limit(metrics=metrics, metric=metric, **chance))
        ) is found

    def test_a_loss_that_is_that_of_the_mean(self):
        metrics = {
            "eval_round": np.array([0, 30]),
            "eval_loss": np.array([3.0, 2.0]),
        }
        for chance, found in ((1.5, True), (2.5, False)):
            record = limit(metrics=metrics, metric="", chance_loss=chance)
            assert ("learning" in self.codes(record)) is found

    def test_a_model_that_guesses_right_has_learned_whatever_its_loss_is(self):
        series = {
            "eval_round": np.array([0, 30]),
            "eval_accuracy": np.array([0.1, 0.9]),
        }
        metrics = {**series, "eval_loss": np.array([2.3, 5.0])}
        record = limit(
            metrics=metrics,
            metric="accuracy",
            chance_accuracy=0.1,
            chance_loss=2.3,
        )
        assert "learning" not in self.codes(record)

    def test_a_proof_above_its_interval_and_above_theory(self):
        record = limit(noise=0.3)
        summary = summarize(record)
        final, every = summary.answers
        assert every.estimate is not None
        above = dataclasses.replace(every, proved=every.estimate.high + 1)
        assert above.contradicted
        codes = [one.code for one in warnings_of(record, (final, above))]
        assert codes[0] == "above-theory"  # proved at 95%, and not at 99.9%
        assert "contradicted" in codes

    def test_nobody_is_accused_whose_interval_holds_what_theory_allows(self):
        """Less noise than is accounted for is a defect, by a proof or by the estimate."""
        record = limit(noise=0.3, places=60)
        wrong = record.with_values(noise_multiplier=1.5)
        summary = summarize(wrong)
        assert summary.status == "faulty"
        assert summary.warnings[0].code == "exceeds-theory"
        accused = [
            one.text for one in summary.warnings if one.code == "exceeds-theory"
        ]
        assert accused[0].startswith(
            "with 99.9% confidence the final model leaks more"
        )
        assert accused[1].startswith(
            "with 99.0% confidence every round's model leaks more"
        )
        assert "(proved ε ≥ " in accused[1]
        slightly = summarize(
            record.with_values(noise_multiplier=0.31)
        ).warnings[0]
        assert "if its noise is Gaussian, allowed 64.1" in slightly.text
        assert "exceeds-theory" not in self.codes(record)

    def test_every_code_has_a_rank(self):
        assert list(CODES.values()) == sorted(
            CODES.values(),
            key=[
                "diverged",
                "not measured",
                "faulty",
                "unreliable",
                "ok",
            ].index,
        )


def test_the_guess_of_a_hand_calculation():
    assert guess_limit(0.0, 0.0) == 0.5
    assert guess_limit(np.log(3), 0.0) == pytest.approx(0.75)
    assert guess_limit(np.log(3), 0.1) == pytest.approx(0.775)
    assert guess_limit(800.0, 0.0) == 1.0


@pytest.mark.parametrize(
    ("final", "every", "words"),
    [
        pytest.param(0.5, 0.5, "ittle was found", id="little"),
        pytest.param(0.5, 9.0, "eep the rounds' models secret", id="final"),
        pytest.param(2.0, 2.0, "if that is too much", id="some"),
        pytest.param(9.0, 9.0, "efore the model is published", id="a-lot"),
    ],
)
def test_what_to_do_goes_by_the_upper_ends(final, every, words):
    summary = summarize(limit())
    changed = [
        dataclasses.replace(
            one, estimate=dataclasses.replace(one.estimate, high=high)
        )
        for one, high in zip(summary.answers, (final, every), strict=True)
        if one.estimate is not None
    ]
    limits = [guess_limit(high, 1e-5) for high in (0.5, 2.0, 9.0)]
    assert limits[0] < LITTLE < limits[1] < SOME < limits[2]
    assert words in what_to_do(
        dataclasses.replace(summary, answers=tuple(changed))
    )


def test_without_a_record_the_screen_is_as_short():
    reason = "the audit could not read the model: " + ", ".join(LONG)
    text = as_text(summarize_unmeasured(f"{reason}.", delta=1e-5, faults=LONG))
    assert text.startswith(
        "Not measured, as the audit could not read the model"
    )
    assert len(text.split()) <= 190
    assert len(text.splitlines()) <= 22


def test_theory_may_say_less_than_an_audit_can_show():
    summary = summarize(limit(noise=6.0, often=1))
    every = summary.answers[1]
    assert every.estimate is not None
    assert (
        every.estimate.high
        > (every.analytical.epsilon or 0.0)
        > (every.proved or 0.0)
    )
    assert summary.status == "ok"
    assert what_to_do(summary).startswith("Little was found")
    assert every.estimate.epsilon > (every.analytical.epsilon or 0.0)
    assert "Estimates may exceed theory by chance." in table_note(summary)
    estimate = dataclasses.replace(
        every.estimate, low=9.0, epsilon=12.0, high=15.0
    )
    above = dataclasses.replace(
        every, estimate=estimate
    )  # theory does not explain that
    summary = dataclasses.replace(summary, answers=(summary.answers[0], above))
    assert "rounds' models secret" in what_to_do(summary)
    estimate = dataclasses.replace(estimate, low=0.0, epsilon=0.0, high=0.0)
    below = [
        dataclasses.replace(one, estimate=estimate) for one in summary.answers
    ]
    assert "by chance" not in table_note(
        dataclasses.replace(summary, answers=tuple(below))
    )
