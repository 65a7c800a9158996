"""The measured null of a run beside the exact one: a table, a sentence, a picture and warnings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy

from fl_epe.auditing import MeasuredNull, Misfit, misfits
from fl_epe.reporting.charts import ANALYTICAL, BOUND, NULL, OBSERVED, Chart, axes, line, points

NAMES = {
    "displacement": "final model displacement",
    "model": "final model paper's cosine",
    "matched-filter": "every round matched filter",
    "maximum": "every round paper's maximum",
}
"""Statistics of a measured null, in the order of the panel, as the report's table has them."""

ABOUT_MAXIMUM = (
    "The maximum has no exact null. Its numbers are in the units in which the largest of as many "
    "independent rounds would be N(0, 1), but rounds that share the server's momentum are not "
    "independent. Compare it with unobserved canaries, as its row in this report does."
)
"""What the panel says of the statistic that cannot fit."""

ABOUT_OVERLAP = (
    "Canaries that took part are a visible part of what was released. Rotated ones hardly overlap "
    "with each other, so that those that took no part may spread less than 1, as the brackets "
    "behind the deviation say, and leave fewer scores in the tails. In ε, but for "
    "the paper's rows, the other canaries are taken out, so that nothing is wrong with it."
)
"""What the panel says of measured nulls that are expected to be narrower."""

_SHOWN = (1.0, 2.0, 3.0, 4.0, 4.5)
_LOOKS = {
    "displacement": (OBSERVED, "circle"),
    "matched-filter": (BOUND, "x"),
    "maximum": (ANALYTICAL, "triangle-right"),
}
_VISIBLE = 0.99


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of the panel's table.

    Attributes:
        text: what was measured.
        expected: of it, in brackets, where it is not in the row's heading.
        fits: whether they agree.
    """

    text: str
    expected: str = ""
    fits: bool = True


def null_dict(null: MeasuredNull, least: Mapping[str, float]) -> dict[str, Any]:
    """As JSON values, under "null"; empty if none was measured."""
    if not null.statistics or null.means is None or null.deviations is None or null.counts is None:
        return {}
    numbers = range(len(null.statistics))
    tails = [null.tails(number) for number in numbers]
    return {
        "null": {
            "statistics": list(null.statistics),
            "means": null.means.tolist(),
            "deviations": null.deviations.tolist(),
            "least_deviations": dict(least),
            "edges": null.edges.tolist(),
            "counts": null.counts.tolist(),
            "tails": null.limits.tolist(),
            "below": [low.tolist() for low, _ in tails],
            "above": [high.tolist() for _, high in tails],
            "expected": [null.expected_counts(number).tolist() for number in numbers],
            "misfits": [dataclasses.asdict(misfit) for misfit in misfits(null, least)],
        }
    }


def calibration_line(null: MeasuredNull, least: Mapping[str, float]) -> str | None:
    """What the measured null says of every ε, in a sentence; ``None`` if none was measured."""
    if not null.statistics:
        return None
    sizes = sorted({null.size(number) for number in range(len(null.statistics))})
    counted = " to ".join(f"{size:,}" for size in dict.fromkeys((sizes[0], sizes[-1])))
    begin = (
        f"The null on which every ε rests was measured on {counted} canaries that took no part: "
    )
    wrong = dict.fromkeys(NAMES[misfit.statistic] for misfit in misfits(null, least))
    if wrong:
        named = " and ".join(f"“{name}”" for name in wrong)
        return f"{begin}it is not the exact one for {named}, see the warnings."
    told = [
        f"“{NAMES[name]}” has the mean {_signed(mean, 3)} and the deviation {width:.3f}"
        for name, mean, width in _moments(null)
        if name in ("displacement", "matched-filter")
    ]
    if not told:
        return f"{begin}this run has no statistic whose exact null is known."
    but = ", but for the overlap of canaries" if _narrow(least) else ""
    return f"{begin}it is the exact one{but}, as far as so many can tell ({', '.join(told)})."


def calibration_notes(null: MeasuredNull, least: Mapping[str, float]) -> list[str]:
    """What has to be known to read the panel."""
    lines = [ABOUT_MAXIMUM] if "maximum" in null.statistics else []
    return [ABOUT_OVERLAP, *lines] if _narrow(least) else lines


def _narrow(least: Mapping[str, float]) -> dict[str, float]:
    """Statistics whose measured null may be visibly narrower than the exact one."""
    return {name: width for name, width in least.items() if width < _VISIBLE}


def calibration_table(
    null: MeasuredNull, least: Mapping[str, float]
) -> tuple[list[str], list[tuple[str, list[Cell]]]]:
    """The panel's table: names of the statistics, and rows of a heading and a cell for each."""
    columns = list(_moments(null))
    wrong = {(misfit.statistic, misfit.what) for misfit in misfits(null, least)}
    narrow = {name: f"({width:.3f} to 1)" for name, width in _narrow(least).items()}
    places = {name: place for place, name in enumerate(null.statistics)}
    rows = [
        ("canaries", [Cell(f"{null.size(places[name]):,}") for name, _, _ in columns]),
        (
            "mean (0 expected)",
            [Cell(_signed(mean, 4), fits=(name, "mean") not in wrong) for name, mean, _ in columns],
        ),
        (
            "deviation (1 expected)",
            [
                Cell(f"{width:.4f}", narrow.get(name, ""), (name, "deviation") not in wrong)
                for name, _, width in columns
            ],
        ),
    ]
    for limit in _SHOWN:
        cells = []
        for name, _, _ in columns:
            low, high, expected = _tail(null, places[name], limit)
            usual = f"({_count(expected)} ± {_count(np.sqrt(expected))})"
            fits = (name, f"tail beyond {limit:g}") not in wrong
            cells.append(Cell(f"{low:,} and {high:,}", usual, fits))
        rows.append((f"below −{limit:g}, above {limit:g}", cells))
    return [NAMES[name] for name, _, _ in columns], rows


