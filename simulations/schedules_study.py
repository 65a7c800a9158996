"""Writes the study `docs/schedules.md` and its pictures: what a comparison of schedules shows.

    python simulations/schedules_study.py    # a minute on two cores

Everything is in the limit, through the same functions as `fl-epe compare`; the table about real
training is made by `simulations/limit_vs_digits.py`. Every sentence of the study that states a
number is asserted here first, so that the study cannot say what the numbers do not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fl_epe.asymptotics import limit_record
from fl_epe.auditing import footprints
from fl_epe.compare import DEFAULT_SCHEDULES, Epsilon, Plan, Row, carry_out, plain_ticks, rows_of
from fl_epe.mechanism import ServerSGD, sgd_weights
from fl_epe.schedules import ShuffledEpochs

Z, R, T = 0.5, 4.0, 512
CLASSES = {"kind": "device-classes", "rates": [8, 1], "shares": [0.1, 0.9]}
CAPS = (1, 2, 4, 8, 16)
NOISES = (0.25, 0.5, 1.0, 2.0, 4.0)
DECAYS = (1.0, 0.995, 0.99, 0.98)


def measure(workers: int, **settings: Any) -> list[Row]:
    plan = Plan(**{"rounds": T, "num_canaries": 2000, **settings})
    with tempfile.TemporaryDirectory() as directory:
        return rows_of(plan, carry_out(plan, Path(directory), workers=workers))


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines))


def known(value: Epsilon | None) -> Epsilon:
    assert value is not None
    return value


def interval(value: Epsilon | None) -> str:
    return "–" if value is None else f"{value.epsilon:.2f} ({value.low:.2f} – {value.high:.2f})"


def exposed(value: Epsilon | None) -> float:
    most = known(value).most_exposed
    assert most is not None
    return most


def bound(value: Epsilon | None) -> float:
    analytical = known(value).analytical
    assert analytical is not None
    return analytical.epsilon


def by_schedule(workers: int) -> tuple[dict[str, str], list[Row]]:
    """Sections 1 and 2: the mean client and the most exposed one."""
    rows = measure(
        workers,
        schedules=DEFAULT_SCHEDULES,
        noise_multipliers=(Z,),
        participations=(R,),
        replicates=3,
    )
    finals = [known(row.final) for row in rows]
    # The same mean for all, as far as chance allows for eleven intervals.
    middle = float(np.median([final.epsilon for final in finals]))
    assert sum(final.low > middle or final.high < middle for final in finals) <= 2
    loudest = max(rows, key=lambda row: exposed(row.final))
    assert loudest.schedule.startswith("device-classes")
    calm = [row for row in rows if row.most_participations == R]
    assert {row.schedule for row in calm} == {"epochs", "cyclic", "balls-in-bins"}
    for row in calm:
        assert abs(exposed(row.every_round) / bound(row.every_round) - 1) < 1e-6
    lines = [
        [
            f"`{row.schedule}`",
            str(row.most_participations),
            interval(row.final),
            f"{exposed(row.final):.2f}",
            interval(row.every_round),
            f"{exposed(row.every_round):.1f}",
            f"{bound(row.every_round):.1f}",
        ]
        for row in rows
    ]
    header = ["schedule", "most often", "final, mean", "final, most exposed"]
    header += ["every round, mean", "every round, most exposed", "analytical, rounds known"]
    return {
        "schedules": table(header, lines),
        "mean_final": f"{middle:.1f}",
        "calm_final": f"{exposed(calm[0].final):.2f}",
        "loudest_final": f"{exposed(loudest.final):.0f}",
        "loudest_times": f"{exposed(loudest.final) / middle:.0f}",
        "loudest_most": str(loudest.most_participations),
        "delta": f"{rows[0].delta:.2g}",
    }, rows


def unknown_rounds(workers: int) -> tuple[dict[str, str], list[Row]]:
    """Section 3: what secrecy of the rounds is worth."""
    rows = measure(
        workers,
        schedules=("epochs", "balls-in-bins", "poisson", "fixed-size"),
        noise_multipliers=NOISES,
        participations=(R,),
    )
    found = {(row.schedule, row.noise_multiplier): row for row in rows}

    def gain(z: float) -> float:
        row = found["epochs", z]
        return bound(row.every_round) / known(row.unknown_rounds).epsilon

    assert gain(0.25) < 2 < 10 < gain(1.0)
    for z in NOISES:  # Poisson meets its accountant
        row = found["poisson", z]
        assert known(row.unknown_rounds).low <= bound(row.unknown_rounds) * 1.02
    poisson, epochs = (known(found[name, 0.5].unknown_rounds) for name in ("poisson", "epochs"))
    assert poisson.low > epochs.high
    lines = [
        [f"{z:g}"]
        + [f"{bound(found['epochs', z].every_round):.2f}"]
        + [interval(found[name, z].unknown_rounds) for name in ("epochs", "balls-in-bins")]
        + [
            interval(found["poisson", z].unknown_rounds),
            f"{bound(found['poisson', z].unknown_rounds):.2f}",
        ]
        + [
            interval(found["fixed-size", z].unknown_rounds),
            f"{bound(found['fixed-size', z].unknown_rounds):.2f}",
        ]
        for z in NOISES
    ]
    header = ["z", "rounds known, 4 times", "epochs", "balls-in-bins", "poisson"]
    header += ["poisson, accountant", "fixed-size", "fixed-size, best theorem"]
    return {
        "unknown_rounds": table(header, lines),
        "gain_low": f"{gain(0.25):.1f}",
        "gain_one": f"{gain(1.0):.0f}",
    }, rows


def caps(workers: int) -> tuple[dict[str, str], list[Row]]:
    """Section 4: what a cap on participations buys."""
    plain = "device-classes:" + json.dumps({k: v for k, v in CLASSES.items() if k != "kind"})
    capped = ["capped:" + json.dumps({"of": CLASSES, "per_run": cap}) for cap in CAPS]
    rows = measure(workers, schedules=(plain, *capped), noise_multipliers=(Z,), participations=(R,))
    takes_part = [row.participations or 0.0 for row in rows]
    names = ["none", *map(str, CAPS)]
    lines = [
        [
            name,
            f"{1 - count / takes_part[0]:.0%}" if name != "none" else "0%",
            interval(row.final),
            f"{exposed(row.final):.2f}",
            f"{exposed(row.every_round):.1f}",
            f"{bound(row.every_round):.1f}",
        ]
        for name, row, count in zip(names, rows, takes_part, strict=True)
    ]
    header = ["cap", "participations refused", "final, mean", "final, most exposed"]
    header += ["every round, most exposed", "analytical, rounds known"]
    eight = names.index("8")
    assert exposed(rows[eight].final) < exposed(rows[0].final) / 3
    return {
        "caps": table(header, lines),
        "cap8_refused": lines[eight][1],
        "cap8_times": f"{exposed(rows[0].final) / exposed(rows[eight].final):.0f}",
    }, rows


def late(_: int) -> tuple[dict[str, str], list[Row]]:
    """Section 5: whether it matters when a client takes part."""
    lines = []
    for decay in DECAYS:
        weights = sgd_weights(np.asarray(decay ** np.arange(T), np.float64), 0.9)
        record = limit_record(
            ShuffledEpochs(T, 1),
            Z,
            1e-5,
            num_canaries=T,
            unobserved=0,
            server=ServerSGD(1.0, 0.9),
            decay=decay ** np.arange(T),
        )
        expected = footprints(record, "final")
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
    header = ["factor a round", "largest footprint", "mean footprint", "first half's share"]
    return {"late": table(header, lines), "late_most": lines[-1][1]}, []


def draw_schedules(figure: Figure, rows: list[Row]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, name in ((left, "final"), (right, "every_round")):
        for y, row in enumerate(rows):
            value = known(getattr(row, name))
            axes.plot([value.low, value.high], [y, y], color="#c2410c", lw=3, alpha=0.4)
            axes.plot(value.epsilon, y, "o", color="#c2410c", ms=4, label="mean" if not y else None)
            axes.plot(
                exposed(value),
                y,
                "D",
                mfc="none",
                color="#7c2d12",
                ms=5,
                label="most exposed of 6,000" if not y else None,
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
    left.set_yticks(range(len(rows)), [row.schedule.split(":")[0] for row in rows])
    left.invert_yaxis()
    left.set_title("sees the final model")
    right.set_title("sees every round")
    right.legend(fontsize=7)


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
        axes.errorbar(
            xs,
            [y.epsilon for y in ys],
            [[y.epsilon - y.low for y in ys], [y.high - y.epsilon for y in ys]],
            color=color,
            marker="o",
            ms=4,
            capsize=2,
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
    axes.set(xscale="log", yscale="log", xlabel="noise multiplier z", ylabel="ε, every round")
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
            label=f"{label}, most exposed",
        )
        axes.plot([v.epsilon for v in values], "o-", color=color, ms=4, label=f"{label}, mean")
    axes.set_xticks(range(len(order)), [names[i] for i in order])
    axes.set(yscale="log", xlabel="cap on participations in a run", ylabel="ε")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


SECTIONS: tuple[
    tuple[
        Callable[[int], tuple[dict[str, str], list[Row]]],
        Callable[[Figure, list[Row]], None] | None,
        str,
    ],
    ...,
] = (
    (by_schedule, draw_schedules, "schedules"),
    (unknown_rounds, draw_unknown_rounds, "unknown_rounds"),
    (caps, draw_caps, "caps"),
    (late, None, ""),
)

STUDY = Path(__file__).with_name("schedules_study.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    values: dict[str, str] = {}
    for section, draw, name in SECTIONS:
        found, rows = section(options.workers)
        values |= found
        if draw is not None:
            figure = Figure(figsize=(8.5, 4.2), layout="constrained", dpi=120)
            draw(figure, rows)
            figure.savefig(options.output / f"{name}.png", metadata={"Software": None})
        print(f"{section.__name__}: done", flush=True)
    text = STUDY.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace("{{ " + name + " }}", value)
    assert "{{" not in text, text[text.index("{{") :][:40]
    (options.output / "schedules.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
