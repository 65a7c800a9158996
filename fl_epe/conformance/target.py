"""The target of the suite: a mechanism and its privacy claim.

Examples:
    >>> def noisy_sum(updates, rng):
    ...     norms = np.linalg.norm(updates, axis=1, keepdims=True)
    ...     total = (updates / np.maximum(norms, 1.0)).sum(axis=0)
    ...     return total + rng.normal(0, 1.0, total.size)
    >>> target = Target(noisy_sum, noise_multiplier=1.0, delta=1e-5, noise="gaussian")
    >>> round(target.claimed_epsilon, 2), target.noise_std(target.claimed_sensitivity)
    (4.38, 1.0)
"""

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.accounting import noise_at, poisson_epsilon
from fl_epe.checks import (
    Floats,
    check_count,
    check_positive,
    check_probability,
    check_rate,
    checked_type,
    raise_invalid,
)
from fl_epe.conformance import games

Norm = Literal["l1", "l2", "linf"]
Inputs = Literal["any", "finite", "clipped"]
Pair = tuple[Any, Any]

# The norms in which the scale of a law's noise follows from the sensitivity.
_NORMS = {"gaussian": ("l1", "l2"), "laplace": ("l1",)}

# The needed noise multiplier is reduced by this fraction, so that rounding does not fail a claim.
_NOISE_TOLERANCE = 1e-5


# The other records by default: their seed, their number, and their lengths in clip norms.
_OTHERS_SEED = 2022
_NUM_OTHERS = 9
_LENGTH = 3
_CLIPPED_LENGTH = 0.9

_MIN_TRIALS = 40


