"""Canaries made to be remembered by the final model: how much of the gap to theory they close."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import Scores, games, lower_bound
from fl_epe.audits.final_model import FinalModel, Training
from fl_epe.audits.images import CLASSES, Images, read_images
from fl_epe.audits.memory import Memory, flat_shift, memory_of
from fl_epe.audits.settings import AuditSettings
from fl_epe.audits.two_layer import Floats, TwoLayer
from fl_epe.mechanism import ServerSGD
from fl_epe.reporting import AuditResult, AuditTable, Line, Picture
from fl_epe.seeding import Seeds, generator

_NAME = "final-model"
_SIDE, _EVERY = 28, 4  # pixels of an image, of which every fourth is kept each way
_NOISE, _CLIP_NORM = 0.25, 0.5
_SERVER = ServerSGD(0.25, 0.9)
_NOTES = (
    "The adversary sees θ_T − θ_0 alone, and knows all but the noise: the other records, who takes "
    "part when, and the canary's rounds. The score is the displacement along the direction in "
    "which the canary should stand out most, chosen before the runs that are scored.",
    "'Best' is the largest singular value of what the final model keeps of a round beside what it "
    "keeps of all noise, near the run without noise (linear theory). 'Allowed' is the exact ε of "
    "an adversary who sees every round.",
    "ε with its interval is that of two Gaussians with one deviation, an estimate. The bounds hold "
    "at {confidence:.0%} each, alone: 'bound' for scores of any distribution, 'GDP bound' if the "
    "trade-off curve is Gaussian. Adjacency: add-or-remove with a fixed denominator.",
    "Of a canary that takes part once, the noise of the other {others} rounds hides all but "
    "μ = {flat:.2f} of 1/z = {most:g} where training does not react to it: ε = {hidden:.2f}. "
    "More is seen only in directions in which training forgets or outgrows that noise.",
    "A network of {dim:,} parameters on digits of 7×7 pixels; a model of millions, as in the quick "
    "start, has more noise beside the same clip norm, and reacts less.",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Kind:
    """A canary.

    Attributes:
        name: in words.
        direction: a unit vector, shape (dim,).
        present: rounds in which it takes part, from 0.
        expected: μ by linear theory.
    """

    name: str
    direction: Floats
    present: tuple[int, ...]
    expected: float


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """What a canary's runs gave.

    Attributes:
        kind: the canary.
        epsilon: the estimate with the ends of its interval.
        bound: for scores of any distribution.
        gdp_bound: for a Gaussian trade-off curve.
        allowed: by theory, for who sees every round.
        predicted: ε of the canary's μ.
    """

    kind: Kind
    epsilon: tuple[float, float, float]
    bound: float
    gdp_bound: float
    allowed: float
    predicted: float


def training(images: Images, *, rounds: int, cohort: int, hidden: int, seed: int) -> Training:
    """A run on small digits; its data, rounds and initial model are drawn from ``seed``."""
    seeds = Seeds.derive(seed)
    pixels = images.inputs.reshape(-1, _SIDE, _SIDE)[:, ::_EVERY, ::_EVERY]
    inputs = pixels.reshape(len(pixels), -1)
    network = TwoLayer(inputs.shape[1], hidden, CLASSES)
    rng = generator(seeds.participation)
    drawn = [rng.choice(len(inputs), cohort, replace=False) for _ in range(rounds)]
    batches = [(inputs[chosen], images.labels[chosen]) for chosen in drawn]
    return Training(network, network.initial(seeds.initial), batches, _NOISE, _CLIP_NORM, _SERVER)


def kinds_of(run: Training, memory: Memory, seed: int) -> list[Kind]:
    """Random, still and remembered canaries."""
    weights = run.server.weights(run.rounds)
    loudest, everywhere = int(np.argmax(weights)), tuple(range(run.rounds))
    random = _unit(generator(seed, 1).standard_normal(run.network.dim))
    quiet = _still(run, seed)
    found = [memory.best(number) for number in everywhere]
    half = run.rounds // 2
    early = max(everywhere[:half], key=lambda number: found[number][0])
    late = max(everywhere[half:], key=lambda number: found[number][0])
    return [
        Kind(
            "random direction, loudest round", random, (loudest,), memory.shift(random, (loudest,))
        ),
        Kind(
            "still coordinates, loudest round",
            quiet,
            (loudest,),
            flat_shift(weights, run.noise_multiplier, (loudest,)),
        ),
        Kind(f"best of round {early + 1} (early)", found[early][1], (early,), found[early][0]),
        Kind(f"best of round {late + 1} (late)", found[late][1], (late,), found[late][0]),
        Kind(
            "still coordinates, every round",
            quiet,
            everywhere,
            flat_shift(weights, run.noise_multiplier, everywhere),
        ),
    ]


def _still(run: Training, seed: int) -> Floats:
    """A random direction within the weights of the pixels that are darkest over all rounds."""
    light = np.sum([inputs.sum(axis=0) for inputs, _ in run.batches], axis=0)
    coordinates = run.network.hidden_inputs(np.flatnonzero(light == light.min()))
    direction = np.zeros(run.network.dim)
    direction[coordinates] = generator(seed, 2).standard_normal(coordinates.size)
    return _unit(direction)


def _unit(vector: Floats) -> Floats:
    return np.asarray(vector / np.linalg.norm(vector))


def measure(
    run: Training, memory: Memory, kind: Kind, settings: AuditSettings, count: int
) -> Measured:
    """Play the game against whole runs with one canary."""
    scores = play(run, memory, kind, count, settings.seed)
    if scores.unobserved is None:
        raise ValueError("Expected unobserved scores, got unobserved=None.")
    delta, confidence = settings.delta, settings.confidence
    found = common_deviation(scores.observed, scores.unobserved, delta)
    bound, gdp = (
        lower_bound(scores, delta, confidence=confidence, method=method)
        for method in ("clopper-pearson", "gdp")
    )
    allowed = gaussian_epsilon(run.noise_multiplier, delta, len(kind.present))
    predicted = gaussian_epsilon(1 / kind.expected, delta)
    return Measured(kind, found, bound, gdp, allowed, predicted)


def common_deviation(
    observed: Floats, unobserved: Floats, delta: float
) -> tuple[float, float, float]:
    """ε of two Gaussians with one standard deviation, and the ends of its 95% interval.

    The interval is that of the shift in deviations, whose variance is 2/n + μ²/(4n) for n scores
    in each world.
    """
    count = min(observed.size, unobserved.size)
    variance = (observed.var(ddof=1) + unobserved.var(ddof=1)) / 2
    shift = (observed.mean() - unobserved.mean()) / np.sqrt(variance)
    error = 1.96 * np.sqrt(2 / count + shift**2 / (4 * count))
    shifts = (float(value) for value in (shift, shift - error, shift + error))
    epsilon, low, high = (
        gaussian_epsilon(1 / value, delta) if value > 0 else 0.0 for value in shifts
    )
    return epsilon, low, high


def play(run: Training, memory: Memory, kind: Kind, count: int, seed: int) -> Scores:
    """Scores of ``count`` runs with the canary and as many without it."""
    return games.play_game(
        FinalModel(run, kind.present),
        games.ADD_OR_REMOVE,
        games.fixed(kind.direction * run.clip_norm, kind.name),
        observations=count,
        statistic=games.along_direction(memory.filter(kind.direction, kind.present)),
        seed=seed,
    )


def audit(settings: AuditSettings) -> AuditResult:
    """Canaries by kind, with the optimum of theory beside each."""
    images = read_images("digits")
    if settings.quick:
        run = training(images, rounds=8, cohort=12, hidden=2, seed=settings.seed)
    else:
        run = training(images, rounds=60, cohort=24, hidden=6, seed=settings.seed)
    memory = memory_of(run)
    count = settings.count(400, 60)
    rows = [
        measure(run, memory, kind, settings, count) for kind in kinds_of(run, memory, settings.seed)
    ]
    return report(run, rows, settings)


def report(run: Training, rows: list[Measured], settings: AuditSettings) -> AuditResult:
    """The table, with the answer in one sentence."""
    plain, best = rows[0], max((row for row in rows if len(row.kind.present) == 1), key=_estimate)
    closed = (best.epsilon[0] - plain.epsilon[0]) / (plain.allowed - plain.epsilon[0])
    share = min(max(closed, 0.0), 1.0)
    answer = "the model is that private" if share < 0.5 else "the canary was that weak"
    finding = (
        f"Mostly {answer}: in the final model a random direction finds ε = {plain.epsilon[0]:.1f} "
        f"and the direction that it remembers best {best.epsilon[0]:.1f} (at least "
        f"{best.bound:.1f} proved), {share:.0%} of the way to the {plain.allowed:.1f} that theory "
        f"allows; the noise of the other rounds hides the rest."
    )
    cells = [_cells(row) for row in rows]
    columns = ("canary", "rounds", "μ by theory", "best", "ε", "low", "high")
    table = AuditTable(
        (*columns, "bound", "GDP bound", "allowed"),
        cells,
        f"digits, {run.rounds} rounds, z = {run.noise_multiplier:g}, δ = {settings.delta:.3g}: "
        "ε of the final model",
    )
    passed = all(max(row.bound, row.gdp_bound) <= row.allowed for row in rows)
    notes = _notes(run, settings)
    return AuditResult(
        _NAME, finding, [table], notes, [_picture(rows)], settings.to_dict(), passed=passed
    )


def _cells(row: Measured) -> tuple[Any, ...]:
    kind = row.kind
    theory = (kind.name, len(kind.present), kind.expected, row.predicted)
    return (*theory, *row.epsilon, row.bound, row.gdp_bound, row.allowed)


def _estimate(row: Measured) -> float:
    return row.epsilon[0]


def _notes(run: Training, settings: AuditSettings) -> list[str]:
    weights = run.server.weights(run.rounds)
    flat = flat_shift(weights, run.noise_multiplier, (int(np.argmax(weights)),))
    values = {
        "confidence": settings.confidence,
        "others": run.rounds - 1,
        "flat": flat,
        "most": 1 / run.noise_multiplier,
        "hidden": gaussian_epsilon(1 / flat, settings.delta),
        "dim": run.network.dim,
    }
    return [note.format(**values) for note in _NOTES]


def _picture(rows: list[Measured]) -> Picture:
    x = [float(number) for number in range(1, len(rows) + 1)]
    lines = [
        Line("allowed by theory", x, [row.allowed for row in rows], style="--"),
        Line("best by linear theory", x, [row.predicted for row in rows], style=":"),
        Line(
            "measured",
            x,
            [row.epsilon[0] for row in rows],
            [row.epsilon[1] for row in rows],
            [row.epsilon[2] for row in rows],
            style="o",
        ),
        Line("proved", x, [row.bound for row in rows], style="o"),
    ]
    text = "; ".join(f"{row.kind.name}: ε = {row.epsilon[0]:.1f}" for row in rows) + "."
    title = "ε of the final model, by canary"
    return Picture("final-model", title, "canary, in the table's order", "ε", lines, "y", text)
