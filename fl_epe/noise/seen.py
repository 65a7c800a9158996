"""A summary of noise: exact sums of each array, and a sketch of each round."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fl_epe.checks import Floats, Integers, raise_invalid
from fl_epe.noise.laws import PREFIX, ROUNDING, Law

HEAD_LENGTH = 256
"""Number of first values of an array that are compared with those of other arrays."""
EQUAL_LENGTH = 16
"""Number of first values that are compared to find equal noise."""
SKETCH_SIZE = 1024
"""Number of coordinates of a round in the sketch of a run."""

_BLOCK_SIZE = 1 << 15  # entries that are converted to float64 at a time
_MAX_COMPARED_ARRAYS = 256  # the largest arrays are compared with each other
_SKETCHED_ROUNDS = 512  # number of first rounds that have a sketch
_MARKED_COORDINATES = 16  # number of coordinates that are kept of every round
_ROUNDS_WITH_HEADS = 4  # number of first rounds whose seeds are searched for
# Largest number of coordinates without noise that are tracked.
_MAX_STILL = 1 << 18
# Number of coordinates of a small array in the sketch, unless arrays are too many.
_MIN_PER_ARRAY = 8

# Names of the attributes of `NoiseSummary` that are saved in a checkpoint.
_SUMS = ("amounts", "largest", "worst", "agree", "apart")


class SketchLayout:
    """The arrays of a release, and the positions of the entries that are kept.

    The entries of all arrays are numbered consecutively from 0, in the order of the arrays.

    Args:
        sizes: number of entries of each array, by name. Empty arrays are left out; at least one
            array must have entries.
        sketch_size: approximate number of entries in the sketch.

    Attributes:
        num_entries: number of entries of each array, by name.
        names: names of the arrays.
        sizes: number of entries of each array, ``(A,)``.
        starts: index of the first entry of each array, ``(A,)``.
        compared: indices of the arrays that are compared with each other, ``(B,)``.
        chosen: indices of the entries in the sketch, ``(K,)``.
        groups: index of the array of each entry in the sketch, ``(K,)``.
    """

    def __init__(
        self, sizes: Mapping[str, int], sketch_size: int = SKETCH_SIZE
    ) -> None:
        self.num_entries = {name: size for name, size in sizes.items() if size}
        self.names = list(self.num_entries)
        self.sizes = np.array(list(self.num_entries.values()), np.int64)
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.compared = np.sort(
            np.argsort(-self.sizes, kind="stable")[:_MAX_COMPARED_ARRAYS]
        )
        equal_share = max(sketch_size // len(self.names), 1)
        counts = np.maximum(
            sketch_size * self.sizes // self.sizes.sum(),
            min(_MIN_PER_ARRAY, equal_share),
        )
        chosen = [
            start + _spread(size, count)
            for start, size, count in zip(
                self.starts, self.sizes, counts, strict=True
            )
        ]
        self.chosen = np.concatenate(chosen)
        lengths = [len(entries) for entries in chosen]
        self.groups = np.repeat(np.arange(len(self.names)), lengths)


def _spread(size: int, count: int) -> Integers:
    """At most ``count`` of the integers from 0 to ``size - 1``, evenly spread."""
    places = np.linspace(0, size - 1, min(size, count))
    return np.unique(places.astype(np.int64))


class LeastLikelyScale(NamedTuple):
    """The array and round whose scale is the least likely to be as small as it is.

    Attributes:
        p_value: the probability of a scale that is at most as large.
        round: index of the round, from 0.
        array: index of the array; the index after the last one stands for all arrays together.
        scale: the estimated standard deviation divided by the claimed one.
    """

    p_value: float
    round: int
    array: int
    scale: float


class NoiseSummary:
    """A summary of the noise of all rounds so far, in units of its claimed standard deviation.

    Attributes:
        rounds: number of rounds so far.
        amounts: sum of `Law.moment_terms` of each array in all rounds, ``(A,)``.
        largest: largest absolute value of each array, ``(A,)``.
        worst: the array and round whose scale is the least likely to be as small as it is.
        still: indices of entries without any noise so far; at most 2^18, those with the smallest
            indices in the first round.
        agree: for each two arrays the sum of the products of the signs of corresponding first
            values, ``(B, B)``.
        apart: for each two arrays the largest difference between the absolute values of
            corresponding first values, ``(B, B)``.

    `rows` returns three kinds of values by round. The "sketch" has the chosen entries of the
    first 512 rounds, ``(rounds, K)``. "marks" has at most 16 of these entries in all rounds,
    ``(rounds, ≤ 16)``. "heads" has the first values of each array and of all arrays concatenated,
    in the first 4 rounds, ``(rounds, B + 1, 8)``, padded with NaN.
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
        self._marked = _spread(len(layout.chosen), _MARKED_COORDINATES)
        # Shapes of the values of one round.
        self._shapes = {
            "sketch": layout.chosen.shape,
            "marks": self._marked.shape,
            "heads": (compared + 1, PREFIX),
        }
        self._rows: dict[str, list[Floats]] = {
            name: [] for name in self._shapes
        }

    def rows(self, name: str) -> Floats:
        """The "sketch", "marks" or "heads" of all rounds that have them, in their order."""
        return np.array(self._rows[name], np.float64).reshape(
            -1, *self._shapes[name]
        )

    def add(self, parts: Sequence[np.ndarray], claims: Floats) -> bool:
        """Add a round, unless one of its values is not finite.

        Args:
            parts: the noise of each array, flat.
            claims: claimed standard deviation of each array, ``(A,)``.

        Returns:
            Whether all values are finite.
        """
        sizes = self.layout.sizes
        amounts = np.zeros(len(sizes))
        largest = np.zeros(len(sizes))
        with np.errstate(all="ignore"):
            for array, (part, claim) in enumerate(
                zip(parts, claims, strict=True)
            ):
                amounts[array], largest[array] = self._measured(part, claim)
        if not np.isfinite(amounts.sum() + largest.sum()):
            return False
        self.amounts += amounts
        np.maximum(self.largest, largest, out=self.largest)
        counts = np.append(sizes, sizes.sum())
        scales = self.law.scales(np.append(amounts, amounts.sum()), counts)
        p_values = self.law.scale_cdf(counts, scales + ROUNDING)
        worst = int(p_values.argmin())
        if p_values[worst] < self.worst.p_value:
            self.worst = LeastLikelyScale(
                float(p_values[worst]), self.rounds, worst, float(scales[worst])
            )
        self._update_still(parts)
        self._add_rows(parts, claims)
        self.rounds += 1
        return True

    def _measured(self, part: np.ndarray, claim: float) -> tuple[float, float]:
        """The amount of an array and its largest absolute value, in claimed units."""
        amount = 0.0
        largest = 0.0
        for start in range(0, len(part), _BLOCK_SIZE):
            block = np.asarray(part[start : start + _BLOCK_SIZE], np.float64)
            amount += float(self.law.moment_terms(block).sum())
            largest = max(largest, float(block.max()), -float(block.min()))
        unit = claim**2 if self.law.uses_squares else claim
        return amount / unit, largest / claim

    def _update_still(self, parts: Sequence[np.ndarray]) -> None:
        """Find the entries without noise in the first round, and later remove those with noise."""
        if self.rounds and len(self.still):
            self.still = self.still[self._entries(parts, self.still) == 0]
        if self.rounds:
            return
        zeros = [self.still]
        for part, start in zip(parts, self.layout.starts, strict=True):
            if np.count_nonzero(part) < len(part):
                zeros.append(np.flatnonzero(part == 0) + start)
        self.still = np.concatenate(zeros)[:_MAX_STILL]

    def _entries(
        self, parts: Sequence[np.ndarray], indices: Integers
    ) -> Floats:
        """The entries with these indices, which must be in ascending order."""
        starts = self.layout.starts
        by_array = np.split(indices, np.searchsorted(indices, starts)[1:])
        entries = [
            np.asarray(part[of_array - start], np.float64)
            for part, of_array, start in zip(
                parts, by_array, starts, strict=True
            )
        ]
        return np.concatenate(entries)

    def _add_rows(self, parts: Sequence[np.ndarray], claims: Floats) -> None:
        """Add a round to `rows`, and compare the first values of its arrays."""
        layout = self.layout
        sketch = self._entries(parts, layout.chosen) / claims[layout.groups]
        self._rows["marks"].append(sketch[self._marked])
        if self.rounds < _SKETCHED_ROUNDS:
            self._rows["sketch"].append(sketch)
        heads = np.full((len(layout.compared), HEAD_LENGTH), np.nan)
        for row, array in zip(heads, layout.compared, strict=True):
            head = parts[array][:HEAD_LENGTH]
            row[: len(head)] = head / claims[array]
        if self.rounds < _ROUNDS_WITH_HEADS:
            prefixes = heads[:, :PREFIX]
            # If arrays are short, a generator's first values are spread over several.
            concatenated = prefixes[np.isfinite(prefixes)][:PREFIX]
            prefix_of_all = np.full((1, PREFIX), np.nan)
            prefix_of_all[0, : len(concatenated)] = concatenated
            self._rows["heads"].append(
                np.concatenate([prefixes, prefix_of_all])
            )
        signs = np.sign(np.nan_to_num(heads)).astype(np.float32)
        self.agree += signs @ signs.T
        magnitudes = np.abs(heads[:, :EQUAL_LENGTH])
        differences = np.abs(magnitudes[:, None] - magnitudes)
        # A value is NaN if its array is shorter; fmax ignores it.
        np.fmax(self.apart, np.fmax.reduce(differences, axis=2), out=self.apart)

    def state(self) -> dict[str, np.ndarray]:
        """The summary as named arrays."""
        names = ("rounds", *_SUMS, "still")
        sums = {name: np.array(getattr(self, name)) for name in names}
        return sums | {name: self.rows(name) for name in self._rows}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a `state`.

        Raises:
            ArgumentError: if the state is of other arrays.
        """
        for name in _SUMS:
            _check_shape(name, state[name], np.shape(getattr(self, name)), 0)
        for name, shape in self._shapes.items():
            _check_shape(name, state[name], shape, 1)
        for name in _SUMS:
            setattr(self, name, state[name].copy())
        p_value, index, array, scale = state["worst"].tolist()
        self.worst = LeastLikelyScale(p_value, int(index), int(array), scale)
        self._rows = {name: list(state[name]) for name in self._rows}
        self.still = state["still"].astype(np.int64)
        self.rounds = int(state["rounds"])


def _check_shape(
    name: str, array: np.ndarray, shape: tuple[int, ...], first_axis: int
) -> None:
    """Check that an array has real numbers, and this shape from ``first_axis`` on."""
    if array.shape[first_axis:] != shape or array.dtype.kind != "f":
        raise_invalid(
            f"{name}.shape",
            array.shape[first_axis:],
            f"to be {shape}, of real numbers",
        )
