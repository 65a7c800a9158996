r"""The table of a report for LaTeX, in the style of booktabs.

Examples:
    >>> escaped("50% of δ_1")
    '50\\% of $\\delta$\\_1'
"""

from __future__ import annotations

import math

from fl_epe.auditing import EpsilonEstimate
from fl_epe.reporting.status import NOT_MEASURED
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary, TableRow

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "θ": r"$\theta$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "∞": r"$\infty$",
    "−": r"$-$",
    "–": "--",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "√": r"$\surd$",
    "·": r"$\cdot$",
}


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def latex_table(summary: RunSummary) -> str:
    """A ``table`` environment with a row for each of the report's; needs the package booktabs."""
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{_caption(summary)}}}",
        r"\label{tab:empirical-epsilon}",
        r"\begin{tabular}{llrrrr}",
        r"\toprule",
        r"sees & statistic & $\varepsilon$ & "
        rf"{summary.confidence * 100:g}\% interval & lower bound & analytical \\",
        r"\midrule",
        *[_row(row, summary) for row in summary.rows()],
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(row: TableRow, summary: RunSummary) -> str:
    found = row.part
    cells = [escaped(row.sees), escaped(row.name)]
    if isinstance(found, StatisticSummary):
        bound = "--" if found.lower_bound is None else _number(found.lower_bound)
        dagger = r"$^{\dagger}$" if row.paper and found.lower_bound is not None else ""
        cells += [_number(found.estimate.epsilon), _interval(found.estimate), bound + dagger]
    else:
        cells += [NOT_MEASURED, "--", "--"]
    analytical = summary.analytical.epsilon
    cells.append("none known" if analytical is None else _number(analytical))
    return " & ".join(cells) + r" \\"


def _interval(found: EpsilonEstimate) -> str:
    return f"{_number(found.low)}--{_number(found.high)}"


def _number(value: float) -> str:
    """Three figures, without a power of ten that LaTeX would print as a product."""
    if math.isinf(value):
        return r"$\infty$"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return rf"${mantissa}\cdot 10^{{{int(exponent)}}}$"


def _caption(summary: RunSummary) -> str:
    """What the numbers are of, so that the table can stand alone."""
    noise = summary.noise_multiplier
    facts = [rf"$\delta = {_number(summary.delta).strip('$')}$"]
    facts.append("noise multiplier not known" if noise is None else rf"$z = {noise:g}$")
    if summary.rounds is not None:
        facts.append(f"{summary.rounds} rounds")
        facts.append(
            f"{summary.num_canaries} observed and {summary.unobserved} unobserved canaries"
        )
    task = f" of {escaped(summary.task)}" if summary.task else ""
    status = {
        "ok": "",
        "diverged": r" \textbf{The run diverged.}",
        "faulty": r" \textbf{The run is not what its privacy accounting assumes.}",
        "not measured": r" \textbf{The run was not measured.}",
        "doubtful": r" \textbf{The measurement is in doubt.}",
    }[summary.status]
    analytical = summary.analytical
    limit = (
        f"No theorem is known to limit it ({escaped(analytical.assumption)})."
        if analytical.epsilon is None
        else f"Analytical: upper bound for {escaped(analytical.adjacency)} adjacency; "
        f"it assumes: {escaped(analytical.assumption)}."
    )
    return (
        rf"Empirical $\varepsilon$ of a run{task} by what an adversary sees: "
        f"{', '.join(facts)}.{status} {limit} Estimates of $\\varepsilon$ are not bounds; "
        f"lower bounds hold one at a time at {summary.confidence * 100:g}\\% confidence, but for "
        r"those marked $\dagger$, which are the paper's and do not."
    )
