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

Expected::

    schedule           z seed sees   noise  unlike    real                 ε (95% interval)  theory
    cyclic          0.25    0 all    1.013   1.014   1.016 ± 0.014       52.8 (50.4 – 55.2)    51.4
    cyclic          0.25    1 all    0.984   0.984   0.986 ± 0.014       50.3 (48.0 – 52.7)    51.4
    cyclic          0.25    2 all    1.018   1.019   1.021 ± 0.014       53.2 (50.8 – 55.6)    51.4
    cyclic          0.25  all all    1.005   1.006   1.008 ± 0.008
    cyclic          0.25    0 final  1.013   1.014   1.017 ± 0.018       36.9 (34.7 – 39.0)    35.9
    cyclic          0.25    1 final  0.985   0.986   0.989 ± 0.018       35.2 (33.1 – 37.3)    35.9
    cyclic          0.25    2 final  1.023   1.025   1.028 ± 0.018       37.5 (35.4 – 39.7)    35.8
    cyclic          0.25  all final  1.007   1.008   1.011 ± 0.011
    cyclic          0.02    0 all    0.791   0.882   1.003 ± 0.003 3369.9 (3331.3 – 3408.8)  3344.0
    cyclic          0.02    1 all    0.791   0.875   1.000 ± 0.003 3374.0 (3335.0 – 3413.1)  3345.1
    cyclic          0.02    2 all    0.784   0.873   1.003 ± 0.003 3285.4 (3247.9 – 3323.1)  3269.2
    cyclic          0.02  all all    0.788   0.876   1.002 ± 0.002
    cyclic          0.02    0 final  0.665   0.788   1.000 ± 0.002 1690.6 (1676.0 – 1705.3)  1690.9
    cyclic          0.02    1 final  0.668   0.784   0.999 ± 0.002 1704.7 (1690.0 – 1719.4)  1707.8
    cyclic          0.02    2 final  0.652   0.772   1.000 ± 0.002 1628.9 (1614.6 – 1643.3)  1629.0
    cyclic          0.02  all final  0.662   0.781   1.000 ± 0.001
    min-separation  0.25    0 all    1.018   1.019   1.021 ± 0.014       53.2 (50.8 – 55.6)    51.4
    min-separation  0.25    1 all    0.996   0.996   0.998 ± 0.014       51.3 (48.9 – 53.7)    51.4
    min-separation  0.25    2 all    1.015   1.015   1.018 ± 0.014       52.9 (50.5 – 55.3)    51.4
    min-separation  0.25  all all    1.009   1.010   1.012 ± 0.008
    min-separation  0.25    0 final  1.011   1.012   1.016 ± 0.018       36.8 (34.7 – 38.9)    35.8
    min-separation  0.25    1 final  0.984   0.985   0.988 ± 0.018       35.1 (33.1 – 37.3)    35.9
    min-separation  0.25    2 final  1.022   1.023   1.026 ± 0.018       37.4 (35.2 – 39.6)    35.8
    min-separation  0.25  all final  1.006   1.007   1.010 ± 0.011
    min-separation  0.02    0 all    0.791   0.874   1.003 ± 0.003 3343.3 (3305.2 – 3381.7)  3323.8
    min-separation  0.02    1 all    0.789   0.873   1.000 ± 0.003 3382.2 (3343.3 – 3421.5)  3342.3
    min-separation  0.02    2 all    0.785   0.867   1.002 ± 0.003 3306.1 (3268.3 – 3344.1)  3313.1
    min-separation  0.02  all all    0.788   0.871   1.002 ± 0.002
    min-separation  0.02    0 final  0.661   0.772   0.999 ± 0.002 1668.9 (1654.4 – 1683.5)  1671.5
    min-separation  0.02    1 final  0.667   0.782   0.999 ± 0.002 1701.6 (1686.9 – 1716.3)  1704.6
    min-separation  0.02    2 final  0.657   0.767   1.000 ± 0.002 1650.9 (1636.5 – 1665.4)  1649.8
    min-separation  0.02  all final  0.662   0.774   1.000 ± 0.001
    epochs          0.25    0 all    1.010   1.011   1.013 ± 0.013       61.5 (58.9 – 64.2)    60.4
    epochs          0.25    1 all    0.978   0.979   0.981 ± 0.013       58.2 (55.6 – 60.8)    60.1
    epochs          0.25    2 all    1.026   1.026   1.028 ± 0.013       62.7 (60.1 – 65.4)    59.8
    epochs          0.25  all all    1.005   1.006   1.007 ± 0.008
    epochs          0.25    0 final  1.012   1.013   1.016 ± 0.019       35.5 (33.5 – 37.6)    34.6
    epochs          0.25    1 final  0.985   0.986   0.989 ± 0.019       33.8 (31.8 – 35.8)    34.4
    epochs          0.25    2 final  1.023   1.025   1.028 ± 0.019       35.9 (33.9 – 38.0)    34.4
    epochs          0.25  all final  1.007   1.008   1.011 ± 0.011
    epochs          0.02    0 all    0.808   0.901   1.000 ± 0.002 4783.2 (4737.7 – 4828.8)  4816.2
    epochs          0.02    1 all    0.804   0.889   1.000 ± 0.002 4697.6 (4653.5 – 4741.8)  4704.6
    epochs          0.02    2 all    0.804   0.891   1.004 ± 0.002 4703.9 (4659.7 – 4748.2)  4643.2
    epochs          0.02  all all    0.805   0.894   1.001 ± 0.001
    epochs          0.02    0 final  0.668   0.798   1.000 ± 0.002 1636.3 (1622.1 – 1650.6)  1635.1
    epochs          0.02    1 final  0.663   0.781   1.000 ± 0.002 1602.5 (1588.4 – 1616.6)  1603.5
    epochs          0.02    2 final  0.654   0.775   1.000 ± 0.002 1577.2 (1563.2 – 1591.3)  1577.9
    epochs          0.02  all final  0.662   0.785   1.000 ± 0.001
    rounds mechanism      server          z       accuracy     bound  every round: ε  final model: ε
         8 no noise       0.1, 0.9    0.000   11.6% ± 1.4%       inf
         8 independent    0.1, 0.9    0.200   12.1% ± 1.0%      24.5    24.55 ± 1.09     7.30 ± 0.89
         8 banded:bands=8 0.1, 0.9    0.200   11.5% ± 0.9%      24.5    23.92 ± 1.08    16.95 ± 1.28
         8 blt:buffers=3  0.1, 0.9    0.200   11.6% ± 1.0%      24.5    22.18 ± 1.09    16.53 ± 1.27
        16 no noise       0.1, 0.9    0.000   40.2% ± 2.6%       inf
        16 independent    0.1, 0.9    0.283   44.1% ± 4.0%      24.5    24.23 ± 1.08     6.46 ± 0.74
        16 banded:bands=8 0.1, 0.9    0.283   44.4% ± 3.3%      24.5    24.84 ± 1.10    18.03 ± 1.13
        16 blt:buffers=3  0.1, 0.9    0.313   44.7% ± 3.3%      24.5    23.14 ± 1.10    18.43 ± 1.14
        32 no noise       0.1, 0.9    0.000   81.2% ± 2.1%       inf
        32 independent    0.1, 0.9    0.400   72.5% ± 2.9%      24.5    24.22 ± 1.08     5.91 ± 0.65
        32 banded:bands=8 0.1, 0.9    0.400   80.5% ± 2.8%      24.5    25.06 ± 1.10    18.22 ± 1.02
        32 blt:buffers=3  0.1, 0.9    0.522   79.8% ± 2.3%      24.5    23.82 ± 1.10    20.23 ± 1.07
        64 no noise       0.1, 0.9    0.000   91.2% ± 0.6%       inf
        64 independent    0.1, 0.9    0.566   75.6% ± 1.3%      24.5    23.65 ± 1.07     5.02 ± 0.60
        64 banded:bands=8 0.1, 0.9    0.566   91.2% ± 0.2%      24.5    23.59 ± 1.07    17.29 ± 0.95
        64 blt:buffers=3  0.1, 0.9    0.917   88.1% ± 1.6%      24.5    22.09 ± 1.05    19.71 ± 1.01
        32 tree           0.1, 0.9    0.516   79.9% ± 2.2%      24.5    24.44 ± 1.09    17.12 ± 0.99
        32 toeplitz       0.1, 0.9    0.522   79.8% ± 2.7%      24.5    23.82 ± 1.10    20.24 ± 1.07
        32 independent    0.25, 0.9   0.400   69.7% ± 2.8%      24.5    24.21 ± 1.08     5.93 ± 0.65
        32 banded:bands=8 0.25, 0.9   0.400   87.5% ± 0.0%      24.5    25.08 ± 1.10    18.25 ± 1.02
        32 independent    1, 0        0.400   77.9% ± 1.9%      24.5    24.22 ± 1.08     6.17 ± 0.63
        32 banded:bands=8 1, 0        0.400   86.3% ± 0.6%      24.5    25.11 ± 1.10    17.72 ± 0.95
        64 independent    0.1, 0.9    0.242   91.0% ± 0.2%      97.5    95.85 ± 2.05    17.39 ± 0.95
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
STEPS = ((0.1, 0.9), (0.25, 0.9), (1.0, 0.0))  # the server's learning rate and momentum
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
        return AuditRecord.load(path), np.load(products) if products.exists() else None
    updates: list[NDArray[np.float32]] = []
    observe = RunAuditor.observe

    def note(self: RunAuditor, *args: Any, **options: Any) -> None:
        if "residual" in (released := options["released"]):
            updates.append((released["mean"] - released["residual"]).astype(np.float32))
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
        real = np.array([[np.dot(a, b) for a in updates] for b in updates], float)
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
    here, steps = record.presence, record.round_weights()
    every = np.sqrt(np.sum(here * np.linalg.solve(hidden, here), axis=0))
    return every, steps @ here / np.sqrt(steps @ hidden @ steps)