@functools.lru_cache(maxsize=64)
def _needed_multiplier(
    epsilon: float, delta: float, rate: float, steps: int
) -> float:
    """The noise multiplier that gives this ε, or a slightly smaller multiplier."""
    noise = noise_at(
        lambda z: poisson_epsilon(z, rate, steps, delta),
        epsilon,
        close=_NOISE_TOLERANCE / 10,
    )
    return noise * (1 - _NOISE_TOLERANCE)


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A mechanism with its claim.

    Attributes:
        release: a function from the updates of one step, shape (n, d), to a release: numbers,
            shape (d,), or with ``categories`` a whole number. If it takes a second argument, it
            gets a `numpy.random.Generator` for all its noise; else it draws its own noise.
        epsilon: the claimed ε of all steps together; by default the ε of the noise multiplier.
        delta: the claimed δ, in [0, 1).
        clip_norm: the norm to which updates are clipped.
        norm: the norm of updates and of releases: "l1", "l2" or "linf".
        inputs: the updates that the mechanism must handle: "any", which includes NaN and
            infinity, "finite", or "clipped", if its caller clips them.
        nonnegative: whether no entry of an update is below 0, as with votes.
        adjacency: how neighbouring data sets differ: "add-or-remove", "zero-out" or "substitute".
        zero_update_norm: the norm, in clip norms, of the update of an absent record in
            "zero-out"; above 0 for a mechanism that fails with zeros.
        arrays: the number of entries of each array of an update; they add up to d.
        others: the updates of the other records, shape (n, d); by default nine random updates.
        categories: whether a category is released.
        noise: the law of the noise in each entry, independent between entries and steps;
            left out for another law, or if no release consists of noise alone. The scale
            follows from the claim: Gaussian noise is for a change in L2 (norms "l1" and "l2"),
            and Laplace noise for a change in L1.
        noise_multiplier: the claimed noise multiplier z of Gaussian mechanisms, sampled or not.
        sensitivity: the largest claimed change of a step's release between neighbours, in the
            norm of updates; by default the clip norm, or twice that for "substitute".
        steps: the number of steps of a run; ε is for all steps together.
        participations: the largest number of these steps in which a record takes part; by default
            all.
        sampling_rate: the probability that a record is in a step.
        draws_batches: whether the mechanism samples the updates itself. If its caller does, the
            suite samples them. It must be set if the sampling rate is below 1.
        adversary: the releases that the adversary sees: of "every" step, or only of the "last".
        reset: a function that is called before each run, for a mechanism with a state.
        probes: further odd inputs by name: the odd input of `release`, and the input that it is
            compared with.
        clip_rule: for an adaptive clip norm: the quantile of the updates' norms that it should
            follow, and a function that returns the present clip norm.
        trials: the default number of runs of each world in a game.
        where: "module:name" of this target, for commands that reproduce a failure.
    """

    release: Callable[..., ArrayLike]
    epsilon: float | None = None
    delta: float = 0.0
    clip_norm: float = 1.0
    norm: Norm = "l2"
    inputs: Inputs = "any"
    nonnegative: bool = False
    adjacency: games.Adjacency = "add-or-remove"
    zero_update_norm: float = 0.0
    arrays: tuple[int, ...] = (6, 6)
    others: ArrayLike | None = None
    categories: bool = False
    noise: Literal["gaussian", "laplace"] | None = None
    noise_multiplier: float | None = None
    sensitivity: float | None = None
    steps: int = 1
    participations: int | None = None
    sampling_rate: float = 1.0
    draws_batches: bool | None = None
    adversary: Literal["every", "last"] = "every"
    reset: Callable[[], object] | None = None
    probes: Mapping[str, Pair] = dataclasses.field(default_factory=dict)
    clip_rule: tuple[float, Callable[[], float]] | None = None
    trials: int = 4000
    where: str = ""

    def __post_init__(self) -> None:
        types = typing.get_type_hints(Target)
        for name in ("norm", "inputs", "adjacency", "noise", "adversary"):
            checked_type(name, getattr(self, name), types[name])
        if self.delta != 0:
            check_probability("delta", self.delta)
        z = self.noise_multiplier
        if self.epsilon is None and z is None:
            wanted = "to be claimed, or a noise multiplier with delta > 0"
            raise_invalid("epsilon", None, wanted)
        if z is not None and not (z > 0 and self.delta):
            raise_invalid("noise_multiplier", z, "> 0, with delta > 0")
        check_positive("clip_norm", self.clip_norm)
        if not self.arrays or min(self.arrays) < 1:
            raise_invalid("arrays", self.arrays, "to have sizes >= 1")
        if self.trials < _MIN_TRIALS:
            raise_invalid("trials", self.trials, f">= {_MIN_TRIALS}")
        check_count("steps", self.steps)
        check_rate("sampling_rate", self.sampling_rate)
        if self.sampling_rate < 1 and self.draws_batches is None:
            wanted = (
                "to be set with sampling_rate < 1: true if the target samples its updates, false"
                " if its caller does"
            )
            raise_invalid("draws_batches", None, wanted)
        norms = _NORMS.get(self.noise or "", (self.norm,))
        if self.norm not in norms and self.dim > 1:
            wanted = (
                f"to be {' or '.join(norms)} for {self.noise} noise: its scale follows from the"
                " sensitivity in that norm, which is up to √d or d times as large"
            )
            raise_invalid("norm", self.norm, wanted)

    @property
    def dim(self) -> int:
        """The number of entries of an update."""
        return sum(self.arrays)

    @property
    def order(self) -> float:
        """The order of ``norm``, as `numpy.linalg.norm` takes it."""
        match self.norm:
            case "l1":
                return 1
            case "l2":
                return 2
            case "linf":
                return math.inf
        assert_never(self.norm)

    @property
    def has_clipped_inputs(self) -> bool:
        """Whether the caller clips updates, so that none is longer than the clip norm."""
        match self.inputs:
            case "any" | "finite":
                return False
            case "clipped":
                return True
        assert_never(self.inputs)

    def observed_steps(self, rows: Floats) -> Floats:
        """The rows of the steps that the adversary sees, given one row for each step."""
        match self.adversary:
            case "every":
                return rows
            case "last":
                return rows[-1:]
        assert_never(self.adversary)

    @property
    def canary_steps(self) -> int:
        """The number of steps in which the canary takes part."""
        return min(self.participations or self.steps, self.steps)

    @functools.cached_property
    def theory(self) -> float | None:
        """The theoretical ε of ``noise_multiplier``; ``None`` without one."""
        if self.noise_multiplier is None:
            return None
        return poisson_epsilon(
            self.noise_multiplier,
            self.sampling_rate,
            self.canary_steps,
            self.delta,
        )

    @functools.cached_property
    def multiplier(self) -> float | None:
        """The claimed z, or the z of Gaussian noise with the claimed ε; else ``None``."""
        if self.noise_multiplier is not None or self.noise != "gaussian":
            return self.noise_multiplier
        if not self.delta or not 0 < self.claimed_epsilon < math.inf:
            return None
        return _needed_multiplier(
            self.claimed_epsilon,
            self.delta,
            self.sampling_rate,
            self.canary_steps,
        )

    @property
    def law(self) -> Literal["gaussian", "laplace"]:
        """The law of the noise. Without a claim, it is Gaussian if δ > 0, and else Laplace."""
        if self.noise is not None:
            return self.noise
        if self.delta:
            return "gaussian"
        return "laplace"

    @property
    def claimed_epsilon(self) -> float:
        """The claimed ε of all steps."""
        return float(self.theory if self.epsilon is None else self.epsilon)  # type: ignore[arg-type]

    @property
    def claim_text(self) -> str:
        """The claimed ε and δ, for reports."""
        return f"ε ≤ {self.claimed_epsilon:.3g} at δ = {self.delta:.3g}"

    @property
    def claimed_sensitivity(self) -> float:
        """The claimed sensitivity of a step's release, in ``norm``."""
        if self.sensitivity is not None:
            return self.sensitivity
        return self.clip_norm * (2 if self.adjacency == "substitute" else 1)

    def noise_std(self, sensitivity: float) -> float | None:
        """The standard deviation that each entry's noise needs; ``None`` if it is not known.

        Args:
            sensitivity: the change of a step's release between neighbours, in ``norm``.
        """
        match self.noise:
            case "gaussian":
                if self.multiplier is None:
                    return None
                return self.multiplier * sensitivity
            case "laplace":
                # How much Laplace noise a sampled claim needs is not known.
                if self.epsilon and self.sampling_rate == 1:
                    return (
                        math.sqrt(2)
                        * sensitivity
                        * self.canary_steps
                        / self.epsilon
                    )
                return None
            case None:
                return None
        assert_never(self.noise)

    @functools.cached_property
    def zero_update(self) -> Floats:
        """The update of an absent record, shape (1, d)."""
        entry = self.zero_update_norm * self.clip_norm / self.dim
        return np.full((1, self.dim), entry)

    @functools.cached_property
    def rows(self) -> Floats:
        """The updates of the other records, shape (n, d)."""
        if self.others is not None:
            return np.array(self.others, np.float64).reshape(-1, self.dim)
        rows = np.random.default_rng(_OTHERS_SEED).standard_normal(
            (_NUM_OTHERS, self.dim)
        )
        if self.nonnegative:
            rows = np.abs(rows)
        norms = np.linalg.norm(rows, self.order, axis=1, keepdims=True)
        clip_norms = _CLIPPED_LENGTH if self.has_clipped_inputs else _LENGTH
        return np.asarray(rows / norms * (self.clip_norm * clip_norms))

    @functools.cached_property
    def zeros(self) -> Floats:
        """Updates of which the release is noise alone, shape (n, d)."""
        count = len(self.rows)
        # An absent canary has a row of its own.
        if self.adjacency != "add-or-remove":
            count += 1
        return np.repeat(self.zero_update, max(count, 1), axis=0)

    @functools.cached_property
    def has_own_randomness(self) -> bool:
        """Whether `release` takes no generator, and so draws its own noise."""
        try:
            parameters = list(
                inspect.signature(self.release).parameters.values()
            )
            second = parameters[1]
        except (TypeError, ValueError, IndexError):
            # It has one argument, or is a compiled function without a signature.
            return True
        # A second argument with a default is an option, unless its name is "rng".
        return second.name != "rng" and second.default is not second.empty

    def restart(self) -> None:
        """Begin a run."""
        if self.reset is not None:
            self.reset()

    def __call__(self, updates: Any, rng: np.random.Generator) -> Floats:
        """The release of one step, shape (d,) or (1,), given updates that it may overwrite."""
        arguments = (updates,) if self.has_own_randomness else (updates, rng)
        return np.asarray(self.release(*arguments), np.float64).reshape(-1)
