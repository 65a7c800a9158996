"""Correlated noise in real training: is ε that of theory, and what does it do to accuracy?

    python simulations/studies/correlated_digits.py --keep DIR    # 45 minutes; goes on from DIR

The digits of 120 clients, 15 of them in a round, fixed clip norm, server momentum 0.9, one core.

The first table has 80 canaries in 32 rounds, four times each, noise of 8 bands with columns of
length 1, server learning rate 0.25. Each run's mean score is divided by that of theory: "noise" for
‖C·1_S‖/z alone; "unlike" where real updates are more to hide in, in each round others, as the limit
has it for every round; "real" where they are those of this run (the script notes them) with all
that they have in common. ε is of a canary picked at random, beside that of the last theory. ± are
standard errors.

The second table has 16 canaries and a participation in every eight rounds, cyclic, with z such that
the analytical ε is the same in all rows but the last, where independent noise hides as little in
the final model as 8 bands do. "bound" is the analytical ε, "server" its learning rate and momentum.

Measured: the other tables of docs/notes/correlated-noise.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fl_epe import AuditRecord, epsilon_from_record
from fl_epe.accounting import gaussian_epsilon, known_expected_score_epsilon
from fl_epe.accounting.sensitivity import sensitivity
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    RunAuditor,
    ladder_fit,
    scores_of,
    seen_by,
)
from fl_epe.config import RunConfig
from fl_epe.mechanism.strategies import strategy_matrix
from fl_epe.schedules import make_schedule
from fl_epe.seeding import Seeds
from fl_epe.simulation import Job, simulate
from fl_epe.tasks import load_task
from simulations.studies.correlated_noise import MECHANISMS, row

Floats = NDArray[np.float64]

ADVERSARIES = (EVERY_ROUND, FINAL_MODEL)
BANDED, CLIENTS, PERIOD = "banded:bands=8", 120, 8
SCHEDULES = ("cyclic", "min-separation:separation=8", "epochs")
NOISE = (0.25, 0.02)
MU = 5.0  # length of what all of a client's rounds add, in deviations of the noise
ALIKE = 11.7  # with which independent noise hides as little in the final model as 8 bands do
ALWAYS, ONCE = ("independent", BANDED, "blt:buffers=3"), ("tree", "toeplitz")
STEPS = (
    (0.1, 0.9),
    (0.25, 0.9),
    (1.0, 0.0),
)  # the server's learning rate and momentum
NAMES = {"banded:bands=1": "independent", BANDED: "8 bands", "banded:bands=64": "64 bands",
         "toeplitz": "square root, BLT"}  # fmt: skip
PICTURE = Path(__file__).parents[2] / "docs" / "correlated-noise.png"


def train(
    keep: Path, seed: int, settings: Mapping[str, Any]
) -> tuple[AuditRecord, Floats | None]:
    """A run's record and, with full knowledge, the products of its real updates, ``(T, T)``.

    Per coordinate, in units of (clip norm / cohort size)², as z² is the noise.
    """
    config = RunConfig(**{**settings, "clients": CLIENTS, "clients_per_round": 15,
                          "unobserved": 0, "clipping": "fixed"})  # fmt: skip
    words = "-".join(
        f"{v:g}" if isinstance(v, float) else f"{v}" for v in settings.values()
    )
    path = keep / f"{words.replace(':', '-')}-{seed}.npz"
    products = path.with_suffix(".npy")
    if path.exists():
        return AuditRecord.load(path), np.load(
            products
        ) if products.exists() else None
    updates: list[NDArray[np.float32]] = []
    observe = RunAuditor.observe

    def note(self: RunAuditor, *args: Any, **options: Any) -> None:
        if "residual" in (released := options["released"]):
            updates.append(
                (released["mean"] - released["residual"]).astype(np.float32)
            )
        observe(self, *args, **options)

    job = Job(
        load_task("digits", num_clients=CLIENTS),
        config,
        Seeds.derive(seed),
        config.rounds,
    )
    with mock.patch.object(RunAuditor, "observe", note):
        record = simulate(job, workers=1)
    if updates:
        unit = config.clip_norm / config.cohort_size
        real = np.array(
            [[np.dot(a, b) for a in updates] for b in updates], float
        )
        np.save(products, real / (record.dim * unit**2))
    record.save(path)
    return record, np.load(products) if updates else None


def theory(record: AuditRecord, real: Floats) -> tuple[Floats, Floats]:
    """Expected scores of the canaries against every round's model, and against the final one."""
    z, strategy = record.mechanism.noise_multiplier, record.mechanism.strategy
    assert z is not None
    assert strategy is not None
    noise = z * np.linalg.inv(strategy)
    hidden = noise @ noise.T + real
    presence, steps = record.presence, record.round_weights()
    every = np.sqrt(
        np.sum(presence * np.linalg.solve(hidden, presence), axis=0)
    )
    return every, steps @ presence / np.sqrt(steps @ hidden @ steps)


