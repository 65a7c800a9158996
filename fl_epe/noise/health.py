"""`NoiseHealth` and `check_noise`: the noise that was added, against the noise that is claimed.

All checks together fail for noise that is as claimed with a probability of at most ``level``: each
has an equal part of it, fixed beforehand, and an exact or conservative p-value, for any number of
rounds, arrays and entries (`simulations/studies/noise_health.py`). It holds for one look at the
checks, at the end.

Examples:
    >>> from fl_epe.noise import told
    >>> rng = np.random.default_rng(3141592653)
    >>> weights, bias = rng.normal(0, 2.0, (5, 100)), rng.normal(0, 2.0, 100)
    >>> told(check_noise({"weights": weights, "bias": bias}, std=2.0))
    'as claimed'
    >>> found = check_noise({"weights": weights, "bias": weights[0]}, std=2.0)
    >>> [(check.name, check.severity) for check in found if check.outcome == "failed"]
    [('independence of arrays', 'critical'), ('values used once', 'critical')]
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fl_epe.checks import check_probability, raise_invalid
from fl_epe.noise import amounts, dependence, shape
from fl_epe.noise.check import Check, fault, sentences
from fl_epe.noise.laws import LAWS, Distribution
from fl_epe.noise.seen import SKETCH, Seen, SketchLayout

"""A law that noise can be claimed to have."""

Std = float | Mapping[str, float] | None
"""Claimed standard deviation of every coordinate, or by array; ``None`` if it is not known."""

_CHECKS: tuple[Callable[[Seen, float], Check], ...] = (
    amounts.arrays_without_noise,
    amounts.still_coordinates,
    dependence.between_arrays,
    dependence.between_rounds,
    dependence.copies,
    dependence.seed,
    amounts.scale,
    amounts.scale_of_arrays,
    amounts.scale_of_rounds,
    shape.distribution,
    shape.tails,
    shape.grid,
)

_AT_HAND = 1 << 18  # values that are kept of noise at hand, all releases together

RUN_LEVEL = 5e-4
"""Probability that correct noise of an audited run fails a check, at most."""


class NoiseHealth:
    """Collects the noise of a run, round by round, and checks it.

    Memory does not grow with the model but for its shape: sums of each array, some 1,000
    coordinates (``kept``) of each of the first 500 rounds, and 16 of every round.

    Args:
        arrays: sizes or shapes of the arrays by name, into which one flat array is then split; by
            default as in the first round.
        std: claimed standard deviation in every round, if ``add`` says no other.
        distribution: claimed law.
        level: probability that correct noise fails a check, at most.
        kept: coordinates of a round that are kept, about.

    Raises:
        ValueError: for another distribution, or a level out of range.
    """

    def __init__(
        self,
        arrays: Mapping[str, int | Sequence[int]] | None = None,
        std: Std = None,
        *,
        distribution: Distribution = "gaussian",
        level: float = 0.005,
        kept: int = SKETCH,
    ) -> None:
        if distribution not in LAWS:
            raise_invalid(
                "distribution", distribution, f"to be one of {', '.join(LAWS)}"
            )
        check_probability("level", level)
        self._law, self._level, self._std = LAWS[distribution], level, std
        self._unusable, self._reason = 0, ""
        self._kept = kept
        self._seen: Seen | None = None
        if arrays is not None:
            self._begin({name: int(np.prod(shape)) for name, shape in arrays.items()})

    def add(self, noise: Any, std: Std = None) -> None:
        """Take in a round: what was released less the exact clipped sum.

        Args:
            noise: arrays or tensors by name, a sequence of them, or one.
            std: claimed standard deviation, if it is another one than that of all rounds.

        Raises:
            ValueError: for other arrays than in the first round.
        """
        parts = self._parts(noise)
        seen = self._seen or self._begin(
            {name: part.size for name, part in parts.items()}
        )
        names, sizes = seen.layout.names, seen.layout.sizes.tolist()
        if len(parts) == 1 < len(names) and (
            flat := next(iter(parts.values()))
        ).size == sum(sizes):
            parts = dict(
                zip(names, np.split(flat, seen.layout.starts[1:]), strict=True)
            )
        found = {name: part.size for name, part in parts.items() if part.size}
        if found != dict(zip(names, sizes, strict=True)):
            raise_invalid(
                "noise", found, f"to have the arrays and sizes of before, {names[:5]}…"
            )
        std = self._std if std is None else std
        claimed = [std.get(name) if isinstance(std, Mapping) else std for name in names]
        if not names or not all(
            one is not None and 0 < one < np.inf for one in claimed
        ):
            self.skip("no standard deviation above 0 is claimed for its noise")
        elif not seen.add(
            [parts[name] for name in names], np.array(claimed, np.float64)
        ):
            self.skip("its noise has NaN or infinite entries")

    def skip(self, reason: str) -> None:
        """Count a round whose noise cannot be seen, for a reason; only the first one is kept."""
        self._unusable, self._reason = self._unusable + 1, self._reason or reason

    def _begin(self, sizes: Mapping[str, int]) -> Seen:
        self._seen = Seen(SketchLayout(sizes, self._kept), self._law)
        return self._seen

    def _parts(self, noise: Any) -> dict[str, np.ndarray]:
        if isinstance(noise, Mapping):
            return {str(name): _flat(one) for name, one in noise.items()}
        arrays = noise if isinstance(noise, list | tuple) else [noise]
        names = self._seen.layout.names if self._seen is not None else []
        if len(names) != len(arrays):
            names = [f"array {i + 1}" for i in range(len(arrays))]
        return dict(zip(names, map(_flat, arrays), strict=True))

    def checks(self) -> list[Check]:
        """What the noise so far says; a failure first names what is worst for privacy."""
        found = []
        if self._seen is not None and self._seen.rounds:
            level = self._level / len(_CHECKS)
            found = [check(self._seen, level) for check in _CHECKS]
        if self._unusable or not found:
            claim, measured = (
                "the noise of each round is seen",
                f"{self._unusable} rounds were not",
            )
            why = (
                f"Of the first of them, {self._reason}"
                if self._reason
                else "No round was seen"
            )
            found.append(Check("rounds", "unknown", claim, measured, why))
        return found

    def findings(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What `checks` say, in sentences, and the worst fault that they found, if any."""
        checks = self.checks()
        return sentences(checks), tuple(filter(None, [fault(checks)]))

    def state(self) -> dict[str, np.ndarray]:
        """What a run that is resumed needs, as named arrays."""
        found = {"unusable": np.array(self._unusable), "reason": np.array(self._reason)}
        if self._seen is None:
            return found
        layout = {
            "names": np.array(self._seen.layout.names),
            "sizes": self._seen.layout.sizes,
        }
        return found | layout | self._seen.state()

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned, so that noise that repeats after it is found, too.

        Raises:
            ValueError: if that is of other arrays.
        """
        self._unusable, self._reason = int(state["unusable"]), str(state["reason"])
        if "names" in state:
            sizes = dict(
                zip(state["names"].tolist(), state["sizes"].tolist(), strict=True)
            )
            (self._seen or self._begin(sizes)).restore(state)


def _flat(array: Any) -> np.ndarray:
    """Of an array or a tensor of torch, without a copy where that can be."""
    tensor = array.detach().cpu() if hasattr(array, "detach") else array
    return np.asarray(tensor).reshape(-1)


def check_noise(
    noise: Any,
    std: Std,
    *,
    distribution: Distribution = "gaussian",
    level: float = 0.005,
) -> list[Check]:
    """Check noise that is at hand: what was released less the exact sum.

    Args:
        noise: of one release, an array ``(d,)`` or arrays by name; of several, an array ``(T, d)``
            or a list with the array, list or table of arrays of each.
        std: claimed standard deviation of every coordinate, or by array.
        distribution: claimed law.
        level: probability that correct noise fails a check, at most.

    Returns:
        Each check with its outcome; `told` says what they mean together.

    Raises:
        ValueError: for arrays that change from release to release, or a bad argument.
    """
    rounds = noise if isinstance(noise, list | tuple) else [noise]
    if not isinstance(noise, Mapping | list | tuple) and np.ndim(noise) > 1:
        rounds = list(noise)
    kept = max(_AT_HAND // max(len(rounds), 1), SKETCH)
    health = NoiseHealth(None, std, distribution=distribution, level=level, kept=kept)
    for one in rounds:
        health.add(one)
    return health.checks()
