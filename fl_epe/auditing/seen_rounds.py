"""The rounds that a `RunAuditor` has seen, as arrays of a record and of a saved state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.auditing.record_parts import Floats, Mechanism, RunningScores, ServerStep
from fl_epe.auditing.round_correlation import Width
from fl_epe.auditing.round_scores import RoundFacts, RoundScores
from fl_epe.checks import raise_invalid
from fl_epe.mechanism import ServerSGD

_FACTS = ("contribution", "clip_norm", "replies", "absent")  # of `RoundFacts`
_OF_CANARIES = ("weights", "gains", "energies")  # of those that took part, by their numbers


class SeenRounds:
    """All rounds so far.

    Args:
        count: number of canaries that may take part.
        parts: length of the sketch of a round, see `RoundCorrelation`.
    """

    def __init__(self, count: int, parts: int) -> None:
        numbers: dict[str, tuple[int, ...]] = dict.fromkeys((*_FACTS, "update_norms"), ())
        self._shapes = {**numbers, "widths": (3,), "sketches": (parts,), "presence": (count,)}
        self._rows: dict[str, list[Any]] = {name: [] for name in (*self._shapes, *_OF_CANARIES)}

    def __len__(self) -> int:
        return len(self._rows["presence"])

    def add(
        self,
        facts: RoundFacts,
        update_norm: float,
        scores: RoundScores,
        sketch: NDArray[np.float32],
        width: Width,
    ) -> None:
        """Note a round.

        Args:
            facts: who took part, and how much each canary added.
            update_norm: norm of the model update.
            scores: of the canaries that took part.
            sketch: of the residual, see `RoundCorrelation`.
            width: of all scores so far.
        """
        order = np.argsort(list(facts.present), kind="stable").astype(np.int64)
        presence = np.zeros(self._shapes["presence"], bool)
        presence[list(facts.present)] = True
        row = {
            **{name: getattr(facts, name) for name in _FACTS},
            "update_norms": update_norm,
            "widths": dataclasses.astuple(width),
            "sketches": sketch,
            "presence": presence,
            "weights": facts.canary_weights()[order],
            "gains": scores.gains[order],
            "energies": scores.energies[order],
        }
        for name, value in row.items():
            self._rows[name].append(value)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """What `add` was told of each round, ``(T, …)``; of canaries, those that took part."""
        if name in _OF_CANARIES:
            return np.concatenate([np.empty(0), *self._rows[name]])
        kinds = {"presence": np.bool_, "sketches": np.float32}
        rows: NDArray[Any] = np.array(self._rows[name], kinds.get(name, np.float64))
        return rows.reshape(len(self), *self._shapes[name])

    def _by_canary(self, name: str, absent: float = 0.0) -> Floats:
        """``(T, count)``, with the value of canaries that took no part."""
        presence = self["presence"]
        found = np.full(presence.shape, absent)
        found[presence] = self[name]
        return found

    def mechanism(self, server: ServerSGD | str, ids: NDArray[np.int64]) -> Mechanism:
        """As far as rounds show it; the canaries ``ids`` are the observed ones."""
        if isinstance(server, ServerSGD):
            rates = np.full(len(self), server.learning_rate)
            step = ServerStep("sgd", rates, server.momentum)
        else:
            step = ServerStep(server)
        replies = self["replies"]
        replies = replies[np.isfinite(replies)]
        equal = bool(np.all(self["weights"] == 1))
        return Mechanism(
            cohort_size=float(replies.mean()) if len(replies) else math.nan,
            noise_multiplier=None,
            sum_noise_multiplier=None,
            participation="deployment",
            canary_participations=float(self["presence"].sum() / max(1, len(ids))),
            server=step,
            clip_norms=self["clip_norm"],
            contributions=self["contribution"],
            canary_weights=None if equal else self._by_canary("weights", 1.0)[:, ids],
        )

    def running(self, ids: NDArray[np.int64], planned: float | None) -> RunningScores:
        """What `epsilon_by_round` needs of the canaries ``ids``."""
        gains, energies = self._by_canary("gains"), self._by_canary("energies")
        return RunningScores(gains[:, ids], energies[:, ids], self["widths"], planned)

    def state(self) -> dict[str, NDArray[Any]]:
        """Named arrays, from which `restore` goes on."""
        return {name: self[name] for name in self._rows}

    def restore(self, state: Mapping[str, NDArray[Any]], rounds: int) -> None:
        """Take up the first ``rounds`` rounds in what `state` returned, among other arrays.

        Raises:
            ValueError: if it does not fit.
        """
        seen = len(state["presence"])
        if not 0 <= rounds <= seen:
            raise_invalid("rounds", rounds, f"to be from 0 to {seen}, the rounds of the state")
        for name, shape in self._shapes.items():
            value = state[name]
            if value.shape != (seen, *shape) or value.dtype.kind not in "bif":
                raise_invalid(f"{name}.shape", value.shape, f"to be {(seen, *shape)}, of numbers")
        presence = state["presence"].astype(bool)
        ends = np.cumsum(presence.sum(axis=1), dtype=np.int64)
        for name in _OF_CANARIES:
            value, times = state[name], int(presence.sum())
            if value.shape != (times,) or not np.all(np.isfinite(value)):
                raise_invalid(f"{name}.shape", value.shape, f"to be {(times,)}, all finite")
            self._rows[name] = np.split(value.astype(np.float64), ends[:-1])[:rounds]
        bad = {
            "energies": state["energies"] < 0,
            "widths": ~(state["widths"] >= 1),
            "sketches": ~np.isfinite(state["sketches"]),
        }
        for name, found in bad.items():
            if found.any():
                raise ValueError(f"Expected {name} to be in their range.")
        for name in self._shapes:
            self._rows[name] = list(state[name][:rounds])

    def scored(self) -> list[tuple[NDArray[np.int64], Floats, Floats, NDArray[np.float32], Width]]:
        """Of each round who took part, their gains and energies, the sketch and the width."""
        rows = self._rows
        return [
            (np.flatnonzero(here), gains, energies, sketch, Width(*map(float, width)))
            for here, gains, energies, sketch, width in zip(
                *(rows[name] for name in ("presence", "gains", "energies", "sketches", "widths")),
                strict=True,
            )
        ]
