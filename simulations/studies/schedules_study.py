"""Fills the tables of the study `docs/schedules.md`, draws its pictures and checks its sentences.

    python simulations/studies/schedules_study.py    # two minutes on one core

The text of the study stands in `docs/schedules.md` alone. This script measures, replaces the tables
there (it finds each by its header) and makes sure that every sentence with a measured number says
what was measured; otherwise it stops and names the words that belong into the text.

Everything is computed in the limit (`average_clients.py`). The comparison with
real training is made by `simulations/studies/limit_vs_digits.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fl_epe.auditing import seen_by
from fl_epe.limit import limit_record
from fl_epe.limit.plan import DEFAULT_SCHEDULES
from fl_epe.mechanism import sgd_weights
from fl_epe.reporting import plain_ticks
from fl_epe.schedules import ShuffledEpochs
from simulations.studies.average_clients import Epsilon, Row, rows_of

Z, R, T = 0.5, 4.0, 512
CLASSES = 'device-classes:{"rates": [8, 1], "shares": [0.1, 0.9]}'
CAPS = (1, 2, 4, 8, 16)
NOISES = (0.25, 0.5, 1.0, 2.0, 4.0)
DECAYS = (1.0, 0.995, 0.99, 0.98)
PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"


@dataclasses.dataclass(frozen=True)
class Section:
    """What was measured for a section of the study.

    Attributes:
        table: as it stands in the text.
        phrases: words with measured numbers that stand in the text.
        rows: of the comparison, for the picture.
    """

    table: str
    phrases: tuple[str, ...]
    rows: list[Row]


def measure(specs: Sequence[str], noises: Sequence[float] = (Z,)) -> list[Row]:
    return list(rows_of(specs, noises, R, T))


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in (header, rule, *lines)
    )


def known(value: Epsilon | None) -> Epsilon:
    assert value is not None
    return value


def interval(value: Epsilon | None) -> str:
    return "–" if value is None else f"{value.epsilon:.2f}"


def unaware(value: Epsilon | None) -> float:
    epsilon = known(value).unaware
    assert epsilon is not None
    return epsilon


def mean(value: Epsilon | None) -> float:
    epsilon = known(value).mean
    assert epsilon is not None
    return epsilon


def exposed(value: Epsilon | None) -> float:
    epsilon = known(value).worst_case
    assert epsilon is not None
    return epsilon


def bound(value: Epsilon | None) -> float:
    return known(value).analytical.epsilon


def by_schedule() -> Section:
    """Sections 1 and 2: an average-case client, the mean one and the worst-case one."""
    rows = measure(DEFAULT_SCHEDULES)
    finals = [known(row.final) for row in rows]
    # The same mean for all, but for the cap, which refuses a few participations.
    middle = float(np.median([mean(final) for final in finals]))
    assert all(abs(mean(final) / middle - 1) < 0.05 for final in finals)
    loudest = max(rows, key=lambda row: exposed(row.final))
    assert loudest.schedule.startswith("device-classes")
    calm = [row for row in rows if row.most_participations == R]
    assert {row.schedule for row in calm} == {
        "epochs",
        "cyclic",
        "balls-in-bins",
        "k-out-of-t",
    }
    for row in calm:
        assert abs(exposed(row.every_round) / bound(row.every_round) - 1) < 1e-6
    lines = [
        [
            f"`{row.schedule}`",
            str(row.most_participations),
            interval(row.final),
            f"{unaware(row.final):.2f}",
            f"{mean(row.final):.2f}",
            f"{exposed(row.final):.2f}",
            interval(row.every_round),
            f"{mean(row.every_round):.2f}",
            f"{exposed(row.every_round):.1f}",
            f"{bound(row.every_round):.1f}",
        ]
        for row in rows
    ]
    header = [
        "schedule",
        "most often",
        "final, average-case client",
        "final, rounds unknown",
    ]
    header += ["final, mean", "final, worst case"]
    header += [
        "every round, average-case client",
        "every round, mean",
        "every round, worst case",
    ]
    header += ["analytical, rounds known"]
    epsilon = exposed(loudest.final)
    poisson = next(row for row in rows if row.schedule == "poisson")
    random = known(loudest.final).epsilon
    assert random > 2 * known(poisson.final).epsilon > 3 * middle
    assert unaware(loudest.final) > 2 * middle
    for row in rows:  # no mean is above the average-case client
        assert unaware(row.final) <= known(row.final).epsilon * (1 + 1e-9)
    phrases = (
        f"All ε are at δ = {rows[0].delta:.2g}.",
        f"the mean client has ε ≈ {middle:.1f} under every one",
        f"has ε = {known(calm[0].final).epsilon:.2f} under epochs,",
        f"{known(poisson.final).epsilon:.2f} under Poisson sampling",
        f"and {random:.1f} with two classes of devices, {random / middle:.0f} times the mean",
        f"does not know the rounds it is {unaware(poisson.final):.2f} and "
        f"{unaware(loudest.final):.1f}.",
        f"the worst-case client (final ε {exposed(calm[0].final):.2f})",
        f"none takes part more than {loudest.most_participations} times.",
        f"a final ε of at most {epsilon:.0f}, {epsilon / middle:.0f} times the mean client's.",
    )
    return Section(table(header, lines), phrases, rows)


def unknown_rounds() -> Section:
    """Section 3: what it is worth that the adversary does not know the rounds."""
    rows = measure(("epochs", "balls-in-bins", "poisson", "fixed-size"), NOISES)
    rows_of = {(row.schedule, row.noise_multiplier): row for row in rows}

    def gain(z: float) -> float:
        row = rows_of["epochs", z]
        return bound(row.every_round) / known(row.unknown_rounds).epsilon

    assert gain(0.25) < 2 < 10 < gain(1.0)
    for z in NOISES:  # Poisson meets its accountant
        row = rows_of["poisson", z]
        assert (
            known(row.unknown_rounds).epsilon
            <= bound(row.unknown_rounds) * 1.02
        )
    poisson, epochs = (
        known(rows_of[name, 0.5].unknown_rounds)
        for name in ("poisson", "epochs")
    )
    assert poisson.epsilon > epochs.epsilon
    lines = [
        [f"{z:g}"]
        + [f"{bound(rows_of['epochs', z].every_round):.2f}"]
        + [
            interval(rows_of[name, z].unknown_rounds)
            for name in ("epochs", "balls-in-bins")
        ]
        + [
            interval(rows_of["poisson", z].unknown_rounds),
            f"{bound(rows_of['poisson', z].unknown_rounds):.2f}",
        ]
        + [
            interval(rows_of["fixed-size", z].unknown_rounds),
            f"{bound(rows_of['fixed-size', z].unknown_rounds):.2f}",
        ]
        for z in NOISES
    ]
    header = [
        "z",
        "rounds known, 4 times",
        "epochs",
        "balls-in-bins",
        "poisson",
    ]
    header += ["poisson, accountant", "fixed-size", "fixed-size, best theorem"]
    phrases = (
        f"at z = 1, ε is {gain(1.0):.0f} times smaller than with known rounds.",
        f"At z = 0.25 it is only {gain(0.25):.1f} times smaller",
    )
    return Section(table(header, lines), phrases, rows)


def caps() -> Section:
    """Section 4: what a cap on participations buys."""
    capped = [
        "capped:" + json.dumps({"of": CLASSES, "per_run": cap}) for cap in CAPS
    ]
    specs = (CLASSES, *capped)
    rows = measure(specs)
    takes_part = [row.mean_participations for row in rows]
    names = ["none", *map(str, CAPS)]
    lines = [
        [
            name,
            f"{1 - count / takes_part[0]:.0%}" if name != "none" else "0%",
            interval(row.final),
            f"{mean(row.final):.2f}",
            f"{exposed(row.final):.2f}",
            f"{exposed(row.every_round):.1f}",
            f"{bound(row.every_round):.1f}",
        ]
        for name, row, count in zip(names, rows, takes_part, strict=True)
    ]
    header = [
        "cap",
        "participations refused",
        "final, average-case client",
        "final, mean",
    ]
    header += ["final, worst case"]
    header += ["every round, worst case", "analytical, rounds known"]
    eight = names.index("8")
    assert exposed(rows[eight].final) < exposed(rows[0].final) / 3
    times = exposed(rows[0].final) / exposed(rows[eight].final)
    less = known(rows[0].final).epsilon / known(rows[eight].final).epsilon
    phrases = (
        f"A cap of eight refuses {lines[eight][1]} of the participations",
        f"divides the final ε of the worst-case client by {times:.0f}",
        f"and that of an average-case client by {less:.1f}",
    )
    return Section(table(header, lines), phrases, rows)


def late() -> Section:
    """Section 5: whether it matters when a client takes part."""
    lines = []
    for decay in DECAYS:
        weights = sgd_weights(
            np.asarray(decay ** np.arange(T), np.float64), 0.9
        )
        record = limit_record(
            ShuffledEpochs(T, 1),
            Z,
            1e-5,
            num_canaries=T,
            unobserved=0,
            momentum=0.9,
            learning_rates=decay ** np.arange(T),
        )
        expected = seen_by(record).expected_scores.observed
        loudest = expected.max() * Z * np.sqrt(T)
        first = weights[: T // 2] @ weights[: T // 2] / (weights @ weights)
        lines.append(
            [
                f"{decay:g}",
                f"{loudest:.2f}",
                f"{expected.mean() * Z * np.sqrt(T):.2f}",
                f"{first:.0%}",
            ]
        )
    assert float(lines[0][1]) < 1.02
    header = [
        "factor a round",
        "largest expected score",
        "mean expected score",
        "first half's share",
    ]
    times = lines[-1][1]
    phrase = f"With a factor of 0.98 a round, a client of the first rounds leaves {times} times"
    return Section(table(header, lines), (phrase,), [])


def draw_schedules(figure: Figure, rows: list[Row]) -> None:
    left_axes, right_axes = figure.subplots(1, 2, sharey=True)
    for axes, name in ((left_axes, "final"), (right_axes, "every_round")):
        for y, row in enumerate(rows):
            value = known(getattr(row, name))
            axes.plot(
                value.epsilon,
                y,
                "o",
                color="#c2410c",
                ms=4,
                label="average-case client" if not y else None,
            )
            axes.plot(
                exposed(value),
                y,
                "D",
                mfc="none",
                color="#7c2d12",
                ms=5,
                label="worst case of 10,000" if not y else None,
            )
            if name == "every_round":
                axes.plot(
                    bound(value),
                    y,
                    "|",
                    color="#15803d",
                    ms=12,
                    mew=2,
                    label="analytical, rounds known" if not y else None,
                )
        axes.set(xscale="log", xlabel="ε")
        axes.grid(axis="x", alpha=0.3)
        plain_ticks(axes)
    left_axes.set_yticks(
        range(len(rows)), [row.schedule.split(":")[0] for row in rows]
    )
    left_axes.invert_yaxis()
    left_axes.set_title("sees the final model")
    right_axes.set_title("sees every round")
    right_axes.legend(fontsize=7)


def draw_unknown_rounds(figure: Figure, rows: list[Row]) -> None:
    axes = figure.subplots()
    for name, color in zip(
        ("epochs", "balls-in-bins", "poisson", "fixed-size"),
        ("#c2410c", "#ca8a04", "#1d4ed8", "#7e22ce"),
        strict=True,
    ):
        line = [row for row in rows if row.schedule == name]
        xs = [row.noise_multiplier for row in line]
        ys = [known(row.unknown_rounds) for row in line]
        axes.plot(
            xs,
            [y.epsilon for y in ys],
            color=color,
            marker="o",
            ms=4,
            label=f"{name}, rounds unknown",
        )
        if name == "epochs":
            axes.plot(
                xs,
                [bound(row.every_round) for row in line],
                color="black",
                label="four times, rounds known",
            )
        if name in ("poisson", "fixed-size"):
            axes.plot(
                xs,
                [bound(row.unknown_rounds) for row in line],
                ls="--",
                color=color,
                label=f"{name}, best theorem",
            )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="noise multiplier z",
        ylabel="ε, every round",
    )
    axes.set_xticks(NOISES, [f"{z:g}" for z in NOISES])
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def draw_caps(figure: Figure, rows: list[Row]) -> None:
    axes = figure.subplots()
    names = ["none", *map(str, CAPS)]
    order = [*range(1, len(rows)), 0]
    for part, color, label in (
        ("final", "#c2410c", "final model"),
        ("every_round", "#1d4ed8", "every round"),
    ):
        values = [known(getattr(rows[i], part)) for i in order]
        axes.plot(
            [exposed(v) for v in values],
            "D-",
            color=color,
            mfc="none",
            label=f"{label}, worst case",
        )
        axes.plot(
            [v.epsilon for v in values],
            "o-",
            color=color,
            ms=4,
            label=f"{label}, average-case client",
        )
    axes.set_xticks(range(len(order)), [names[i] for i in order])
    axes.set(yscale="log", xlabel="cap on participations in a run", ylabel="ε")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def draw_trained(figure: Figure, text: str) -> None:
    """ε of trained runs with its interval, beside theory, from the table in the text."""
    _, _, table = text.partition("| trained |")
    lines = [
        line.strip("| ").split(" | ")
        for line in table.split("\n\n")[0].splitlines()[2:]
    ]
    axes = figure.subplots()
    for column, color, label, shift in (
        (3, "#c2410c", "final model", 0.1),
        (4, "#1d4ed8", "every round", -0.1),
    ):
        values = np.array(
            [re.findall(r"\d+\.?\d*", line[column]) for line in lines], float
        )
        places = np.arange(len(lines)) + shift
        axes.plot(
            values[:, 0],
            places,
            "o",
            color=color,
            label=f"{label}, measured with 95%",
        )
        axes.hlines(places, values[:, 1], values[:, 2], color=color)
    theory = [float(line[5]) for line in lines]
    axes.plot(
        theory, range(len(lines)), "k|", ms=16, label="theory, every round"
    )
    names = [line[0].replace("`", "") for line in lines]
    axes.set_yticks(range(len(lines)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="ε of the median client", xlim=(0, None))
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=6, loc=(0.38, 0.4))


SECTIONS: tuple[
    tuple[
        Callable[[], Section], Callable[[Figure, list[Row]], None] | None, str
    ],
    ...,
] = (
    (by_schedule, draw_schedules, "schedules"),
    (unknown_rounds, draw_unknown_rounds, "unknown_rounds"),
    (caps, draw_caps, "caps"),
    (late, None, ""),
)


def with_table(text: str, table: str) -> str:
    """The text with this table in place of the one that has the same header.

    Raises:
        ValueError: if no table of the text has this header, or several.
    """
    header = table.splitlines()[0]
    place = re.compile(re.escape(header) + r"(?:\n\|.*)+")
    filled, replaced = place.subn(lambda _: table, text)
    if replaced != 1:
        raise ValueError(
            f"Expected one table with this header, found {replaced}: {header}"
        )
    return filled


def missing(text: str, phrases: Sequence[str]) -> list[str]:
    """Those phrases that the text does not have, wherever its lines break."""
    words = " ".join(text.split())
    return [phrase for phrase in phrases if phrase not in words]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output",
        type=Path,
        default=PAGE.parent,
        help="of page and pictures (default: docs)",
    )
    options = parser.parse_args()
    text, absent = PAGE.read_text(encoding="utf-8"), []
    figure = Figure(figsize=(8.5, 3.2), layout="constrained", dpi=120)
    draw_trained(figure, text)
    figure.savefig(options.output / "trained.png", metadata={"Software": None})
    for measured, draw, name in SECTIONS:
        section = measured()
        text = with_table(text, section.table)
        absent += missing(text, section.phrases)
        if draw is not None:
            figure = Figure(figsize=(8.5, 4.2), layout="constrained", dpi=120)
            draw(figure, section.rows)
            figure.savefig(
                options.output / f"{name}.png", metadata={"Software": None}
            )
        print(f"{measured.__name__}: done", flush=True)
    (options.output / PAGE.name).write_text(text, encoding="utf-8")
    if absent:
        raise SystemExit("\n".join([f"Write into {PAGE}, by hand:", *absent]))


if __name__ == "__main__":
    main()