def ratios(record: AuditRecord, real: Floats, which: int) -> tuple[Floats, float, str]:
    """Scores over those of theory: for noise, for unlike real updates, for those of the run.

    Then the standard error of the last, and ε beside that of theory, in words.
    """
    view = seen_by(record, ADVERSARIES[which])
    scores = scores_of(view)
    fit = ladder_fit(view, scores)
    expected = [
        theory(record, r)[which] for r in (0 * real, np.diag(np.diag(real)), real)
    ]
    over = np.array([scores.unit * scores.shift(sizes=sizes) for sizes in expected])
    error = (fit.high - fit.low) / 3.92 / fit.scale * over[-1]
    true = known_expected_score_epsilon(expected[-1], record.delta)
    got, low, high = (
        known_expected_score_epsilon(
            max(scale, 0.0) * scores.unit * view.sizes.observed, record.delta
        )
        for scale in (fit.scale, fit.low, fit.high)
    )
    interval = f"{got:.1f} ({low:.1f} – {high:.1f})"
    return over, float(error), f"{interval:>24} {true:7.1f}"


def show_theory(keep: Path, seeds: int, rounds: int = 32, canaries: int = 80) -> None:
    """Scores and ε beside those of theory, run by run, and the scores of all seeds together."""
    print("schedule           z seed sees   noise  unlike    real          "
          "       ε (95% interval)  theory")  # fmt: skip
    for spec, z in itertools.product(SCHEDULES, NOISE):
        settings = {"participation": spec, "noise_multiplier": z, "mechanism": BANDED,
                    "rounds": rounds, "num_canaries": canaries, "full_knowledge": True,
                    "canary_participations": rounds / PERIOD}  # fmt: skip
        runs = [train(keep, seed, settings) for seed in range(seeds)]
        for which, adversary in enumerate(ADVERSARIES):
            name, found = f"{spec.partition(':')[0]:14} {z:5g}", []
            for seed, (record, real) in enumerate(runs):
                assert real is not None
                over, error, words = ratios(record, real, which)
                found.append((*over, error))
                print(
                    f"{name} {seed:4} {adversary.sees:5} {_row(over, error)} {words}",
                    flush=True,
                )
            both = np.array(found)
            total = float(np.linalg.norm(both[:, -1])) / seeds
            print(
                f"{name}  all {adversary.sees:5} {_row(both[:, :-1].mean(axis=0), total)}"
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
            {} if self.momentum == STEPS[0][1] else {"server_momentum": self.momentum}
        )
        return {"noise_multiplier": 0.0 if quiet else size / self.added, "mechanism": mechanism,
                "rounds": self.rounds, "participation": "cyclic", "num_canaries": 16,
                "canary_participations": times, "server_learning_rate": self.learning_rate,
                **momentum}  # fmt: skip


