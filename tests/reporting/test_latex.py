"""The table of a report for LaTeX: its structure, and LaTeX itself where it is installed."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from records import make_record, record_of

from fl_epe.reporting import summarize
from fl_epe.reporting.publish import escaped, latex_table

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
    "diverged": lambda: make_record(metrics={"train_loss": np.full(6, np.nan)}),
}


def _cells(text):
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")]
    return [line.removesuffix(r" \\").split(" & ") for line in body.splitlines()[1:]]


@pytest.mark.parametrize("kind", RECORDS)
def test_every_row_has_six_cells_and_groups_are_closed(kind):
    text = latex_table(summarize(RECORDS[kind]()))
    assert [len(row) for row in _cells(text)] == [6] * 4
    plain = re.sub(r"\\[\\{}]", "", text)
    assert plain.count("{") == plain.count("}")
    assert re.sub(r"\\\$", "", text).count("$") % 2 == 0
    begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert begun == ended[::-1]
    assert text.isascii() or kind == "odd-name"


def test_the_caption_says_what_the_numbers_are_of():
    caption = latex_table(summarize(make_record())).split(r"\caption")[1]
    for part in (r"$\delta = 0.001$", "$z = 0.5$", "6 rounds", "40 observed and 30 unobserved"):
        assert part in caption
    assert "zero-out adjacency" in caption
    assert "diverged" not in caption
    assert "Diverged" in latex_table(summarize(RECORDS["diverged"]()))


def test_the_numbers_are_those_of_the_report():
    summary = summarize(make_record())
    found = summary.rows()[0].part
    row = _cells(latex_table(summary))[0]
    assert float(row[2]) == pytest.approx(found.estimate.epsilon, rel=0.005)
    assert float(row[4]) == pytest.approx(found.lower_bound, rel=0.005)
    assert [row[4].endswith(r"$^{\dagger}$") for row in _cells(latex_table(summary))] == [
        False,
        False,
        True,
        True,
    ]


def test_what_was_not_measured_has_no_number():
    for row in _cells(latex_table(summarize(record_of(1)))):
        assert row[2:5] == ["not measured", "--", "--"]


def test_special_characters():
    assert escaped("a_b & 50% #1 {x}") == r"a\_b \& 50\% \#1 \{x\}"
    assert escaped("\\") == r"\textbackslash{}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed")
@pytest.mark.parametrize("kind", RECORDS)
def test_latex_takes_it(kind, tmp_path):
    (tmp_path / "t.tex").write_text(DOCUMENT % latex_table(summarize(RECORDS[kind]())), "utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert "Overfull" not in run.stdout
