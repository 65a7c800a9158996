"""A summary of noise: exact sums of each array, and a sketch of each round."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fl_epe.checks import Floats, Integers, raise_invalid
from fl_epe.noise.laws import PREFIX, ROUNDING, Law

HEAD = 256
"""First values of an array that are compared with those of others."""
EQUAL = 16
"""Of these, the values by which equal noise is found."""
SKETCH = 1024
"""Coordinates of a round that are kept of a run."""

_BLOCK = 1 << 15
_ARRAYS = 256  # that are compared with each other
_ROUNDS = 512  # rounds of which they are kept
_MARKS = 16  # coordinates of every round
_SEEDED = 4  # rounds whose seeds are looked for
_STILL = 1 << 18  # coordinates without noise that are followed
_FEWEST = 8  # coordinates of an array in the sketch, where there is room

_SUMS = ("amounts", "largest", "worst", "agree", "apart")  # in a checkpoint


class SketchLayout:
    """The arrays of a release, and which of their entries are kept.

    Args:
        sizes: numbers of entries of the arrays by name; those without entries are left out.
        kept: entries of a round that are kept, about.

    Attributes:
        names: of the arrays.
        sizes: their numbers of entries, ``(A,)``.
        starts: number of the first entry of each array, ``(A,)``.
        compared: numbers of those that are compared with each other, ``(B,)``.
        chosen: entries of the sketch, counted from the first of all arrays, ``(K,)``.
        groups: the array of each of them, ``(K,)``.
    """

    def __init__(self, sizes: Mapping[str, int], kept: int = SKETCH) -> None:
        self.names = [name for name, size in sizes.items() if size]
        self.sizes = np.array([sizes[name] for name in self.names], np.int64)
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.compared = np.sort(
            np.argsort(-self.sizes, kind="stable")[:_ARRAYS]
        )
        fewest = min(_FEWEST, max(kept // max(len(self.names), 1), 1))
        counts = np.maximum(
            kept * self.sizes // max(self.sizes.sum(), 1), fewest
        )
        chosen = [np.empty(0, np.int64)]
        for start, size, count in zip(
            self.starts, self.sizes, counts, strict=True
        ):
            chosen.append(start + _spread(size, count))
        self.chosen = np.concatenate(chosen)
        lengths = [len(entries) for entries in chosen[1:]]
        self.groups = np.repeat(np.arange(len(self.names)), lengths)


def _spread(size: int, count: int) -> Integers:
    """At most ``count`` of the numbers below ``size``, evenly spread."""
    places = np.linspace(0, size - 1, min(size, count))
    return np.unique(places.astype(np.int64))


class LeastLikelyScale(NamedTuple):
    """The scale of an array in a round that is the least likely to be so small.

    Attributes:
        chance: the probability of a scale at most as large.
        round: number of the round, from 0.
        array: number of the array; the number of arrays stands for all of them together.
        scale: the estimated standard deviation over the claimed one.
    """

    chance: float
    round: int
    array: int
    scale: float


class NoiseSummary:
    """The noise of rounds so far, over its claimed standard deviation.

    Attributes:
        rounds: number of them.
        amounts: sums of `Law.moment_terms` of each array in all rounds, ``(A,)``.
        largest: size of the largest value of each array, ``(A,)``.
        worst: the least likely small scale of an array in a round.
        still: entries without any noise so far, counted from the first of all arrays.
        agree: sums of products of signs of two arrays' first values, ``(B, B)``.
        apart: largest difference of sizes of their first values, ``(B, B)``.

    The `rows` of rounds: the "sketch" is the chosen entries of the first rounds, ``(rounds, K)``;
    "marks" are some of them in all rounds, ``(rounds, ≤ 16)``; "heads" are the first values of the
    arrays in the first rounds, and of all in a row, ``(rounds, B + 1, 8)``, NaN where there are
    fewer.
    """

    def __init__(self, layout: SketchLayout, law: Law) -> None:
        self.layout = layout
        self.law = law
        self.rounds = 0
        arrays = len(layout.sizes)
        compared = len(layout.compared)
        self.amounts = np.zeros(arrays)
        self.largest = np.zeros(arrays)
        self.worst = LeastLikelyScale(1.0, 0, arrays, 1.0)
        self.still = np.empty(0, np.int64)
        self.agree = np.zeros((compared, compared))
        self.apart = np.zeros((compared, compared))
        self._marked = _spread(len(layout.chosen), _MARKS)
        self._shapes = {  # of one round's row
            "sketch": layout.chosen.shape,
            "marks": self._marked.shape,
            "heads": (compared + 1, PREFIX),
        }
        self._rows: dict[str, list[Floats]] = {
            name: [] for name in self._shapes
        }

    def rows(self, name: str) -> Floats:
        """The "sketch", "marks" or "heads" of all rounds that have them, one after another."""
        return np.array(self._rows[name], np.float64).reshape(
            -1, *self._shapes[name]
        )

    def add(self, parts: Sequence[np.ndarray], claims: Floats) -> bool:
        """Take in a round, unless one of its values is not finite.

        Args:
            parts: the noise of each array, flat.
            claims: standard deviations that are claimed, ``(A,)``.

        Returns:
            Whether all values are finite.
        """
        sizes = self.layout.sizes
        amounts = np.zeros(len(sizes))
        largest = np.zeros(len(sizes))
        with np.errstate(all="ignore"):
            for number, (part, claim) in enumerate(
                zip(parts, claims, strict=True)
            ):
                amounts[number], largest[number] = self._measured(part, claim)
        if not np.isfinite(amounts.sum() + largest.sum()):
            return False
        self.amounts += amounts
        np.maximum(self.largest, largest, out=self.largest)
        counts = np.append(sizes, sizes.sum())
        scales = self.law.scales(np.append(amounts, amounts.sum()), counts)
        chances = self.law.scale_cdf(counts, scales + ROUNDING)
        array = int(chances.argmin())
        if chances[array] < self.worst.chance:
            self.worst = LeastLikelyScale(
                float(chances[array]), self.rounds, array, float(scales[array])
            )
        self._follow_still(parts)
        self._keep(parts, claims)
        self.rounds += 1
        return True

    def _measured(self, part: np.ndarray, claim: float) -> tuple[float, float]:
        """The amount of an array and the size of its largest value, in claimed units."""
        amount = 0.0
        largest = 0.0
        for start in range(0, len(part), _BLOCK):
            block = np.asarray(part[start : start + _BLOCK], np.float64)
            amount += float(self.law.moment_terms(block).sum())
            largest = max(largest, float(block.max()), -float(block.min()))
        unit = claim**2 if self.law.uses_squares else claim
        return amount / unit, largest / claim

    def _follow_still(self, parts: Sequence[np.ndarray]) -> None:
        if self.rounds:
            if len(self.still):
                self.still = self.still[self._entries(parts, self.still) == 0]
            return
        zeros = [self.still]
        for part, start in zip(parts, self.layout.starts, strict=True):
            if np.count_nonzero(part) < len(part):
                zeros.append(np.flatnonzero(part == 0) + start)
        self.still = np.concatenate(zeros)[:_STILL]

    def _entries(
        self, parts: Sequence[np.ndarray], numbers: Integers
    ) -> Floats:
        """Entries of all arrays in a row, by their numbers in ascending order."""
        starts = self.layout.starts
        by_array = np.split(numbers, np.searchsorted(numbers, starts)[1:])
        entries = [
            np.asarray(part[of_array - start], np.float64)
            for part, of_array, start in zip(
                parts, by_array, starts, strict=True
            )
        ]
        return np.concatenate(entries)

    def _keep(self, parts: Sequence[np.ndarray], claims: Floats) -> None:
        layout = self.layout
        sketch = self._entries(parts, layout.chosen) / claims[layout.groups]
        self._rows["marks"].append(sketch[self._marked])
        if self.rounds < _ROUNDS:
            self._rows["sketch"].append(sketch)
        heads = np.full((len(layout.compared), HEAD), np.nan)
        for row, number in zip(heads, layout.compared, strict=True):
            head = parts[number][:HEAD]
            row[: len(head)] = head / claims[number]
        if self.rounds < _SEEDED:
            prefixes = heads[:, :PREFIX]
            in_a_row = prefixes[np.isfinite(prefixes)][
                :PREFIX
            ]  # across short arrays
            last = np.full((1, PREFIX), np.nan)
            last[0, : len(in_a_row)] = in_a_row
            self._rows["heads"].append(np.concatenate([prefixes, last]))
        signs = np.sign(np.nan_to_num(heads)).astype(np.float32)
        self.agree += signs @ signs.T
        first = np.abs(heads[:, :EQUAL])
        differences = np.abs(first[:, None] - first)
        # Over the values that both arrays have; the others are NaN, which fmax ignores.
        np.fmax(self.apart, np.fmax.reduce(differences, axis=2), out=self.apart)

    def state(self) -> dict[str, np.ndarray]:
        """The summary as named arrays."""
        names = ("rounds", *_SUMS, "still")
        sums = {name: np.array(getattr(self, name)) for name in names}
        return sums | {name: self.rows(name) for name in self._rows}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned.

        Raises:
            ArgumentError: if that is of other arrays.
        """
        for name in _SUMS:
            _check_shape(name, state[name], np.shape(getattr(self, name)), 0)
        for name, shape in self._shapes.items():
            _check_shape(name, state[name], shape, 1)
        for name in _SUMS:
            setattr(self, name, state[name].copy())
        chance, number, array, scale = state["worst"].tolist()
        self.worst = LeastLikelyScale(chance, int(number), int(array), scale)
        self._rows = {name: list(state[name]) for name in self._rows}
        self.still = state["still"].astype(np.int64)
        self.rounds = int(state["rounds"])


def _check_shape(
    name: str, array: np.ndarray, shape: tuple[int, ...], first_axis: int
) -> None:
    if array.shape[first_axis:] != shape or array.dtype.kind != "f":
        raise_invalid(
            f"{name}.shape",
            array.shape[first_axis:],
            f"to be {shape}, of real numbers",
        )
