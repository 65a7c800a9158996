"""What a person reads: the table in the terminal, the pictures, one HTML page, one JSON file."""

from __future__ import annotations

import base64
import importlib.resources
import io
import json
import math
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fl_epe.auditing import AuditRecord
from fl_epe.reporting.figures import FIGURES, render
from fl_epe.reporting.summary import ROWS, pick, summarize


def write_report(record: AuditRecord, directory: Path) -> dict[str, Any]:
    """Write ``report.json``, ``report.html`` and its pictures as PNG files; returns the summary.

    Args:
        record: what a run left behind; nothing else is needed.
        directory: where to write; made if it is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    summary = summarize(record)
    text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False)
    (directory / "report.json").write_text(text + "\n", encoding="utf-8")
    pictures = []
    for name, (caption, draw) in FIGURES.items():
        image = render(lambda figure, draw=draw: draw(figure, record, summary))  # type: ignore[misc]
        (directory / f"{name}.png").write_bytes(image)
        pictures.append((caption, base64.b64encode(image).decode()))
    page = _page(record, summary, pictures)
    (directory / "report.html").write_text(page, encoding="utf-8")
    return summary


def epsilon_table(summary: dict[str, Any]) -> Table:
    """The summary as a table for the terminal."""
    confidence = f"{summary['confidence']:.0%}"
    table = Table(
        title=f"Empirical ε at δ = {summary['delta']:.2g}, by what an adversary sees",
        title_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for name in ("sees", "statistic"):
        table.add_column(name, no_wrap=True)
    for name, width in (("ε", 5), (f"{confidence} interval", 13), ("lower bound", 6)):
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    table.add_column("analytical", justify="right", no_wrap=True)
    for cells in table_rows(summary):
        table.add_row(*cells, style="dim" if "paper" in cells[1] else "")
    return table


def as_text(summary: dict[str, Any], width: int = 100) -> str:
    """Table and notes as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(epsilon_table(summary))
    for note in notes(summary):
        console.print(f"- {note}", highlight=False)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def table_rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """The cells of the table, as text."""
    rows: list[tuple[str, ...]] = []
    for key, threat, statistic in ROWS:
        part = pick(summary, key)
        if part is not None and "epsilon" in part:
            interval = f"{number(part['low'])} – {number(part['high'])}"
            proven = part["lower_bound"] is not None or part["lower_bound_unbounded"]
            rows.append(
                (
                    threat,
                    statistic,
                    number(part["epsilon"]),
                    interval,
                    number(part["lower_bound"]) if proven else "–",
                    analytical_text(summary),
                )
            )
    return rows


def assessment_tables(result: dict[str, Any]) -> list[Table]:
    """What `fl_epe.auditing.score_summary.assess_scores` returns, as tables for the terminal."""
    confidence = f"{result['confidence']:.0%}"
    estimates = Table(
        title=f"ε at δ = {result['delta']:.2g} from {result['observed']} + "
        f"{result['unobserved']} scores",
        title_justify="left",
        box=SIMPLE,
    )
    for name, justify in (
        ("estimate", "left"),
        ("ε", "right"),
        (f"{confidence} interval", "right"),
    ):
        estimates.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in result["estimates"]:
        interval = f"{number(row['low'])} – {number(row['high'])}"
        estimates.add_row(row["method"], number(row["epsilon"]), interval)
    bounds = Table(title=f"Lower bounds, {confidence} one-sided", title_justify="left", box=SIMPLE)
    for name, justify in (("bound", "left"), ("ε ≥", "right"), ("valid", "left")):
        bounds.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    bounds.add_column("assumes")
    for row in result["bounds"]:
        valid = "yes" if row["valid"] else "no"
        bounds.add_row(row["method"], number(row["epsilon"]), valid, row["assumption"])
    gaussian = Table(title="Are the scores Gaussian?", title_justify="left", box=SIMPLE)
    for name in ("scores", "Anderson–Darling A²", "p-value"):
        gaussian.add_column(name)
    for row in result["gaussian"]:
        gaussian.add_row(row["scores"], f"{row['statistic']:.3f}", f"{row['p_value']:.3g}")
    return [estimates, bounds, gaussian] if result["gaussian"] else [estimates, bounds]


def analytical_text(summary: dict[str, Any]) -> str:
    """The analytical ε, "∞" where there is no noise, "none known" where there is no theorem."""
    analytical = summary["analytical"]
    if analytical["epsilon"] is None:
        return "∞" if analytical["unbounded"] else "none known"
    return number(analytical["epsilon"])


def notes(summary: dict[str, Any]) -> list[str]:
    """What a reader must know about the numbers."""
    analytical = summary["analytical"]
    lines = [
        "ε estimates say what the canary attack achieves. They are not bounds.",
        "Lower bounds hold against the adversary of their row, for independent scores of any "
        "distribution; those of the paper's rows (Jeffreys, threshold chosen on the same scores) "
        "do not.",
        *_analytical_note(summary),
        *_budget_note(analytical),
        *_participation_note(analytical),
        *_share_note(analytical),
        *_exposure_notes(summary),
        f"Canaries are {summary['canary_share']:.0%} of a cohort of {summary['cohort_size']:.3g}.",
    ]
    lines += _gaussian_warnings(summary)
    for key, threat, statistic in ROWS:
        part = pick(summary, key)
        if part and part.get("lower_bound") and part["lower_bound"] > (part["high"] or math.inf):
            lines.append(
                f"The lower bound of “{threat} {statistic}” lies above its interval: canaries "
                "differ, the estimate is for their mean, and the most exposed ones show."
            )
    if absent := summary["metrics"]["absent"]:
        were = "update was" if absent == 1 else "updates were"
        zero = " and counted as zero" if summary["lost_count_as_zero"] else ""
        lines.append(f"{absent} {were} lost{zero}: see “Lost updates” in report.html.")
    return lines


