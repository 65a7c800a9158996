"""The table of a report for LaTeX: its structure, and LaTeX itself where it is installed."""

import dataclasses
import re
import shutil
import subprocess

import pytest
from records import make_record, record_of

from fl_epe.auditing import answers
from fl_epe.limit import limit_record
from fl_epe.reporting import summarize
from fl_epe.reporting.pages import escaped
from fl_epe.reporting.publish import latex_table
from fl_epe.reporting.reliability import ReportWarning
from fl_epe.schedules import make_schedule

DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""
RECORDS = {
    "usual": make_record,
    "one-canary": lambda: record_of(1),
    "no-noise": lambda: make_record(noise_multiplier=0.0, sum_noise_multiplier=0.0),
    "odd-name": lambda: make_record(task=r"50%_of {a} \task & $more$ #1 ~^"),
    "secret-rounds": lambda: limit_record(
        make_schedule("poisson", 6, 2), 1.0, 1e-5, num_canaries=40, unobserved=40
    ),
}


def _table(record, *warnings):
    summary = summarize(record)
    return latex_table(dataclasses.replace(summary, warnings=warnings), record)


def _cells(text):
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    return [line.removesuffix(r" \\").split(" & ") for line in body.splitlines()[1:]]


@pytest.mark.parametrize("kind", RECORDS)
def test_every_row_has_five_cells_and_groups_are_closed(kind):
    text = _table(RECORDS[kind]())
    assert [len(row) for row in _cells(text)] == [5] * 2
    plain = re.sub(r"\\[\\{}]", "", text)
    assert plain.count("{") == plain.count("}")
    assert re.sub(r"\\\$", "", text).count("$") % 2 == 0
    begun, ended = (
        re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end")
    )
    assert begun == ended[::-1]
    assert text.isascii() or kind == "odd-name"


def test_the_caption_says_what_the_numbers_are_of():
    warning = ReportWarning("diverged", "50% of losses")
    caption = _table(make_record(), warning).split(r"\caption")[1]
    for part in (
        r"$\delta = 0.001$",
        "noise multiplier 0.5",
        "3 participations (the median) in 6 rounds",
        "knows the client's rounds",
        "zero-out adjacency",
        "40 canaries",
        r"\textbf{Diverged, as 50\% of losses: ",
    ):
        assert part in caption
    secret = _table(RECORDS["secret-rounds"]())
    assert "2 participations (expected) in 6 rounds" in secret
    assert "does not know its rounds" in secret


def test_the_numbers_are_those_of_the_answer():
    record = make_record()
    for row, answer in zip(_cells(_table(record)), answers(record), strict=True):
        assert float(row[1]) == pytest.approx(answer.estimate.epsilon, rel=0.005)
        assert float(row[3].removeprefix(r"$\geq$ ")) == pytest.approx(
            answer.proved, rel=0.005
        )
        assert float(row[4]) == pytest.approx(answer.analytical.epsilon, rel=0.005)


def test_what_was_not_measured_has_no_number():
    for row in _cells(_table(record_of(1))):
        assert row[1:4] == ["not measured", "--", "--"]


def test_special_characters():
    assert escaped("a_b & 50% #1 {x}") == r"a\_b \& 50\% \#1 \{x\}"
    assert escaped("\\") == r"\textbackslash{}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
@pytest.mark.parametrize("kind", RECORDS)
def test_latex_takes_it(kind, tmp_path):
    (tmp_path / "t.tex").write_text(DOCUMENT % _table(RECORDS[kind]()), "utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout
    assert "Overfull" not in run.stdout
