r"""The table of a report for LaTeX, in the style of booktabs.

Examples:
    >>> escaped("50% of δ_1")
    '50\\% of $\\delta$\\_1'
"""

from fl_epe.reporting.status import status_line
from fl_epe.reporting.summary_types import RunSummary, TableRow
from fl_epe.reporting.tables import table_rows

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
        *map(_row, summary.rows(), table_rows(summary)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(row: TableRow, cells: tuple[str, ...]) -> str:
    """A row of the report's table; a dagger marks a bound of the paper's."""
    found = [escaped(cell) for cell in cells]
    if row.paper and cells[4] != "–":
        found[4] += r"$^{\dagger}$"
    return " & ".join(found) + r" \\"


def _plain(delta: float) -> str:
    mantissa, _, exponent = f"{delta:.3g}".partition("e")
    return rf"{mantissa}\cdot 10^{{{int(exponent)}}}" if exponent else mantissa


def _caption(summary: RunSummary) -> str:
    """What the numbers are of, so that the table can stand alone."""
    noise = summary.noise_multiplier
    facts = [rf"$\delta = {_plain(summary.delta)}$"]
    facts.append("noise multiplier not known" if noise is None else rf"$z = {noise:g}$")
    if summary.rounds is not None:
        facts.append(f"{summary.rounds} rounds")
        facts.append(
            f"{summary.num_canaries} observed and {summary.unobserved} unobserved canaries"
        )
    task = f" of {escaped(summary.task)}" if summary.task else ""
    line = status_line(summary)
    status = "" if line is None else rf" \textbf{{{escaped(line)}}}"
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
