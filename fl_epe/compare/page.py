"""Writes what people and programs read of a comparison: a table, a page, pictures, CSV, JSON."""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from fl_epe.accounting import UpperBound, gaussian_epsilon
from fl_epe.auditing import finite, installed_versions
from fl_epe.compare.charts import charts
from fl_epe.compare.plan import Plan
from fl_epe.compare.rows import Epsilon, Row
from fl_epe.files import write_bytes, write_text
from fl_epe.reporting import NOT_MEASURED, number, render_page
from fl_epe.table_file import csv_cell

_COLUMNS = ("final", "largest", "every\nround", "largest", "rounds\nunknown", "analytical")
"""Columns of the table in the terminal, after the schedule."""
_DAGGER = "†"
"""Marks the most exposed canary where it has more than the analytical ε."""


def write_comparison(plan: Plan, rows: Sequence[Row], directory: Path) -> None:
    """Write ``compare.html``, ``compare.json``, ``compare.csv`` and the pictures.

    Args:
        plan: what was compared.
        rows: what came out, from `fl_epe.compare.rows_of`.
        directory: where to write; made if it is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    values = {
        "plan": plan.to_dict(),
        "rows": [_json(dataclasses.asdict(row)) for row in rows],
        "versions": installed_versions(),
    }
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(directory / "compare.json", text + "\n")
    _write_csv(rows, directory / "compare.csv")
    pictures = []
    for name, (caption, image, told) in charts(rows, *reference(plan)).items():
        write_bytes(directory / f"{name}.png", image)
        pictures.append((caption, base64.b64encode(image).decode(), told))
    write_text(directory / "compare.html", _page(plan, rows, pictures))


def reference(plan: Plan) -> tuple[float, float]:
    """The noise multiplier and the participations that the table in the terminal shows."""
    noise, participations = sorted(plan.noise_multipliers), sorted(plan.participations)
    return noise[(len(noise) - 1) // 2], participations[(len(participations) - 1) // 2]


def table_of(plan: Plan, rows: Sequence[Row]) -> Table:
    """The rows at the `reference` as a table for the terminal."""
    noise, participations = reference(plan)
    here = [r for r in rows if (r.noise_multiplier, r.participations) == (noise, participations)]
    delta = next((row.delta for row in here if row.delta is not None), plan.delta)
    at = "" if delta is None else f", δ = {delta:.2g}"
    table = Table(
        title=f"ε by schedule: z = {noise:g}, participations {participations:g}{at}",
        title_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("schedule", overflow="fold", min_width=12)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in here:
        bad = row.above or row.failed is not None
        table.add_row(row.schedule, *_narrow(row), style="red" if bad else "")
    return table


def _narrow(row: Row) -> list[str]:
    """Fewer cells: the analytical ε where rounds are unknown follows that for known ones."""
    if row.skipped is not None:
        return ["impossible", *["–"] * (len(_COLUMNS) - 1)]
    if row.not_measured is not None:
        return [NOT_MEASURED.replace(" ", "\n"), *["–"] * (len(_COLUMNS) - 1)]
    final, every, unknown = row.final, row.every_round, row.unknown_rounds
    bounds = list(dict.fromkeys([_bound(every), _bound(final)]))
    return [
        _plus_minus(final),
        _exposed(final),
        _plus_minus(every),
        _exposed(every),
        _plus_minus(unknown),
        "; ".join(bounds),
    ]


def cells_of(row: Row) -> list[str]:
    """The cells of a row of the page, as text; a "!" marks an ε above its bound."""
    if row.skipped is not None:
        return [f"impossible: {row.skipped}", *[""] * 8]
    if row.not_measured is not None:
        return [str(row.failed), *[""] * 8]
    times = f"{row.mean_participations:.3g} (most {row.most_participations})"
    final, every, unknown = row.final, row.every_round, row.unknown_rounds
    return [
        times,
        _interval(final),
        _exposed(final),
        _bound(final),
        _interval(every),
        _exposed(every),
        _bound(every),
        _interval(unknown),
        _bound(final),
    ]


def failed_of(rows: Sequence[Row]) -> str:
    """What stands at the top, in red, if rows were not measured or diverged; else ""."""
    missing = sum(row.not_measured is not None for row in rows)
    diverged = sum(row.diverged is not None for row in rows)
    counts = {"not measured": missing, "diverged": diverged}
    found = [f"{count} {words}" for words, count in counts.items() if count]
    return f"Of {len(rows)} rows, {' and '.join(found)}: see the notes." if found else ""


def finding_of(plan: Plan, rows: Sequence[Row]) -> str:
    """The result at the `reference` in one sentence; "" where there is nothing to compare."""
    noise, participations = reference(plan)
    exposed = {
        row.schedule: row.final.most_exposed
        for row in rows
        if (row.noise_multiplier, row.participations) == (noise, participations)
        and row.final is not None
        and row.final.most_exposed is not None
    }
    if len(set(exposed.values())) < 2:
        return ""
    least, most = min(exposed, key=exposed.__getitem__), max(exposed, key=exposed.__getitem__)
    return (
        "By the final model alone, the most exposed client gives away least under "
        f"{least} (ε ≈ {number(exposed[least])}) and most under {most} "
        f"(ε ≈ {number(exposed[most])}); ε = 0 is a blind guess at who took part."
    )


def notes_of(plan: Plan, rows: Sequence[Row]) -> list[str]:
    """What a reader must know about the numbers."""
    where = (
        "Nothing was trained: canaries and what hides them are drawn from their exact law in the "
        "asymptotic limit of a large model."
        if plan.task is None
        else f"The task {plan.task} was trained for every measurement."
    )
    if plan.task is None and plan.like is not None:
        where += f" Clip norms, server and real updates are those measured in {plan.like}."
    elif plan.task is None:
        where += " Noise alone hides them; real updates would too, so a real run gives away less."
    lines = [
        where,
        "ε estimates say what the canary attack achieves. They are not bounds.",
        f"“Final” and “every round” are for a client picked at random whose rounds the adversary "
        f"knows, intervals at {plan.confidence:.0%}, pooled over replicates. compare.csv has the "
        "same for an adversary who does not know the rounds (“unaware”) and for the mean client "
        "(“mean”).",
        "“Largest” or “most exposed” is for the simulated canary with the largest expected score.",
        *_most_of_clients_notes(plan, rows),
        "“Rounds unknown” is for a canary whose rounds are drawn by the schedule, many or few. "
        "“–”: its law has no closed form.",
        "Analytical ε: the upper bound by the tightest theorem for the schedule, with rounds known "
        "and, where that helps, unknown; “none known” where there is none. It also holds for an "
        "adversary who sees only the final model. Adjacency: zero-out with rounds known; with "
        "rounds unknown, add-or-remove for coins and replace-one for cohorts of fixed size.",
    ]
    lines = [*_failed_notes(rows), *_exposed_notes(rows), *lines]
    if over := [row for row in rows if row.above]:
        names = ", ".join(_named(row) for row in over[:5])
        lines.insert(
            0,
            f"Warning: {len(over)} of {len(rows)} rows lie above their analytical ε by more than "
            f"chance allows ({names}): a guarantee does not hold, or the noise is not what it "
            "claims to be.",
        )
    if skipped := sum(row.skipped is not None for row in rows):
        lines.append(f"{skipped} of {len(rows)} combinations are impossible; see compare.csv.")
    return lines


def _most_of_clients_notes(plan: Plan, rows: Sequence[Row]) -> list[str]:
    """What no client exceeds, in the row where that is most."""
    known = [
        (row, value)
        for row in rows
        for value in (row.every_round,)
        if value is not None and value.most_of_clients is not None
    ]
    if not known:
        return []
    row, value = max(known, key=lambda pair: pair[1].most_of_clients or 0.0)
    final = None if row.final is None else row.final.most_of_clients
    by_final = "" if final is None else f", and {number(final)} by the final model"
    return [
        f"With {plan.confidence:.0%} confidence, none of {value.clients:,} clients has an ε above "
        f"{number(value.most_of_clients)} by every round's model{by_final}, in the row where that "
        f"is most ({_named(row)}); compare.csv has it for every row (“most_of_clients”)."
    ]


def _failed_notes(rows: Sequence[Row]) -> list[str]:
    """Rows without an ε, or of a model that diverged; the first five by name."""
    lines = [f"{_named(row)}: {row.failed}." for row in rows if row.failed is not None]
    if (more := len(lines) - 5) > 0:
        lines[5:] = [f"… and {more} more; see compare.csv."]
    return lines


def _exposed_notes(rows: Sequence[Row]) -> list[str]:
    """Why the most exposed canary may have more than the analytical ε, with one row's numbers."""
    row = next((row for row in rows if row.exposed_above), None)
    if row is None or row.delta is None or row.most_participations is None:
        return []
    most = row.most_participations
    own = gaussian_epsilon(row.noise_multiplier, row.delta, most)
    return [
        f"{_DAGGER} lies above the analytical ε, and violates nothing: the analytical ε is for a "
        "client whose participations are still to be drawn, and its δ is a mean over how often it "
        "may take part. The most exposed canary is the one that chance picked most often. In the "
        f"first such row, {_named(row)}, some canary took part {most} times where "
        f"{row.participations:g} were expected; the analytical ε of {most} participations is "
        f"{number(own)}. Cap the participations to bound the most exposed client, too."
    ]


