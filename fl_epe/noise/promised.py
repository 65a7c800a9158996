"""`PromisedNoise`: is the noise that clients say they add in their replies?

A reply is the sum of an update of norm at most C and of Gaussian noise of standard deviation σ.
Whatever the update is, the reply's squared norm is stochastically at least that of the noise, and
exceeds it by so little that too little and too much noise can be detected. If all clients keep
their promise, the probability that any test fails in a run of any length is at most ``level``: the
tests of the n-th reply have ``level / (n·(n + 1))`` together.

The tests do not detect reproducible noise, such as noise from a seed that can be guessed, unless it
repeats within the last 256 replies, nor a permutation of earlier noise. They do not detect that
noise is absent in an array so small that an update may have the norm of the array's noise.

Examples:
    >>> import numpy as np
    >>> promise = LocalDp(epsilon=10, delta=1e-5, clip_norm=1.0, sensitivity=1e-4)
    >>> f"{promise.epsilon_of():.2g}"  # not 10, as the sensitivity is below 2C
    '8.5e+08'
    >>> noise = PromisedNoise(LocalDp(epsilon=1, delta=1e-5, clip_norm=1.0), {"weights": 2000})
    >>> rng = np.random.default_rng(5)
    >>> noise.add(3, rng.normal(0, noise.promise.std, 2000))
    >>> noise.add(7, rng.normal(0, 0.01, 2000))
    >>> noise.faults
    {7: 'node 7: no noise in 1 of 1 replies'}
"""

import dataclasses
import json
import math
from collections.abc import Mapping

import numpy as np
import scipy

from fl_epe.accounting import gaussian_epsilon
from fl_epe.checks import (
    Floats,
    Floats32,
    NamedArrays,
    Vector,
    check_positive,
    check_probability,
)
from fl_epe.noise.laws import LAWS, ROUNDING
from fl_epe.noise.seen import SketchLayout
from fl_epe.seeding import generator

PROMISE_LEVEL = 0.01
"""Largest probability that any client is accused in a run in which all keep their promise."""