def ratios(
    record: AuditRecord, real: Floats, which: int
) -> tuple[Floats, float, str]:
    """Scores over those of theory: for noise, for unlike real updates, for those of the run.

    Then the standard error of the last, and ε beside that of theory, in words.
    """
    view = seen_by(record, ADVERSARIES[which])
    scores = scores_of(view)
    fit = ladder_fit(view, scores)
    expected = [
        theory(record, r)[which]
        for r in (0 * real, np.diag(np.diag(real)), real)
    ]
    over = np.array(
        [scores.unit * scores.shift(expected=sizes) for sizes in expected]
    )
    error = (fit.high - fit.low) / 3.92 / fit.scale * over[-1]
    true = known_expected_score_epsilon(expected[-1], record.delta)
    got, low, high = (
        known_expected_score_epsilon(
            max(scale, 0.0) * scores.unit * view.expected_scores.observed,
            record.delta,
        )
        for scale in (fit.scale, fit.low, fit.high)
    )
    interval = f"{got:.1f} ({low:.1f} – {high:.1f})"
    return over, float(error), f"{interval:>24} {true:7.1f}"


def show_theory(
    keep: Path, seeds: int, rounds: int = 32, canaries: int = 80
) -> None:
    """Scores and ε beside those of theory, run by run, and the scores of all seeds together."""
    print("schedule           z seed sees   noise  unlike    real          "
          "       ε (95% interval)  theory")  # fmt: skip
    for spec, z in itertools.product(SCHEDULES, NOISE):
        settings = {"participation": spec, "noise_multiplier": z, "mechanism": BANDED,
                    "rounds": rounds, "num_canaries": canaries, "full_knowledge": True,
                    "canary_participations": rounds / PERIOD}  # fmt: skip
        runs = [train(keep, seed, settings) for seed in range(seeds)]
        for which, adversary in enumerate(ADVERSARIES):
            name, ratios_of_seeds = f"{spec.partition(':')[0]:14} {z:5g}", []
            for seed, (record, real) in enumerate(runs):
                assert real is not None
                over, error, words = ratios(record, real, which)
                ratios_of_seeds.append((*over, error))
                print(
                    f"{name} {seed:4} {adversary.sees:5} {_row(over, error)} {words}",
                    flush=True,
                )
            values = np.array(ratios_of_seeds)
            total = float(np.linalg.norm(values[:, -1])) / seeds
            print(
                f"{name}  all {adversary.sees:5} {_row(values[:, :-1].mean(axis=0), total)}"
            )