def _named(row: Row) -> str:
    return f"{row.schedule} at z = {row.noise_multiplier:g}, participations {row.participations:g}"


def _interval(value: Epsilon | None) -> str:
    if value is None:
        return "–"
    mark = " !" if value.above else ""
    return f"{number(value.epsilon)} ({number(value.low)} – {number(value.high)}){mark}"


def _plus_minus(value: Epsilon | None) -> str:
    if value is None:
        return "–"
    half = (value.high - value.low) / 2
    digits = 0 if value.epsilon >= 100 else 1 if value.epsilon >= 10 else 2
    mark = " !" if value.above else ""
    return f"{value.epsilon:,.{digits}f}±{half:.{max(digits, 1)}f}{mark}"


def _exposed(value: Epsilon | None) -> str:
    known = value is not None and value.most_exposed is not None
    if not known or value is None:
        return "–"
    return number(value.most_exposed) + (f" {_DAGGER}" if value.exposed_above else "")


def _bound(value: Epsilon | None) -> str:
    if value is None or value.analytical is None:
        return "none known"
    return number(finite(value.analytical.epsilon))


def _json(value: Any) -> Any:
    """Infinite numbers become ``None``."""
    if isinstance(value, dict):
        return {key: _json(part) for key, part in value.items()}
    return finite(value) if isinstance(value, float) else value