def calibration_warnings(
    null: MeasuredNull, least: Mapping[str, float], *, divided: bool = False
) -> list[str]:
    """A sentence for each misfit, with what it means for ε and what to do.

    Args:
        null: of a run.
        least: deviations that are right where canaries overlap, by the statistic's name.
        divided: whether matched-filter scores were divided by the width of the unobserved ones.
    """
    lines, far = [], dict[str, list[Misfit]]()
    for misfit in misfits(null, least):
        corrected = divided and misfit.statistic == "matched-filter"
        size = null.size(null.statistics.index(misfit.statistic))
        begin = f"Warning: scores of “{NAMES[misfit.statistic]}” of {size:,} canaries that took no "
        if misfit.what == "mean":
            lines.append(begin + _about_mean(misfit))
        elif misfit.what == "deviation" and misfit.measured > 1:
            lines.append(begin + _about_wide(misfit, corrected=corrected))
        elif misfit.what == "deviation":
            lines.append(begin + _about_narrow(misfit))
        else:
            far.setdefault(begin, []).append(misfit)
    return lines + [begin + _about_tails(found) for begin, found in far.items()]


_INSTEAD = "Compare with unobserved canaries instead (epsilon_from_scores)"


def _about_mean(misfit: Misfit) -> str:
    size = "large" if misfit.measured > 0 else "small"
    return (
        f"part have the mean {_signed(misfit.measured, 3)}, where 0 is expected. Those of canaries "
        f"that took part are shifted as well, so that ε, its interval and its bounds are too "
        f"{size}. {_INSTEAD}, or run again with --canary-kind sphere."
    )


def _about_wide(misfit: Misfit, *, corrected: bool) -> str:
    begin = f"part spread {misfit.measured:.3g} times as wide as the exact null says. "
    if corrected:
        return (
            f"{begin}ε and its interval allow for that, as all scores were divided by the width of "
            "the unobserved ones."
        )
    return (
        f"{begin}ε is too large, its interval too narrow, and bounds that use the exact null do "
        'not hold. Use the fitted variance (epsilon_from_record with variance="fitted"), compare '
        "with unobserved canaries (epsilon_from_scores), or run again with --canary-kind sphere."
    )