def _exposure_notes(summary: dict[str, Any]) -> list[str]:
    """The most exposed participant, and the adversary who does not know the rounds."""
    lines = []
    if fit := pick(summary, "final.footprints"):
        lines.append(
            f"Seeing the final model, the most exposed canary has ε = "
            f"{number(fit['most_exposed']['epsilon'])}; footprints explain the scores with scale "
            f"{fit['scale']:.3f} ({fit['scale_low']:.3f} – {fit['scale_high']:.3f})."
        )
    if secret := pick(summary, "all.secret_rounds"):
        lines.append(
            f"Seeing every round without knowing who took part when: ε = "
            f"{number(secret['epsilon'])}, for a canary whose rounds are drawn at random, strong "
            f"rounds and weak (the rows of the table are for one of mean footprint)."
        )
    if full := pick(summary, "all.full_knowledge"):
        lines.append(
            f"Knowing the real clients' sum as well: ε = {number(full['epsilon'])} "
            f"({number(full['low'])} – {number(full['high'])})."
        )
    return lines


def _budget_note(analytical: dict[str, Any]) -> list[str]:
    whole, canary = analytical["epsilon"], analytical["canary_epsilon"]
    if whole is None or canary is None or whole - canary < 1e-3 * whole:
        return []
    return [
        f"A part of the budget goes to the count that moves the clip norm. Canaries are not in "
        f"it: the analytical ε of what they do is {number(canary)}."
    ]


def _participation_note(analytical: dict[str, Any]) -> list[str]:
    clients, canaries = analytical["client_participations"], analytical["participations"]
    if not clients or clients < 1.5 * canaries:
        return []
    times = "once" if canaries == 1 else f"{canaries:.3g} times"
    return [
        f"A client took part {clients:.3g} times on average, a canary {times}: that is what was "
        f"measured, and a client gives away more (about {math.sqrt(clients / canaries):.2g} times "
        "the shift between the two Gaussians). Raise repeats to measure it."
    ]


def _share_note(analytical: dict[str, Any]) -> list[str]:
    lines = [f"Warning: {analytical['caveat']}"] if analytical["caveat"] else []
    largest = analytical["largest_share"]
    if largest is None or largest < 1.01:
        return lines
    return [
        *lines,
        f"Warning: the noise is meant for updates that count C/n each, and a canary counted up to "
        f"{largest:.3g} times that (weights that differ, or replies that are missing): the "
        "analytical ε does not hold.",
    ]


_SUSPECT = 0.001  # with four tests a report, one false warning in 250 reports


def _gaussian_warnings(summary: dict[str, Any]) -> list[str]:
    """A line for each statistic whose scores are not Gaussian, and what to use instead."""
    lines = []
    instead = {
        "final": "participations or clip norms differ between canaries; look at the footprint "
        "regression (final.footprints in report.json), which gives ε of the most exposed one",
        "all": "participations or clip norms differ between canaries; look at all.footprints in "
        "report.json",
        "all.paper": "a maximum never is; use the matched filter",
    }
    for key, reason in instead.items():
        part = pick(summary, key)
        test = part.get("gaussian") if part else None
        if test and test["p_value"] < _SUSPECT:
            name = " ".join(next(row[1:] for row in ROWS if row[0] == key))
            lines.append(
                f"Warning: the scores of “{name}” are not Gaussian (Anderson–Darling "
                f"A² = {test['statistic']:.2f}, p = {test['p_value']:.1g}): {reason}."
            )
    return lines


def _analytical_note(summary: dict[str, Any]) -> list[str]:
    """What the analytical ε takes for granted."""
    analytical = summary["analytical"]
    if analytical["epsilon"] is None and not analytical["unbounded"]:
        return [f"Analytical ε: none known ({analytical['assumption']})."]
    counted = analytical["participations"]
    times = "once" if counted == 1 else f"{counted:g} times"
    line = f"Analytical ε: {analytical['assumption']}; {analytical['adjacency']} adjacency; "
    if summary["participation"] != "poisson":
        up = f", counted as {math.ceil(counted)}" if counted != round(counted) else ""
        return [f"{line}a canary takes part {times}{up}."]
    return [
        f"{line}a canary takes part {times} on average.",
        "It counts on the rounds being secret. The matched filter knows them: its ε and its lower "
        "bound may be larger. Both rows are for a canary of mean footprint; see "
        "all.footprints in report.json for the most exposed one.",
    ]


def number(value: float | None) -> str:
    """Three significant digits at least, "∞" for what is not finite."""
    if value is None:
        return "∞"
    if value == 0:
        return "0"
    if value >= 1e6:
        return f"{value:.2e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"


def _page(record: AuditRecord, summary: dict[str, Any], pictures: list[tuple[str, str]]) -> str:
    import jinja2

    source = importlib.resources.files("fl_epe") / "reporting" / "templates" / "report.html.j2"
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(
        source.read_text(encoding="utf-8")
    )
    return template.render(
        summary=summary,
        rows=table_rows(summary),
        notes=notes(summary),
        pictures=pictures,
        number=number,
        config=record.config,
        versions=record.versions,
    )