def _row(over: Floats, error: float) -> str:
    return "  ".join(f"{ratio:6.3f}" for ratio in over) + f" ± {error:.3f}"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A row of the second table: what is trained."""

    rounds: int
    mechanism: str  # or "no noise"
    learning_rate: float = STEPS[0][0]
    momentum: float = STEPS[0][1]
    added: float = MU

    def settings(self) -> dict[str, Any]:
        """With the z that makes the analytical ε what it is in all rows with the same ``added``."""
        times, unit = self.rounds / PERIOD, np.eye(self.rounds)
        quiet = self.mechanism == "no noise"
        mechanism = "independent" if quiet else self.mechanism
        strategy = strategy_matrix(mechanism, self.rounds)
        pattern = make_schedule("cyclic", self.rounds, times).law(CLIENTS)
        size = sensitivity(unit if strategy is None else strategy, pattern)
        momentum = (
            {}
            if self.momentum == STEPS[0][1]
            else {"server_momentum": self.momentum}
        )
        return {"noise_multiplier": 0.0 if quiet else size / self.added, "mechanism": mechanism,
                "rounds": self.rounds, "participation": "cyclic", "num_canaries": 16,
                "canary_participations": times, "server_learning_rate": self.learning_rate,
                **momentum}  # fmt: skip


def show_accuracy(
    keep: Path, seeds: int, cells: list[Cell]
) -> dict[Cell, Floats]:
    """Accuracy, its error, and both ε with theirs, of runs that have one analytical ε."""
    print("rounds mechanism      server          z       accuracy     bound  every round: ε"
          "  final model: ε")  # fmt: skip
    rows: dict[Cell, Floats] = {}
    for cell in cells:
        settings = cell.settings()
        runs = [train(keep, seed, settings)[0] for seed in range(seeds)]
        last = [float(run.metrics["eval_accuracy"][-1]) for run in runs]
        values = [np.mean(last), np.std(last, ddof=1) / np.sqrt(seeds)]
        for adversary in ADVERSARIES if settings["noise_multiplier"] else ():
            estimates = [
                epsilon_from_record(run, adversary=adversary) for run in runs
            ]
            wide = (
                np.linalg.norm([e.high - e.low for e in estimates])
                / 3.92
                / seeds
            )
            values += [np.mean([e.epsilon for e in estimates]), wide]
        rows[cell] = np.array(values)
        server, z = (
            f"{cell.learning_rate:g}, {cell.momentum:g}",
            settings["noise_multiplier"],
        )
        line = f"{cell.rounds:6} {cell.mechanism:14} {server:9}{z:8.3f}"
        line += f"  {values[0]:6.1%} ± {values[1]:.1%}"
        bound = gaussian_epsilon(1 / cell.added, runs[0].delta) if z else np.inf
        line += f"  {bound:8.1f}"
        for value, wide in zip(values[2::2], values[3::2], strict=True):
            line += f"  {f'{value:.2f} ± {wide:.2f}':>14}"
        print(line, flush=True)
    return rows


def draw(figure: Figure, limit: dict[str, tuple[float, float, float]],
         found: dict[Cell, Floats]) -> None:  # fmt: skip
    """What the final model tells against what noise costs: in the limit, and in training."""
    top, bottom = figure.subplots(2, 1)
    for name, (_, final, error) in limit.items():
        top.plot(error, final, "o", color="#b34700")
        if not name.startswith("blt"):  # where the square root is
            top.annotate(NAMES.get(name, name), (error, final), (6, 4),
                         textcoords="offset points", fontsize=10)  # fmt: skip
    top.set(xscale="log", yscale="log", xlabel="error of sums of rounds, over z",
            ylabel="final model: ε", title="In the limit, 2,048 rounds", xlim=(2.5, 90),
            ylim=(0.2, 14))  # fmt: skip
    for axis, ticks in (
        (top.xaxis, (3, 5, 10, 20, 50)),
        (top.yaxis, (0.3, 1, 3, 10)),
    ):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    for mechanism, style in zip(ALWAYS, ("o-", "s-", "^--"), strict=True):
        rows = {
            c: v for c, v in found.items() if c == Cell(c.rounds, mechanism)
        }
        values = np.array(list(rows.values())).T
        bottom.errorbar(values[4], 100 * values[0], 100 * values[1], fmt=style, capsize=2,
                        label=mechanism.partition(":")[0])  # fmt: skip
        right = -18 if mechanism == BANDED else 7
        for cell, value in rows.items():
            bottom.annotate(str(cell.rounds), (value[4], 100 * value[0]), (right, 2),
                            textcoords="offset points", fontsize=9)  # fmt: skip
    for cell, value in found.items():
        if cell.added == ALIKE:
            bottom.errorbar(value[4], 100 * value[0], 100 * value[1], fmt="x", color="C0",
                            capsize=2, label="independent,\nless noise")  # fmt: skip
    bottom.set(
        xlabel="final model: ε",
        ylabel="accuracy, %",
        title="Digits, by number of rounds",
    )
    bottom.legend(fontsize=9, loc="center", bbox_to_anchor=(0.46, 0.45))
    bottom.margins(x=0.12)
    for axes in (top, bottom):
        axes.grid(alpha=0.3)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the records there"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--most", type=int, default=64, help="rounds of the longest run"
    )
    parser.add_argument(
        "--picture", type=Path, help=f"draw it, as {PICTURE.name}"
    )
    options = parser.parse_args(arguments)
    most, seeds = options.most, options.seeds
    with tempfile.TemporaryDirectory() as directory:
        keep = options.keep or Path(directory)
        keep.mkdir(parents=True, exist_ok=True)
        show_theory(keep, seeds, min(most, 32), min(5 * most, 80))
        lengths = [rounds for rounds in (8, 16, 32, 64) if rounds <= most]
        middle = lengths[len(lengths) // 2]
        cells = [Cell(t, m) for t in lengths for m in ("no noise", *ALWAYS)]
        cells += [Cell(middle, m) for m in ONCE]
        cells += [Cell(middle, m, *s) for s in STEPS[1:] for m in ALWAYS[:2]]
        cells += [Cell(lengths[-1], "independent", added=ALIKE)]
        rows = show_accuracy(keep, seeds, cells)
    if options.picture:
        figure = Figure(figsize=(5, 7.2), layout="constrained", dpi=120)
        draw(figure, {name: row(name, 2048) for name in MECHANISMS}, rows)
        figure.savefig(options.picture, metadata={"Software": None})


if __name__ == "__main__":
    main()