_SKETCH_SIZE = 1 << 11  # number of entries of a reply that are compared
_SEED_STREAM = 4  # index of the random stream that chooses these entries
# Number of earlier replies with which each reply is compared.
_COMPARED_REPLIES = 256
_MAX_REPORTED_NODES = 10
_MAX_REPORTED_ARRAYS = 3
_TESTS_PER_REPLY = 4  # too little noise, too much, its distribution, copies
# Replaces the norm of a sketch of zeros, by which it is divided.
_MIN_NORM = 1e-30
_TAIL_PROBABILITY = 0.025  # on either side of an interval
_LAW = LAWS["gaussian"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalDp:
    """What clients promise: they clip their update, and add Gaussian noise to it.

    The arguments are those of Flower's ``LocalDpMod``, whose noise has the standard deviation
    ``sensitivity · √(2 ln(1.25/δ)) / ε``.

    Attributes:
        epsilon: claimed ε of a reply.
        delta: claimed δ.
        clip_norm: largest norm C of an update.
        sensitivity: the sensitivity that the noise is calibrated for; by default 2C, the distance
            of two opposite updates of norm C.

    Raises:
        ArgumentError: for a value that is not above 0, or a δ outside (0, 1).
    """

    epsilon: float
    delta: float
    clip_norm: float
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        check_probability("delta", self.delta)
        check_positive("epsilon", self.epsilon)
        check_positive("clip_norm", self.clip_norm)
        if self.sensitivity is not None:
            check_positive("sensitivity", self.sensitivity)

    @property
    def std(self) -> float:
        """Standard deviation σ of the noise in each entry."""
        sensitivity = self.sensitivity or 2 * self.clip_norm
        return (
            sensitivity
            * math.sqrt(2 * math.log(1.25 / self.delta))
            / self.epsilon
        )

    def epsilon_of(self, std: float | None = None, replies: int = 1) -> float:
        """Exact ε at the claimed δ, by which two opposite updates of norm C are distinguishable.

        Args:
            std: standard deviation of the noise; by default the promised one.
            replies: number of replies of the same client, which are composed.
        """
        if std is None:
            std = self.std
        return gaussian_epsilon(std / (2 * self.clip_norm), self.delta, replies)

    def sentence(self) -> str:
        """The promised ε, and the exact ε of the promised noise, without a full stop."""
        return (
            f"clients promise ε = {self.epsilon:.3g} a reply by noise of standard deviation"
            f" {self.std:.3g}, with which ε of two opposite updates of norm"
            f" {self.clip_norm:.3g} is {self.epsilon_of():.3g}"
        )

    def fault(self) -> str:
        """The `sentence` if the sensitivity is too low for the claimed ε; else empty.

        It is too low if it is below 2C, and the exact ε exceeds the claimed one.
        """
        is_low = (
            self.sensitivity is not None
            and self.sensitivity < 2 * self.clip_norm
        )
        if is_low and self.epsilon_of() > self.epsilon:
            return self.sentence()
        return ""


@dataclasses.dataclass
class _Node:
    """The replies of one node, and the tests that they failed.

    Attributes:
        squares: sums of squares of each array and of all arrays, divided by σ², over all replies,
            ``(A + 1,)``.
        replies: number of replies that were tested.
        signal: largest possible sum of the squared norms of the updates in them, divided by σ².
        failures: number of replies that failed a test, by the kind of test.
        texts: description of the last of these failures, by the kind of test.
    """

    squares: Floats
    replies: int = 0
    signal: float = 0.0
    failures: dict[str, int] = dataclasses.field(default_factory=dict)
    texts: dict[str, str] = dataclasses.field(default_factory=dict)

    def fail(self, kind: str, text: str) -> None:
        """Count a reply that fails a test."""
        self.failures[kind] = self.failures.get(kind, 0) + 1
        self.texts[kind] = text


@dataclasses.dataclass(frozen=True)
class LocalEpsilon:
    """ε of two opposite updates in all replies of a client, by the noise in these replies.

    Attributes:
        epsilon: the estimate.
        low: lower end of its 95% interval, which holds for updates of any norm up to C.
        high: upper end of the interval.
        replies: number of replies.
    """

    epsilon: float
    low: float
    high: float
    replies: int


class PromisedNoise:
    """Tests whether each reply contains the noise that its client promised.

    Memory does not grow with the size of the model's arrays: it holds some numbers for each node
    and array, and 2,048 entries of each of the last 256 replies.

    Args:
        promise: the promise of all clients.
        sizes: numbers of entries of the model's arrays by name, in order.
        seed: seed of the choice of compared entries, which clients must not know.
        level: largest probability that any client who keeps the promise is accused.
    """

    def __init__(
        self,
        promise: LocalDp,
        sizes: Mapping[str, int],
        *,
        seed: int = 0,
        level: float = PROMISE_LEVEL,
    ) -> None:
        self.promise = promise
        self._level = level
        self._arrays = SketchLayout(sizes)
        self._dim = int(self._arrays.sizes.sum())
        entries = min(_SKETCH_SIZE, self._dim)
        rng = generator(seed, _SEED_STREAM)
        self._chosen = np.sort(rng.choice(self._dim, entries, replace=False))
        self._replies = 0
        self._nodes: dict[int | None, _Node] = {}
        self._directions = np.zeros((_COMPARED_REPLIES, entries), np.float32)
        # The node of each row of these directions.
        self._senders: list[int | None] = []

    def add(self, node: int | None, update: Vector, count: int = 1) -> None:
        """Test a reply, or a sum of replies.

        Args:
            node: the sender; ``None`` for a sum of several nodes' replies (secure aggregation).
            update: the reply less the model that was sent, shape ``(dim,)``; finite.
            count: number of replies in the sum.
        """
        self._replies += 1
        std = self.promise.std * math.sqrt(count)
        largest_norm = self.promise.clip_norm * count / std
        squares = self._sums_of_squares(update) / std**2
        sketch = np.asarray(update[self._chosen] / std, np.float32)
        history = self._nodes.setdefault(node, _Node(np.zeros(len(squares))))
        history.replies += 1
        history.squares += squares
        history.signal += largest_norm**2
        # The levels of all replies add up to that of the run, as Σ 1/(n·(n + 1)) = 1.
        divisor = self._replies * (self._replies + 1)
        level = self._level / (divisor * _TESTS_PER_REPLY)
        tests = {
            "little": self._too_little(history, squares, largest_norm, level),
            "much": self._too_much(float(squares[-1]), largest_norm, level),
            "shape": _not_gaussian(sketch, level),
        }
        # A reply that fails several of these tests is described by the first of them.
        for kind, text in tests.items():
            if text:
                history.fail(kind, text)
                break
        text = self._find_copy(node, sketch, largest_norm, level)
        if text:
            history.fail("copy", text)
        self._remember(node, sketch)

    def _sums_of_squares(self, update: Vector) -> Floats:
        """Sums of squares of each array and of all, ``(A + 1,)``."""
        parts = np.split(update, self._arrays.starts[1:])
        squares = [np.dot(part, part) for part in parts]
        return np.array([*squares, math.fsum(squares)])

    def _too_little(
        self,
        history: _Node,
        squares: Floats,
        largest_norm: float,
        level: float,
    ) -> str:
        """Returns a message if there is less noise than promised (χ² test), else "".

        The sums of squares of each array, and of all arrays, are tested: those of this reply, and
        those of all replies of the node so far.
        """
        counts_of_reply = np.append(self._arrays.sizes, self._dim)
        counts = np.array([counts_of_reply, counts_of_reply * history.replies])
        scales = np.sqrt(np.array([squares, history.squares]) / counts)
        p_values = _LAW.scale_cdf(counts, scales + ROUNDING)
        fails = p_values < level / counts.size
        # The last column is for all arrays together.
        if fails[:, -1].any():
            if squares[-1] <= largest_norm**2 * (1 + ROUNDING):
                return "no noise"
            return (
                f"noise of at most {scales[0, -1]:.2g} times the promised size"
            )
        if fails.any():
            arrays = np.flatnonzero(fails.any(axis=0))[:_MAX_REPORTED_ARRAYS]
            names = [self._arrays.names[array] for array in arrays]
            return f"too little noise in {', '.join(names)}"
        return ""

    def _too_much(
        self, squared_norm: float, largest_norm: float, level: float
    ) -> str:
        """Returns a message if the reply has more noise than promised or a larger update, else "".

        Its squared norm is compared with that of the noise and of an update of the largest norm
        (Birgé 2001, for noncentral χ²).
        """
        signal = largest_norm**2
        excess = squared_norm / (1 + ROUNDING) ** 2 - self._dim - signal
        spread = self._dim + 2 * signal
        # The excess is above 2√(spread·x) + 2x with a probability of at most exp(−x). This is √x.
        root = (
            math.sqrt(spread + 2 * max(excess, 0.0)) - math.sqrt(spread)
        ) / 2
        if root**2 < -math.log(level):
            return ""
        scale = math.sqrt(squared_norm / self._dim)
        return f"{scale:.2g} times the promised noise, or an update that is not clipped"

    def _find_copy(
        self,
        node: int | None,
        sketch: Floats32,
        largest_norm: float,
        level: float,
    ) -> str:
        """Returns a message if the reply has the noise of an earlier reply, else "".

        If the noises are independent, the component of this reply's noise along each earlier reply
        is N(0, 1), and that of its update is at most the update's norm.
        """
        if not self._senders:
            return ""
        earlier = self._directions[: len(self._senders)]
        components = np.abs(earlier @ sketch) / (1 + ROUNDING)
        most_similar = int(components.argmax())
        noise_component = components[most_similar] - largest_norm
        p_value = 2 * scipy.special.ndtr(-noise_component)
        if p_value >= level / _COMPARED_REPLIES:
            return ""
        sender = self._senders[most_similar]
        if sender == node:
            return "the same noise as in another of its replies"
        return f"the same noise as node {sender}"

    def _remember(self, node: int | None, sketch: Floats32) -> None:
        """Save the reply's direction, in place of the oldest one if there are 256."""
        row = (self._replies - 1) % _COMPARED_REPLIES
        norm = max(float(np.linalg.norm(sketch)), _MIN_NORM)
        # Appends the sender if the row is not in use yet.
        self._senders[row : row + 1] = [node]
        self._directions[row] = sketch / norm

    @property
    def faults(self) -> dict[int | None, str]:
        """The failed tests of each node that does not keep its promise, by node."""
        faults = {}
        for node, history in self._nodes.items():
            if not history.failures:
                continue
            texts = [
                f"{history.texts[kind]} in {count} of {history.replies} replies"
                for kind, count in history.failures.items()
            ]
            if node is None:
                sender = "the sum of the replies"
            else:
                sender = f"node {node}"
            faults[node] = f"{sender}: {', '.join(texts)}"
        return faults

    def epsilon(self) -> LocalEpsilon | None:
        """ε of the client with the median noise; ``None`` without replies of single nodes.

        Of an even number of clients, the one with less noise of the two in the middle is used.
        """
        clients = [
            history for node, history in self._nodes.items() if node is not None
        ]
        if not clients:
            return None
        clients.sort(
            key=lambda client: float(client.squares[-1]) / client.replies
        )
        median = clients[(len(clients) - 1) // 2]
        low_std, std, high_std = self._noise_stds(median)
        # More noise means a smaller ε.
        return LocalEpsilon(
            epsilon=self.promise.epsilon_of(std, median.replies),
            low=self.promise.epsilon_of(high_std, median.replies),
            high=self.promise.epsilon_of(low_std, median.replies),
            replies=median.replies,
        )

    def _noise_stds(self, client: _Node) -> tuple[float, float, float]:
        """The standard deviation of a client's noise: lower limit, estimate and upper limit.

        The upper limit assumes updates of 0 (χ² law), and the lower one updates of the largest norm
        (Birgé 2001, for noncentral χ²).
        """
        sum_of_squares = float(client.squares[-1])
        count = self._dim * client.replies
        signal = client.signal
        exponent = -math.log(_TAIL_PROBABILITY)

        def excess_of_bound(variance: float) -> float:
            """An upper bound of the sum of squares with this variance, less the measured one."""
            spread = math.sqrt(
                exponent * variance * (count * variance + 2 * signal)
            )
            bound = variance * (count + 2 * exponent) + signal + 2 * spread
            return bound - sum_of_squares

        quantile = scipy.special.gammaincinv(count / 2, _TAIL_PROBABILITY)
        high = sum_of_squares / (2 * float(quantile))
        low = 0.0
        if excess_of_bound(0.0) < 0:
            low = float(scipy.optimize.brentq(excess_of_bound, 0.0, high))
        # The estimate assumes updates with half of the largest sum of squares.
        middle = min(max((sum_of_squares - signal / 2) / count, low), high)
        std = self.promise.std
        return (
            math.sqrt(low) * std,
            math.sqrt(middle) * std,
            math.sqrt(high) * std,
        )

    def findings(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The result in sentences, and the faults of nodes, of which the first ten are named."""
        faults = tuple(self.faults.values())
        if len(faults) > _MAX_REPORTED_NODES:
            more = len(faults) - _MAX_REPORTED_NODES
            text = f"further nodes without the promised noise: {more}"
            faults = (*faults[:_MAX_REPORTED_NODES], text)
        outcome = "not as" if faults else "as"
        sentences = [
            f"Noise of clients: {outcome} promised, by {self._replies:,} replies."
        ]
        measured = self.measured()
        if measured:
            sentences.append(
                f"{measured}. Whether updates are clipped was not tested."
            )
        return tuple(sentences), faults

    def measured(self) -> str:
        """`epsilon` in a sentence without its full stop; empty without replies of single nodes."""
        client = self.epsilon()
        if client is None:
            return ""
        return (
            f"ε of a client by the noise in its {client.replies} replies:"
            f" {client.epsilon:.3g} ({client.low:.3g} – {client.high:.3g}) for opposite"
            f" updates of norm {self.promise.clip_norm:.3g} at δ = {self.promise.delta:g}"
        )

    def state(self) -> NamedArrays:
        """The tests so far as named arrays, for `restore`."""
        nodes = [
            {"node": node, **dataclasses.asdict(history)}
            for node, history in self._nodes.items()
        ]
        state = {
            "replies": self._replies,
            "nodes": nodes,
            "senders": self._senders,
        }
        return {
            "kept": np.array(json.dumps(state, default=np.ndarray.tolist)),
            "directions": self._directions[: len(self._senders)],
        }

    def restore(self, state: NamedArrays) -> None:
        """Continue from a `state`."""
        values = json.loads(str(state["kept"]))
        self._replies = values["replies"]
        self._senders = values["senders"]
        self._nodes = {}
        for fields in values["nodes"]:
            node = fields.pop("node")
            squares = np.array(fields.pop("squares"))
            self._nodes[node] = _Node(squares, **fields)
        self._directions[: len(self._senders)] = state["directions"]


def _not_gaussian(sketch: Floats32, level: float) -> str:
    """Returns a message if small values are too frequent for Gaussian noise, else "".

    The distribution functions are compared (Massart 1990). An update can only make the magnitude of
    a Gaussian value stochastically larger, so that small values are at most as frequent as in noise
    alone. Other noise of the same variance has more of them.
    """
    magnitudes = np.sort(np.abs(sketch))
    count = len(magnitudes)
    expected = 2 * scipy.special.ndtr(magnitudes + ROUNDING) - 1
    excess = (np.arange(1, count + 1) / count - expected).max()
    if 2 * count * excess**2 < -math.log(level):
        return ""
    return "noise that is not Gaussian"
