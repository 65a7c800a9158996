"""The rounds that a `RunAuditor` has seen, as arrays of a record and of a saved state."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.record_parts import Floats, Mechanism, RunningScores, ServerStep
from fl_epe.auditing.round_correlation import EXACT, Width
from fl_epe.auditing.round_scores import RoundFacts
from fl_epe.checks import raise_invalid
from fl_epe.mechanism import ServerSGD

_NUMBERS = ("contribution", "clip_norm", "replies", "absent")  # of `RoundFacts`
_PER_ROUND = (*_NUMBERS, "update_norms", "ends", "widths", "sketches")


@dataclasses.dataclass(frozen=True, eq=False)
class SeenRound:
    """A round.

    Attributes:
        facts: who took part, and how much each canary added.
        update_norm: norm of the model update.
        gains: of the canaries that took part, see `RoundScores`.
        energies: likewise.
        sketch: of the residual, see `RoundCorrelation`.
        width: of all scores so far.
    """

    facts: RoundFacts
    update_norm: float
    gains: Floats
    energies: Floats
    sketch: NDArray[np.float32]
    width: Width = EXACT

    @property
    def present(self) -> list[int]:
        """Numbers of the canaries that took part."""
        return list(self.facts.present)


class SeenRounds(list[SeenRound]):
    """All rounds so far."""

    def column(self, name: str) -> Floats:
        """A number of each round's facts, ``(T,)``."""
        return np.array([getattr(seen.facts, name) for seen in self], np.float64)

    def update_norms(self) -> Floats:
        """``(T,)``."""
        return np.array([seen.update_norm for seen in self], np.float64)

    def presence(self, count: int) -> NDArray[np.bool_]:
        """Which of ``count`` canaries took part when, ``(T, count)``."""
        found = np.zeros((len(self), count), bool)
        for row, seen in zip(found, self, strict=True):
            row[seen.present] = True
        return found

    def weights(self, ids: NDArray[np.int64], count: int) -> Floats | None:
        """Weights of the canaries ``ids`` in each round; ``None`` where all are 1."""
        found = np.ones((len(self), count))
        for row, seen in zip(found, self, strict=True):
            row[seen.present] = seen.facts.canary_weights()
        return None if np.all(found == 1) else found[:, ids]

    def mechanism(self, server: ServerSGD | str, ids: NDArray[np.int64], count: int) -> Mechanism:
        """As far as rounds show it; the canaries ``ids`` are the observed ones."""
        if isinstance(server, ServerSGD):
            rates = np.full(len(self), server.learning_rate)
            step = ServerStep("sgd", rates, server.momentum)
        else:
            step = ServerStep(server)
        replies = self.column("replies")
        replies = replies[np.isfinite(replies)]
        times = sum(len(seen.present) for seen in self)
        return Mechanism(
            cohort_size=float(replies.mean()) if len(replies) else math.nan,
            noise_multiplier=None,
            sum_noise_multiplier=None,
            participation="deployment",
            canary_participations=float(times / max(1, len(ids))),
            server=step,
            clip_norms=self.column("clip_norm"),
            contributions=self.column("contribution"),
            canary_weights=self.weights(ids, count),
        )

    def running(self, ids: NDArray[np.int64], count: int, planned: float | None) -> RunningScores:
        """What `epsilon_by_round` needs of the canaries ``ids``."""
        gains, energies = np.zeros((2, len(self), count))
        for t, seen in enumerate(self):
            gains[t, seen.present], energies[t, seen.present] = seen.gains, seen.energies
        return RunningScores(gains[:, ids], energies[:, ids], self._widths(), planned)

    def _widths(self) -> Floats:
        return np.array([dataclasses.astuple(seen.width) for seen in self]).reshape(-1, 3)

    def state(self) -> dict[str, NDArray[Any]]:
        """Named arrays, a number for each round and each canary that took part in it."""
        of_canaries = [(s.present, s.facts.canary_weights(), s.gains, s.energies) for s in self]
        joined = [np.concatenate([[], *column]) for column in zip(*of_canaries, strict=True)]
        present, weights, gains, energies = joined or np.zeros((4, 0))
        return {
            **{name: self.column(name) for name in _NUMBERS},
            "update_norms": self.update_norms(),
            "ends": np.cumsum([len(seen.present) for seen in self], dtype=np.int64),
            "present": present.astype(np.int64),
            "weights": weights,
            "gains": np.stack([gains, energies]),
            "widths": self._widths(),
            "sketches": np.array([seen.sketch for seen in self], np.float32),
        }

    @classmethod
    def read(
        cls, state: Mapping[str, NDArray[Any]], rounds: int, count: int, parts: int
    ) -> SeenRounds:
        """The first ``rounds`` rounds in what `state` returned.

        Args:
            state: among other arrays.
            rounds: how many of them.
            count: number of canaries that may take part.
            parts: length of a sketch.

        Raises:
            ValueError: if it does not fit.
        """
        lengths = {name: len(state[name]) for name in _PER_ROUND}
        if not 0 <= rounds <= min(lengths.values()) or len(set(lengths.values())) > 1:
            raise_invalid("rounds", rounds, f"within the rounds of the state, {lengths}")
        ends = np.concatenate([[0], state["ends"][:rounds]]).astype(np.int64)
        ids, gains = state["present"][: ends[-1]], state["gains"][:, : ends[-1]]
        weights = np.asarray(state["weights"], np.float64)[: ends[-1]]
        if len(ids) < ends[-1] or np.any(np.diff(ends) < 0) or gains.shape != (2, len(ids)):
            raise_invalid("ends", ends, f"to be those of present and gains, {len(ids)}")
        if len(ids) and not 0 <= ids.min() <= ids.max() < count:
            raise ValueError(f"Expected present in [0, num_canaries={count}).")
        if len(weights) < len(ids) or not np.all(np.isfinite(weights)):
            raise ValueError(f"Expected weights={weights} to be those of present, {len(ids)}.")
        if not np.all(np.isfinite(gains)) or np.any(gains[1] < 0):
            raise ValueError("Expected gains to be finite, and energies >= 0.")
        sketches, widths = state["sketches"][:rounds], state["widths"][:rounds]
        for name, kept, size in (("sketches", sketches, parts), ("widths", widths, 3)):
            if rounds and (kept.shape != (rounds, size) or not np.all(np.isfinite(kept))):
                raise_invalid(f"{name}.shape", kept.shape, f"to be {(rounds, size)}, and finite")
        columns = [state[name][:rounds].tolist() for name in (*_NUMBERS, "update_norms")]
        rows = zip(itertools.pairwise(ends), *columns, sketches, widths, strict=True)
        found = cls()
        for pair, contribution, clip_norm, replies, absent, length, sketch, width in rows:
            part = slice(*pair)
            unequal = [] if np.all(weights[part] == 1) else weights[part].tolist()
            present, lost = ids[part].tolist(), int(absent) if math.isfinite(absent) else 0
            facts = RoundFacts(present, contribution, clip_norm, replies, lost, unequal)
            gain, energy = gains[:, part]
            found.append(SeenRound(facts, length, gain, energy, sketch, Width(*width.tolist())))
        return found