def show_accuracy(keep: Path, seeds: int, cells: list[Cell]) -> dict[Cell, Floats]:
    """Accuracy, its error, and both ε with theirs, of runs that have one analytical ε."""
    print("rounds mechanism      server          z       accuracy     bound  every round: ε"
          "  final model: ε")  # fmt: skip
    found: dict[Cell, Floats] = {}
    for cell in cells:
        settings = cell.settings()
        runs = [train(keep, seed, settings)[0] for seed in range(seeds)]
        last = [float(run.metrics["eval_accuracy"][-1]) for run in runs]
        values = [np.mean(last), np.std(last, ddof=1) / np.sqrt(seeds)]
        for adversary in ADVERSARIES if settings["noise_multiplier"] else ():
            each = [epsilon_from_record(run, adversary=adversary) for run in runs]
            wide = np.linalg.norm([e.high - e.low for e in each]) / 3.92 / seeds
            values += [np.mean([e.epsilon for e in each]), wide]
        found[cell] = np.array(values)
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
    return found


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
    for axis, ticks in ((top.xaxis, (3, 5, 10, 20, 50)), (top.yaxis, (0.3, 1, 3, 10))):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    for mechanism, style in zip(ALWAYS, ("o-", "s-", "^--"), strict=True):
        rows = {c: v for c, v in found.items() if c == Cell(c.rounds, mechanism)}
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
    parser.add_argument("--picture", type=Path, help=f"draw it, as {PICTURE.name}")
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
        found = show_accuracy(keep, seeds, cells)
    if options.picture:
        figure = Figure(figsize=(5, 7.2), layout="constrained", dpi=120)
        draw(figure, {name: row(name, 2048) for name in MECHANISMS}, found)
        figure.savefig(options.picture, metadata={"Software": None})


if __name__ == "__main__":
    main()
