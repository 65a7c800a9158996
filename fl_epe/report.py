"""What a person reads: the table in the terminal, the pictures, one HTML page, one JSON file."""

from __future__ import annotations

import base64
import importlib.resources
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.table import Table
from scipy import stats

from fl_epe.record import AuditRecord
from fl_epe.scores import scores_from_record
from fl_epe.summary import summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OBSERVED, _NULL, _ANALYTICAL = "#c2410c", "#1d4ed8", "#15803d"

ROWS = (
    ("final", "final model", "displacement"),
    ("all", "every round", "matched filter"),
    ("final.paper", "final model", "paper's cosine"),
    ("all.paper", "every round", "paper's maximum"),
)
"""Rows of the table: key in the summary, threat model, statistic."""


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
    for name, (caption, draw) in _FIGURES.items():
        image = _render(lambda figure, draw=draw: draw(figure, record, summary))  # type: ignore[misc]
        (directory / f"{name}.png").write_bytes(image)
        pictures.append((caption, base64.b64encode(image).decode()))
    page = _page(record, summary, pictures)
    (directory / "report.html").write_text(page, encoding="utf-8")
    return summary


def pick(summary: dict[str, Any], key: str) -> dict[str, Any] | None:
    """The part of a summary under a dotted key, such as "final.paper"; ``None`` if missing."""
    part: Any = summary
    for name in key.split("."):
        part = part.get(name) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else None


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
    """What `fl_epe.assess.assess_scores` returns, as tables for the terminal."""
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
        lines.append(
            f"{absent} {were} lost and counted as zero: see “Lost updates” in report.html."
        )
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

    source = importlib.resources.files("fl_epe") / "templates" / "report.html.j2"
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


def _render(draw: Callable[[Figure], None]) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained", dpi=130)
    draw(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw_final(figure: Figure, record: AuditRecord, summary: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2)
    for axes, statistic, title in (
        (left, "displacement", "final model, against θ_T − θ_0"),
        (right, "model", "final model, against θ_T (paper)"),
    ):
        _draw_scores(axes, *scores_from_record(record, "final", statistic))
        axes.set(title=title, xlabel="√d · cosine")


def _draw_all(figure: Figure, record: AuditRecord, summary: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2)
    if "epsilon" in summary["all"]:
        _draw_scores(left, *scores_from_record(record, "all", "matched-filter"))
        left.set(title="every round, matched filter", xlabel="score")
    observed, unobserved = scores_from_record(record, "all", "maximum")
    scale = math.sqrt(record.dim)
    _draw_scores(right, observed * scale, unobserved * scale, null=False)
    right.set(title="every round, maximum (paper)", xlabel="√d · largest cosine")


def _draw_scores(
    axes: Axes, observed: NDArray[np.float64], unobserved: NDArray[np.float64], null: bool = True
) -> None:
    together = np.concatenate([observed, unobserved])
    count = int(np.clip(np.sqrt(len(together)), 8, 50))
    bins = np.histogram_bin_edges(together, count).tolist()
    for scores, color, label in (
        (unobserved, _NULL, "canaries that never took part"),
        (observed, _OBSERVED, "canaries that took part"),
    ):
        if len(scores):
            axes.hist(scores, bins, density=True, alpha=0.55, color=color, label=label)
    if null:
        grid = np.linspace(together.min(), together.max(), 400)
        axes.plot(grid, stats.norm.pdf(grid), color="black", lw=1, label="null, N(0, 1)")
    axes.set(ylabel="density", ylim=(0, 1.3 * axes.get_ylim()[1]))
    axes.legend(fontsize=7, frameon=False)


def _draw_rounds(figure: Figure, record: AuditRecord, summary: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2)
    rounds = np.arange(1, record.rounds + 1)
    left.plot(rounds, record.clip_norms, color=_OBSERVED)
    left.set(title="clip norm", xlabel="round", yscale="log")
    for key, label, axis in (("train_loss", "training", None), ("eval_loss", "held out", "eval")):
        if len(values := record.metrics.get(key, np.empty(0))):
            steps = rounds if axis is None else record.metrics["eval_round"]
            right.plot(steps, values, label=f"loss, {label}")
    right.set(title="loss and accuracy", xlabel="round", ylim=(0, None))
    if len(accuracy := record.metrics.get("eval_accuracy", np.empty(0))):
        twin = right.twinx()
        twin.plot(record.metrics["eval_round"], accuracy, color=_ANALYTICAL, ls="--")
        twin.set(ylabel="accuracy, held out (dashed)", ylim=(0, 1))
    if right.has_data():
        right.legend(fontsize=7, frameon=False, loc="center right")


def _draw_epsilons(figure: Figure, record: AuditRecord, summary: dict[str, Any]) -> None:
    axes = figure.subplots()
    parts = [(threat, statistic, pick(summary, key) or {}) for key, threat, statistic in ROWS]
    shown = [row for row in parts if "epsilon" in row[2]]
    floor = 1e-2
    for y, (_, _, part) in enumerate(shown):
        middle, low, high = (
            max(floor, math.inf if part[key] is None else part[key])
            for key in ("epsilon", "low", "high")
        )
        if math.isfinite(high):
            axes.plot([low, high], [y, y], color=_OBSERVED, lw=3, alpha=0.5, solid_capstyle="butt")
            axes.plot(middle, y, "o", color=_OBSERVED)
        if part["lower_bound"]:
            axes.plot(max(floor, part["lower_bound"]), y, ">", color=_NULL)
    if summary["analytical"]["epsilon"]:
        axes.axvline(
            summary["analytical"]["epsilon"], color=_ANALYTICAL, ls="--", label="analytical"
        )
    axes.plot([], [], "o-", color=_OBSERVED, label="estimate, interval")
    axes.plot([], [], ">", color=_NULL, label="lower bound")
    axes.set_yticks(range(len(shown)), [f"{threat}\n{statistic}" for threat, statistic, _ in shown])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="ε", title=f"ε at δ = {summary['delta']:.2g}")
    axes.margins(y=0.2)
    axes.legend(fontsize=7, frameon=False)


_FIGURES: dict[str, tuple[str, Callable[[Figure, AuditRecord, dict[str, Any]], None]]] = {
    "epsilon": (
        "Empirical ε with its interval, its lower bound, and the analytical value.",
        _draw_epsilons,
    ),
    "scores_final": (
        "Who sees only the final model: the further the orange canaries stand from the null, "
        "the better they are remembered.",
        _draw_final,
    ),
    "scores_all": (
        "Who sees every round's model: scores of canaries that took part, and of others.",
        _draw_all,
    ),
    "rounds": ("Clip norm, loss and accuracy over the rounds.", _draw_rounds),
}
