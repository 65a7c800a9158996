"""`NoiseHealth` and `check_noise` compare noise that was added with noise that is claimed.

If the noise is as claimed, the probability that any check fails is at most ``level``. Each
check gets an equal part of ``level``, fixed beforehand, and has an exact or conservative
p-value for any number of rounds, arrays and entries (`simulations/studies/noise_health.py`).
This holds if the checks are read once, at the end.

Examples:
    >>> from fl_epe.noise import told
    >>> rng = np.random.default_rng(3141592653)
    >>> weights, bias = rng.normal(0, 2.0, (5, 100)), rng.normal(0, 2.0, 100)
    >>> told(check_noise({"weights": weights, "bias": bias}, std=2.0))
    'as claimed'
    >>> checks = check_noise({"weights": weights, "bias": weights[0]}, std=2.0)
    >>> [(check.name, check.severity) for check in checks if check.outcome == "failed"]
    [('independence of arrays', 'critical'), ('values used once', 'critical')]
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fl_epe.checks import check_probability, raise_invalid
from fl_epe.noise import amounts, dependence, shape
from fl_epe.noise.check import Check, fault, sentences
from fl_epe.noise.laws import LAWS, Distribution
from fl_epe.noise.seen import SKETCH_SIZE, NoiseSummary, SketchLayout
from fl_epe.wording import counted

Std = float | Mapping[str, float] | None
"""Claimed standard deviation of every coordinate, or by array; ``None`` if it is not known."""

_CHECKS: tuple[Callable[[NoiseSummary, float], Check], ...] = (
    amounts.arrays_without_noise,
    amounts.coordinates_without_noise,
    dependence.between_arrays,
    dependence.between_rounds,
    dependence.used_again,
    dependence.known_seed,
    amounts.scale,
    amounts.scale_of_arrays,
    amounts.scale_of_rounds,
    shape.distribution,
    shape.tails,
    shape.grid,
)

# Approximate number of values that `check_noise` keeps of all releases together.
_MAX_VALUES = 1 << 18

_MAX_LISTED_ARRAYS = 5  # of an error's message

RUN_LEVEL = 5e-4
"""Largest probability that correct noise of an audited run fails a check."""


class NoiseHealth:
    """Collects the noise of a run, round by round, and checks it.

    Memory grows with the number of arrays, not with their sizes: it holds sums of each array, some
    1,000 coordinates of each of the first 512 rounds, and 16 coordinates of each round of the run.

    Args:
        arrays: sizes or shapes of the arrays by name, so that `add` can split a flat array into
            them; by default the arrays of the first round. Some may be empty, but not all.
        std: claimed standard deviation in every round for which ``add`` gets none.
        distribution: claimed distribution.
        level: largest probability that correct noise fails a check.
        coordinates: approximate number of coordinates of a round that are kept.

    Raises:
        ValueError: for an unknown distribution, or a level outside (0, 1).
    """

    def __init__(
        self,
        arrays: Mapping[str, int | Sequence[int]] | None = None,
        std: Std = None,
        *,
        distribution: Distribution = "gaussian",
        level: float = 0.005,
        coordinates: int = SKETCH_SIZE,
    ) -> None:
        if distribution not in LAWS:
            raise_invalid(
                "distribution", distribution, f"to be one of {', '.join(LAWS)}"
            )
        check_probability("level", level)
        self._law = LAWS[distribution]
        self._level = level
        self._std = std
        self._coordinates = coordinates
        # Number of rounds whose noise is not known, and the reason for the first of them.
        self._unusable = 0
        self._reason = ""
        self._summary: NoiseSummary | None = None
        if arrays is not None:
            self._begin(
                {name: int(np.prod(shape)) for name, shape in arrays.items()}
            )

    def add(self, noise: Any, std: Std = None) -> None:
        """Add the noise of a round: the released sum minus the exact clipped sum.

        Args:
            noise: arrays or tensors by name, a sequence of them, or one array.
            std: claimed standard deviation in this round, if it is not that of all rounds.

        Raises:
            ValueError: if the arrays differ from those of the first round.
        """
        vectors = self._vectors(noise)
        sizes = {
            name: vector.size for name, vector in vectors.items() if vector.size
        }
        if self._summary is None and not sizes:
            self.skip("it has no entries")
            return
        summary = self._summary or self._begin(sizes)
        names = summary.layout.names
        is_flat = len(vectors) == 1 and len(names) > 1
        if is_flat and sum(sizes.values()) == summary.layout.sizes.sum():
            (flat,) = vectors.values()
            parts = np.split(flat, summary.layout.starts[1:])
            vectors = dict(zip(names, parts, strict=True))
        else:
            _check_arrays("noise", sizes, summary)
        if std is None:
            std = self._std
        claims = [
            std.get(name) if isinstance(std, Mapping) else std for name in names
        ]
        is_claimed = all(
            claim is not None and 0 < claim < np.inf for claim in claims
        )
        if not is_claimed:
            self.skip("no standard deviation above 0 is claimed for it")
            return
        parts = [vectors[name] for name in names]
        if not summary.add(parts, np.array(claims, np.float64)):
            self.skip("it has NaN or infinite entries")

    def skip(self, reason: str) -> None:
        """Count a round whose noise is not known; only the first reason is kept."""
        self._unusable += 1
        self._reason = self._reason or reason

    def _begin(self, sizes: Mapping[str, int]) -> NoiseSummary:
        self._summary = NoiseSummary(
            SketchLayout(sizes, self._coordinates), self._law
        )
        return self._summary

    def _vectors(self, noise: Any) -> dict[str, np.ndarray]:
        """The flat arrays by name; arrays without names get those of the first round."""
        if isinstance(noise, Mapping):
            return {str(name): _flat(array) for name, array in noise.items()}
        arrays = noise if isinstance(noise, list | tuple) else [noise]
        names = self._summary.layout.names if self._summary is not None else []
        if len(names) != len(arrays):
            names = [f"array {i + 1}" for i in range(len(arrays))]
        return dict(zip(names, map(_flat, arrays), strict=True))

    def checks(self) -> list[Check]:
        """The checks of the noise so far, in the order of the severity of what they may find."""
        results = []
        if self._summary is not None and self._summary.rounds:
            level = self._level / len(_CHECKS)
            results = [check(self._summary, level) for check in _CHECKS]
        if self._unusable or not results:
            claim = "the noise of each round is known"
            measured = (
                f"the noise of {counted(self._unusable, 'round')} is not known"
            )
            why = "No round was observed"
            if self._reason:
                why = f"The noise of a round is not known: {self._reason}"
            results.append(Check("rounds", "unknown", claim, measured, why))
        return results

    def findings(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The results of `checks` in sentences, and the worst fault that they found, if any."""
        checks = self.checks()
        worst = fault(checks)
        return sentences(checks), (worst,) if worst else ()

    def state(self) -> dict[str, np.ndarray]:
        """The state that a resumed run needs, as named arrays."""
        state = {
            "unusable": np.array(self._unusable),
            "reason": np.array(self._reason),
        }
        if self._summary is None:
            return state
        layout = self._summary.layout
        state |= {"names": np.array(layout.names), "sizes": layout.sizes}
        return state | self._summary.state()

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a `state`, so that noise repeated from earlier rounds is found, too.

        Raises:
            ValueError: if the state is of other arrays.
        """
        self._unusable = int(state["unusable"])
        self._reason = str(state["reason"])
        if "names" in state:
            names = state["names"].tolist()
            sizes = dict(zip(names, state["sizes"].tolist(), strict=True))
            if self._summary is not None:
                _check_arrays("state", sizes, self._summary)
            self._begin(sizes).restore(state)


def _check_arrays(
    name: str, sizes: dict[str, int], summary: NoiseSummary
) -> None:
    """Raise an error unless the argument ``name`` has the arrays of the summary."""
    if sizes != summary.layout.num_entries:
        names = summary.layout.names[:_MAX_LISTED_ARRAYS]
        raise_invalid(
            name,
            sizes,
            f"to have the arrays and sizes of the first round, {names}…",
        )


def _flat(array: Any) -> np.ndarray:
    """An array or a torch tensor as a vector, without a copy where possible."""
    tensor = array.detach().cpu() if hasattr(array, "detach") else array
    return np.asarray(tensor).reshape(-1)


def check_noise(
    noise: Any,
    std: Std,
    *,
    distribution: Distribution = "gaussian",
    level: float = 0.005,
) -> list[Check]:
    """Check noise that is available as arrays: each release minus the exact sum.

    Args:
        noise: for one release, an array ``(d,)`` or arrays by name; for several releases, an
            array ``(T, d)`` or a list with the noise of each.
        std: claimed standard deviation of every coordinate, or by array.
        distribution: claimed distribution.
        level: largest probability that correct noise fails a check.

    Returns:
        Each check with its outcome; `told` gives their common result.

    Raises:
        ValueError: if the arrays change from release to release, or for an invalid argument.
    """
    if isinstance(noise, list | tuple):
        releases = noise
    elif not isinstance(noise, Mapping) and np.ndim(noise) > 1:
        releases = list(noise)
    else:
        releases = [noise]
    coordinates = max(_MAX_VALUES // max(len(releases), 1), SKETCH_SIZE)
    health = NoiseHealth(
        None,
        std,
        distribution=distribution,
        level=level,
        coordinates=coordinates,
    )
    for release in releases:
        health.add(release)
    return health.checks()