def _about_narrow(misfit: Misfit) -> str:
    return (
        f"part spread only {misfit.measured:.3g} times as wide as the exact null says, where "
        f"{misfit.expected:.3g} is expected. ε is too small, and its interval too wide; bounds "
        'still hold. Use the fitted variance (epsilon_from_record with variance="fitted"), or run '
        "again with --canary-kind sphere."
    )


def _about_tails(found: list[Misfit]) -> str:
    counted = ", ".join(
        f"{misfit.measured:,.0f} {misfit.what.removeprefix('tail ')} deviations "
        f"({_count(misfit.expected)} ± {_count(np.sqrt(misfit.expected))} expected)"
        for misfit in found
    )
    return (
        f"part have tails that are too heavy: {counted}. Bounds with the exact null count on fewer "
        "false alarms and may be too large; ε, which rests on mean and width, hardly changes. "
        f"{_INSTEAD}, or run again with --canary-kind sphere."
    )


def calibration_chart(null: MeasuredNull) -> Chart | None:
    """Scores in each cell, on a logarithmic scale, beside those of N(0, 1)."""
    if null.counts is None or not null.statistics:
        return None
    width = float(null.edges[1] - null.edges[0])
    middles = (null.edges[:-1] + null.edges[1:]) / 2
    most = max(null.size(place) for place in range(len(null.statistics)))
    expected = most * width * scipy.stats.norm.pdf(middles)
    traces, rows, told = [line(middles, expected, "N(0, 1)", NULL)], [], []
    for name, mean, deviation in _moments(null):
        if name not in _LOOKS:
            continue
        place = null.statistics.index(name)
        counts, (color, symbol) = null.counts[place][1:-1], _LOOKS[name]
        seen = counts > 0
        x, y = middles[seen], counts[seen]
        traces.append(points(x, y, NAMES[name], color, symbol=symbol, size=6))
        low, high, tail = _tail(null, place, 4.0)
        told.append(
            f"{NAMES[name]}: mean {_signed(mean, 3)}, deviation {deviation:.3f}, {low:,} scores "
            f"below −4 and {high:,} above 4 where {_count(tail)} are expected in each"
        )
        rows += [
            (NAMES[name], _signed(score, 2), f"{count:,}")
            for score, count in zip(x, y, strict=True)
        ]
    top = float(np.log10(60 * expected.max()))
    return Chart(
        name="calibration",
        title="Scores of canaries that took no part",
        caption="Points on the line are as the exact null has them.",
        alternative=f"Scores of canaries that took no part, beside the normal density. "
        f"{'; '.join(told)}.",
        traces=tuple(traces),
        layout=axes(
            "score",
            f"canaries in {width:g} of a deviation",
            y_axis={"type": "log", "range": [-0.3, top]},
        ),
        headings=("statistic", "score", "canaries"),
        rows=tuple(rows),
    )


def _moments(null: MeasuredNull) -> Iterator[tuple[str, float, float]]:
    """Name, mean and deviation of each statistic, in the order of the panel."""
    for name in NAMES:
        if name in null.statistics and null.means is not None and null.deviations is not None:
            place = null.statistics.index(name)
            yield name, float(null.means[place]), float(null.deviations[place])


def _tail(null: MeasuredNull, place: int, limit: float) -> tuple[int, int, float]:
    """Scores below and above the limit, and how many are expected in each."""
    where = int(np.searchsorted(null.limits, limit))
    low, high = null.tails(place)
    return int(low[where]), int(high[where]), float(null.expected_counts(place)[where])


def _signed(value: float, digits: int) -> str:
    """With a minus that is as wide as a plus, and none before 0."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def _count(value: float) -> str:
    """A count, with a digit after the point where it is small."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
