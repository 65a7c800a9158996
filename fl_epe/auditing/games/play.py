"""Play a game against a mechanism: many observations of two worlds, as `Scores`.

`play_game` makes independent observations, each of a fresh mechanism, in random order.
`play_two_runs` makes one run in each world, in which every step is an observation (Nasr et al.
2023, section 4): cheap where a step is a step of training, and valid as long as the noise of steps
is independent.

A game says how far a mechanism can be told apart in a world of the auditor's making. A lower bound
from its scores is one on the ε of the mechanism; that no bound was found proves nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_epe.auditing.games.canary import Canary, fixed
from fl_epe.auditing.games.game import Game
from fl_epe.auditing.games.mechanism import AuditedMechanism
from fl_epe.auditing.games.statistic import ALONG_CANARY, Statistic, Transcript
from fl_epe.auditing.scores import Scores
from fl_epe.checks import raise_invalid
from fl_epe.seeding import generator

Matrix = NDArray[np.float64]
Others = ArrayLike | Callable[[int], ArrayLike]
_ORDER, _NOISE, _SAMPLING = (), (1,), (2,)  # streams of a game's seed


def play_game(
    mechanism: AuditedMechanism,
    game: Game,
    canary: Canary,
    *,
    observations: int,
    steps: int = 1,
    sampling_rate: float = 1.0,
    others: Others = (),
    statistic: Statistic = ALONG_CANARY,
    seed: int = 0,
) -> Scores:
    """Scores of ``observations`` independent observations of each world, in random order.

    Args:
        mechanism: under test; reset before each observation.
        game: what differs between the two worlds.
        canary: the canary's update in each step; steps are counted through all observations.
        observations: in each of the two worlds, at least 2.
        steps: of the mechanism in one observation, at least 1.
        sampling_rate: probability, in (0, 1], with which the canary's record is in a step's batch;
            in a step without it, both worlds are alike.
        others: updates of the other records, shape (n, d), or a function from the step to these.
        statistic: from what was released to a score.
        seed: of the order of the observations, the canary's sampling and the mechanism's noise.

    Raises:
        ValueError: if an argument is out of range, or an update or what was released has another
            shape or is not finite.
    """
    if observations < 2:
        raise_invalid("observations", observations, ">= 2")
    if steps < 1:
        raise_invalid("steps", steps, ">= 1")
    player = _Player(mechanism, game, canary, others, sampling_rate, seed)
    takes_part = generator(seed, *_ORDER).permutation(2 * observations) < observations
    scores = np.empty(takes_part.size)
    for i, here in enumerate(takes_part):
        mechanism.reset()
        seen = _seen([player.step(bool(here), i * steps + s) for s in range(steps)])
        scores[i] = statistic.score(seen)
    return Scores(scores[takes_part], scores[~takes_part], statistic=statistic.name)


def play_two_runs(
    mechanism: AuditedMechanism,
    game: Game,
    canary: Canary,
    *,
    steps: int,
    sampling_rate: float = 1.0,
    others: Others = (),
    statistic: Statistic = ALONG_CANARY,
    seed: int = 0,
) -> Scores:
    """Scores of the ``steps`` steps of one run in each world, every step an observation.

    Arguments and errors are those of `play_game`; a mechanism with a state keeps it from step to
    step, and starts anew for the second run.
    """
    if steps < 2:
        raise_invalid("steps", steps, ">= 2")
    player = _Player(mechanism, game, canary, others, sampling_rate, seed)

    def run(here: bool, first: int) -> Matrix:
        mechanism.reset()
        seen = [player.step(here, first + s) for s in range(steps)]
        return np.array([statistic.score(_seen([one])) for one in seen])

    return Scores(run(True, 0), run(False, steps), statistic=statistic.name)


def play(
    aggregate: Callable[[list[Matrix]], ArrayLike],
    updates: Sequence[ArrayLike],
    canary: ArrayLike,
    *,
    trials: int,
    baseline: ArrayLike | None = None,
    seed: int = 0,
) -> Scores:
    """Scores of the one-round membership game for an aggregation function.

    The smallest case of `play_game`: it audits one step (Nasr et al. 2023, Tramèr et al. 2022).
    ``aggregate`` gets the updates and, in random order, the canary or the baseline; it must draw
    fresh noise in every call.

    Args:
        aggregate: from n + 1 updates, each of shape (d,), to what is released, shape (d,).
        updates: of the other clients, n ≥ 0 of shape (d,).
        canary: the update to hide, shape (d,); scores are inner products with its direction.
        trials: number of calls with the canary, and without it, at least 2; none may affect others.
        baseline: replaces an absent canary, shape (d,); zeros by default (zero-out adjacency).
        seed: of the order of calls.

    Raises:
        ValueError: for a wrong shape, a value that is not finite, or an argument out of range.
    """
    if trials < 2:
        raise_invalid("trials", trials, ">= 2")
    present = _vector("canary", canary)
    if not (norm := float(np.linalg.norm(present))):
        raise_invalid("norm", norm, "> 0, with some entry of the canary that is not 0")
    absent = _vector("baseline", 0 * present if baseline is None else baseline, present.size)
    others = [_vector(f"updates[{i}]", vector, present.size) for i, vector in enumerate(updates)]

    def release(vectors: list[Matrix]) -> Matrix:
        return _vector("aggregate(...)", aggregate(vectors), present.size)

    return play_game(
        _OfFunction(release),
        Game("replace-one", lambda _: [absent.copy()]),
        fixed(present),
        observations=trials,
        others=others,
        seed=seed,
    )


class _OfFunction(AuditedMechanism):
    """A function of updates that draws fresh noise of its own in every call."""

    def __init__(self, aggregate: Callable[[list[Matrix]], ArrayLike]) -> None:
        self._aggregate = aggregate

    def release(self, updates: Matrix, rng: np.random.Generator) -> ArrayLike:
        return self._aggregate([update.copy() for update in updates])


Step = tuple[Matrix, Matrix]


def _seen(steps: list[Step]) -> Transcript:
    released, canaries = (np.array(rows) for rows in zip(*steps, strict=True))
    return Transcript(released, canaries)


@dataclasses.dataclass
class _Player:
    mechanism: AuditedMechanism
    game: Game
    canary: Canary
    others: Others
    sampling_rate: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.sampling_rate <= 1:
            raise_invalid("sampling_rate", self.sampling_rate, "in (0, 1]")
        self._noise = generator(self.seed, *_NOISE)
        self._sampling = generator(self.seed, *_SAMPLING)
        if not callable(self.others):
            self._fixed = self._rows(self.others)

    def step(self, here: bool, number: int) -> Step:
        """What is released in one step of one world, and the canary's update in it."""
        canary = self._vector("canary", self.canary.vector(number))
        others = self._rows(self.others(number)) if callable(self.others) else self._fixed
        rows = list(others)
        if self.sampling_rate == 1 or self._sampling.random() < self.sampling_rate:
            own = [canary] if here else self.game.absent(canary)
            rows += [row if row is canary else self._vector("baseline", row) for row in own]
        updates = np.array(rows).reshape(len(rows), self.canary.dim)
        released = self.mechanism.release(updates, self._noise)
        return self._vector("released", released), canary

    def _rows(self, others: ArrayLike) -> Matrix:
        rows = np.array(others, np.float64)
        if rows.size == 0:
            return np.empty((0, self.canary.dim))
        if rows.ndim != 2 or rows.shape[1] != self.canary.dim or not np.all(np.isfinite(rows)):
            raise_invalid("others.shape", rows.shape, f"to be (n, {self.canary.dim}), finite")
        return rows

    def _vector(self, name: str, values: ArrayLike) -> Matrix:
        vector = np.array(values, np.float64)
        if vector.shape != (self.canary.dim,) or not np.isfinite(vector).all():
            raise_invalid(f"{name}.shape", vector.shape, f"to be ({self.canary.dim},), finite")
        return vector


def _vector(name: str, values: ArrayLike, size: int | None = None) -> Matrix:
    vector = np.array(values, np.float64)
    if vector.ndim != 1 or size not in (None, vector.size) or not np.all(np.isfinite(vector)):
        raise_invalid(f"{name}.shape", vector.shape, f"to be ({size or 'd'},), finite")
    return vector