def _write_csv(rows: Sequence[Row], path: Path) -> None:
    flat = [_flat(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: csv_cell(v) for k, v in row.items()} for row in flat)
    write_text(path, file.getvalue())


def _flat(row: Row) -> dict[str, Any]:
    """A row with one value a column; an unknown one is empty, infinite ones read "inf"."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if not isinstance(value, Epsilon):
            if field.name not in ("final", "every_round", "unknown_rounds"):
                out[field.name] = value
            continue
        for part in dataclasses.fields(value):
            inner = getattr(value, part.name)
            name = f"{field.name}_{part.name}"
            if isinstance(inner, UpperBound):
                out |= {name: inner.epsilon, f"{name}_assumption": inner.assumption}
            else:
                out[name] = inner
    return out


def _page(plan: Plan, rows: Sequence[Row], pictures: list[tuple[str, str, str]]) -> str:
    noise, participations = reference(plan)
    delta = next((row.delta for row in rows if row.delta is not None), plan.delta)
    return render_page(
        "compare.html.j2",
        plan=plan,
        finding=finding_of(plan, rows),
        failed=failed_of(rows),
        noise=noise,
        participations=participations,
        delta=delta,
        rows=[(row, cells_of(row)) for row in rows],
        notes=notes_of(plan, rows),
        pictures=pictures,
        settings={k: v for k, v in plan.to_dict().items() if v not in (None, {}, 1.0)},
        versions=installed_versions(),
    )
