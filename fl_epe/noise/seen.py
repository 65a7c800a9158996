"""What is kept of noise while it is seen: exact sums of each array, and a sketch of each round."""

from collections.abc import Mapping, Sequence

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
        self.compared = np.sort(np.argsort(-self.sizes, kind="stable")[:_ARRAYS])
        least = min(8, max(kept // max(len(self.names), 1), 1))
        wanted = np.maximum(kept * self.sizes // max(self.sizes.sum(), 1), least)
        own = [
            np.unique(np.linspace(0, n - 1, min(n, k)).astype(np.int64))
            for n, k in zip(self.sizes, wanted, strict=True)
        ]
        chosen = [start + each for start, each in zip(self.starts, own, strict=True)]
        self.chosen = np.concatenate([*chosen, np.empty(0, np.int64)])
        self.groups = np.repeat(np.arange(len(self.names)), [len(each) for each in own])


class Seen:
    """The noise of rounds so far, over its claimed standard deviation.

    Attributes:
        rounds: number of them.
        amounts: `Law.amounts` of each array in all rounds, ``(A,)``.
        largest: size of the largest value of each array, ``(A,)``.
        worst: of the least likely small scale of an array in a round: its probability, round,
            array (their number: all), and scale.
        still: entries without any noise so far, counted from the first of all arrays.
        agree: sums of products of signs of two arrays' first values, ``(B, B)``.
        apart: largest difference of sizes of their first values, ``(B, B)``.

    The `rows` of rounds: the "sketch" is the chosen entries of the first rounds, ``(rounds, K)``;
    "marks" are some of them in all rounds, ``(rounds, ≤ 16)``; "heads" are the first values of the
    arrays in the first rounds, and of all in a row, ``(rounds, B + 1, 8)``, NaN where there are
    fewer.
    """

    def __init__(self, layout: SketchLayout, law: Law) -> None:
        self.layout, self.law, self.rounds = layout, law, 0
        arrays, compared, width = (
            len(layout.sizes),
            len(layout.compared),
            len(layout.chosen),
        )
        self.amounts, self.largest = np.zeros(arrays), np.zeros(arrays)
        self.worst = np.array([1.0, 0.0, arrays, 1.0])
        self.still = np.empty(0, np.int64)
        self.agree, self.apart = (
            np.zeros((compared, compared)),
            np.zeros((compared, compared)),
        )
        self._marked = np.unique(
            np.linspace(0, width - 1, min(_MARKS, width)).astype(np.int64)
        )
        self._rows: dict[str, list[Floats]] = {name: [] for name in self._shapes()}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the rows of what is kept of each round."""
        heads = len(self.layout.compared) + 1, PREFIX
        return {
            "sketch": self.layout.chosen.shape,
            "marks": self._marked.shape,
            "heads": heads,
        }

    def rows(self, name: str) -> Floats:
        """The "sketch", "marks" or "heads" of all rounds that have them, one after another."""
        return np.array(self._rows[name], np.float64).reshape(-1, *self._shapes()[name])

    def add(self, parts: Sequence[np.ndarray], claims: Floats) -> bool:
        """Take in a round; nothing of it where a value is not finite, which is returned.

        Args:
            parts: the noise of each array, flat.
            claims: standard deviations that are claimed, ``(A,)``.
        """
        sizes = self.layout.sizes
        with np.errstate(all="ignore"):
            found = [self._measured(*one) for one in zip(parts, claims, strict=True)]
        amounts, largest = np.array(found).reshape(-1, 2).T
        if not np.isfinite(amounts.sum() + largest.sum()):
            return False
        self.amounts += amounts
        np.maximum(self.largest, largest, out=self.largest)
        counts = np.append(sizes, sizes.sum())
        scales = self.law.scales(np.append(amounts, amounts.sum()), counts)
        chances = self.law.below(counts, scales + ROUNDING)
        if chances[least := int(chances.argmin())] < self.worst[0]:
            self.worst = np.array([chances[least], self.rounds, least, scales[least]])
        self._follow_still(parts)
        self._keep(parts, claims)
        self.rounds += 1
        return True

    def _measured(self, part: np.ndarray, claim: float) -> tuple[float, float]:
        amount, largest = 0.0, 0.0
        for start in range(0, len(part), _BLOCK):
            block = np.asarray(part[start : start + _BLOCK], np.float64)
            amount += float(self.law.amounts(block).sum())
            largest = max(largest, float(block.max()), -float(block.min()))
        return amount / (claim**2 if self.law.root else claim), largest / claim

    def _follow_still(self, parts: Sequence[np.ndarray]) -> None:
        starts = self.layout.starts
        if not self.rounds:
            zeros = [
                np.flatnonzero(part == 0) + start
                for part, start in zip(parts, starts, strict=True)
                if np.count_nonzero(part) < len(part)
            ]
            self.still = np.concatenate([*zeros, self.still])[:_STILL]
        elif len(self.still):
            self.still = self.still[self._entries(parts, self.still) == 0]

    def _entries(self, parts: Sequence[np.ndarray], which: Integers) -> Floats:
        """Entries of all arrays in a row, by their numbers in ascending order."""
        bounds = np.searchsorted(which, self.layout.starts)
        own = np.split(which, bounds[1:])
        taken = [
            p[w - s] for p, w, s in zip(parts, own, self.layout.starts, strict=True)
        ]
        return np.concatenate([np.asarray(each, np.float64) for each in taken])

    def _keep(self, parts: Sequence[np.ndarray], claims: Floats) -> None:
        layout = self.layout
        kept = self._entries(parts, layout.chosen) / claims[layout.groups]
        self._rows["marks"].append(kept[self._marked])
        if self.rounds < _ROUNDS:
            self._rows["sketch"].append(kept)
        heads = np.full((len(layout.compared), HEAD), np.nan)
        for row, number in zip(heads, layout.compared, strict=True):
            head = parts[number][:HEAD]
            row[: len(head)] = head / claims[number]
        if self.rounds < _SEEDED:
            whole = heads[:, :PREFIX]
            first = whole[np.isfinite(whole)][:PREFIX]  # of all arrays in a row
            padded = np.append(first, np.full(PREFIX - len(first), np.nan))
            self._rows["heads"].append(np.concatenate([whole, padded[None]]))
        signs = np.sign(np.nan_to_num(heads)).astype(np.float32)
        self.agree += signs @ signs.T
        few = np.abs(heads[:, :EQUAL])
        apart = np.fmax.reduce(
            np.abs(few[:, None] - few), axis=2
        )  # of those that both have
        np.fmax(self.apart, apart, out=self.apart)

    def state(self) -> dict[str, np.ndarray]:
        """All that was kept, as named arrays."""
        found = {
            name: np.array(getattr(self, name)) for name in ("rounds", *_SUMS, "still")
        }
        return found | {name: self.rows(name) for name in self._rows}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned.

        Raises:
            ArgumentError: if that is of other arrays.
        """
        wanted = {name: getattr(self, name).shape for name in _SUMS} | self._shapes()
        for name, shape in wanted.items():
            found = state[name].shape if name in _SUMS else state[name].shape[1:]
            if found != shape or state[name].dtype.kind != "f":
                raise_invalid(f"{name}.shape", found, f"to be {shape}, of real numbers")
        for name in _SUMS:
            setattr(self, name, state[name].copy())
        self._rows = {name: list(state[name]) for name in self._rows}
        self.still, self.rounds = state["still"].astype(np.int64), int(state["rounds"])


_SUMS = ("amounts", "largest", "worst", "agree", "apart")
