"""`PromisedNoise`: is the noise that clients say they add in their replies?

A reply is an update of norm C at most and Gaussian noise of standard deviation σ. Whatever the
update is, the reply's squared norm is at least as large as the noise's alone would be, and by so
little more that both sides can be tested. All tests together fail for clients who do what they say
with a probability of at most ``level``, over all nodes and rounds and at every look: the tests of
the n-th reply have ``level / (n·(n + 1))`` together.

Not seen: noise that a node or anybody else can make again, as from a seed that can be guessed,
unless it repeats in the last 256 replies; a permutation of it; and the absence of noise in an array
so small that an update may be as long as its noise.

Examples:
    >>> import numpy as np
    >>> promise = LocalDp(epsilon=10, delta=1e-5, clip_norm=1.0, sensitivity=1e-4)
    >>> f"{promise.epsilon_of():.2g}"  # of two opposite updates, in one reply
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
"""Probability that clients who keep their promise are accused in a run, at most."""

_SKETCH = 1 << 11  # entries of a reply that are compared
_COMPARED = 256  # replies that later ones are compared with
_ENTRIES = 4  # stream of the seed
_NAMED = 10  # nodes in a report
_FAMILIES = 4  # of tests of a reply: too little, too much, shape, copies
_SHORTEST = 1e-30  # length of a sketch
_OUTSIDE = 0.025  # on either side of an interval
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
        sensitivity: that the noise is made for; by default 2C, which is that of two updates of norm
            C.

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
        """Exact ε at the claimed δ of two opposite updates of norm C, in so many replies.

        Args:
            std: of the noise; by default the promised one.
            replies: of the same client.
        """
        if std is None:
            std = self.std
        return gaussian_epsilon(std / (2 * self.clip_norm), self.delta, replies)

    def sentence(self) -> str:
        """What the numbers amount to, as a clause."""
        return (
            f"clients promise ε = {self.epsilon:.3g} a reply by noise of standard deviation"
            f" {self.std:.3g}, with which ε of two opposite updates of norm"
            f" {self.clip_norm:.3g} is {self.epsilon_of():.3g}"
        )

    def fault(self) -> str:
        """The same where the sensitivity is below 2C, and ε above the claim; else ""."""
        is_low = (
            self.sensitivity is not None
            and self.sensitivity < 2 * self.clip_norm
        )
        if is_low and self.epsilon_of() > self.epsilon:
            return self.sentence()
        return ""


@dataclasses.dataclass
class _Node:
    """The tests of one node's replies, in the order of a checkpoint.

    Attributes:
        amounts: sums of squares of each array and of all, over σ², ``(A + 1,)``.
        replies: how many were tested.
        clipped: sum of the squared largest norms of the updates, over σ².
        failed: how many replies failed a test, by its kind.
        texts: the description of the last of them.
    """

    amounts: Floats
    replies: int = 0
    clipped: float = 0.0
    failed: dict[str, int] = dataclasses.field(default_factory=dict)
    texts: dict[str, str] = dataclasses.field(default_factory=dict)

    def fail(self, kind: str, text: str) -> None:
        """Count a reply that fails."""
        self.failed[kind] = self.failed.get(kind, 0) + 1
        self.texts[kind] = text


class PromisedNoise:
    """Tests of each reply whether the noise that its client promised is in it.

    Memory does not grow with the model: some numbers for each node and array, and 2,048 entries of
    each of the last 256 replies.

    Args:
        promise: of all clients.
        sizes: numbers of entries of the model's arrays by name, in order.
        seed: of the entries that are compared; nobody who is tested may know it.
        level: probability that clients who keep the promise are accused, at most.
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
        entries = min(_SKETCH, self._dim)
        rng = generator(seed, _ENTRIES)
        self._chosen = np.sort(rng.choice(self._dim, entries, replace=False))
        self._replies = 0
        self._nodes: dict[int | None, _Node] = {}
        self._directions = np.zeros((_COMPARED, entries), np.float32)
        self._senders: list[int | None] = []  # of these rows

    def add(self, node: int | None, update: Vector, count: int = 1) -> None:
        """Test a reply, or a sum of replies.

        Args:
            node: who sent it; ``None`` for a sum under secure aggregation, where no node is named.
            update: the reply less the model that was sent, shape ``(dim,)``; finite.
            count: of replies in the sum.
        """
        self._replies += 1
        std = self.promise.std * math.sqrt(count)
        longest = self.promise.clip_norm * count / std
        amounts = self._amounts(update) / std**2
        sketch = np.asarray(update[self._chosen] / std, np.float32)
        history = self._nodes.setdefault(node, _Node(np.zeros(len(amounts))))
        history.replies += 1
        history.amounts += amounts
        history.clipped += longest**2
        level = self._level / (self._replies * (self._replies + 1) * _FAMILIES)
        tests = {
            "little": self._too_little(history, amounts, longest, level),
            "much": self._too_much(float(amounts[-1]), longest, level),
            "shape": _not_gaussian(sketch, level),
        }
        for kind, text in tests.items():
            if text:
                history.fail(kind, text)
                break
        text = self._copied(node, sketch, longest, level)
        if text:
            history.fail("copy", text)

    def _amounts(self, update: Vector) -> Floats:
        """Sums of squares of each array and of all, ``(A + 1,)``."""
        parts = np.split(update, self._arrays.starts[1:])
        squares = [np.dot(part, part) for part in parts]
        return np.array([*squares, math.fsum(squares)])

    def _too_little(
        self, history: _Node, amounts: Floats, longest: float, level: float
    ) -> str:
        """The amount of each array and of all, in this reply and in all of the node's (χ²)."""
        counts = np.append(self._arrays.sizes, self._dim)
        counts = np.array([counts, counts * history.replies])
        scales = np.sqrt(np.array([amounts, history.amounts]) / counts)
        fails = _LAW.below(counts, scales + ROUNDING) < level / counts.size
        if fails[:, -1].any():
            if amounts[-1] <= longest**2 * (1 + ROUNDING):
                return "no noise"
            return (
                f"noise of at most {scales[0, -1]:.2g} times the promised size"
            )
        if fails.any():
            arrays = np.flatnonzero(fails.any(axis=0))[:3]
            names = [self._arrays.names[number] for number in arrays]
            return f"too little noise in {', '.join(names)}"
        return ""

    def _too_much(self, amount: float, longest: float, level: float) -> str:
        """The amount of all, beside the longest update (Birgé 2001, for noncentral χ²)."""
        signal = longest**2
        excess = amount / (1 + ROUNDING) ** 2 - self._dim - signal
        spread = self._dim + 2 * signal
        # The x for which excess = 2√(spread·x) + 2x; larger ones have a chance of at most exp(−x).
        root = (
            math.sqrt(spread + 2 * max(excess, 0.0)) - math.sqrt(spread)
        ) / 2
        if root**2 < -math.log(level):
            return ""
        scale = math.sqrt(amount / self._dim)
        return f"{scale:.2g} times the promised noise, or an update that is not clipped"

    def _copied(
        self, node: int | None, sketch: Floats32, longest: float, level: float
    ) -> str:
        """The length of this reply along each of the last ones, to find the one that it copies.

        The noise of this reply is independent of those, so that its part along each is N(0, 1), and
        the update's is at most its norm.
        """
        rows = max(1, len(self._senders))  # one row of zeros at first
        along = np.abs(self._directions[:rows] @ sketch) / (1 + ROUNDING)
        likest = int(along.argmax())
        chance = 2 * scipy.special.ndtr(longest - along[likest])
        sender = self._senders[likest] if self._senders else None
        row = (self._replies - 1) % _COMPARED
        self._senders[row : row + 1] = [node]
        self._directions[row] = sketch / max(
            float(np.linalg.norm(sketch)), _SHORTEST
        )
        if chance >= level / _COMPARED:
            return ""
        if sender == node:
            return "the same noise as in another of its replies"
        return f"the same noise as node {sender}"

    @property
    def faults(self) -> dict[int | None, str]:
        """The description of each node that does not keep its promise."""
        faults = {}
        for node, history in self._nodes.items():
            if not history.failed:
                continue
            texts = [
                f"{history.texts[kind]} in {times} of {history.replies} replies"
                for kind, times in history.failed.items()
            ]
            if node is None:
                sender = "the sum of the replies"
            else:
                sender = f"node {node}"
            faults[node] = f"{sender}: {', '.join(texts)}"
        return faults

    def epsilon(self) -> tuple[float, float, float, int] | None:
        """ε of the client whose replies have the median noise; ``None`` without replies of nodes.

        Returns:
            ε of two opposite updates in all its replies, the ends of its interval, and how many
            replies those are. The interval holds for updates of any norm up to C.
        """
        clients = [
            record for node, record in self._nodes.items() if node is not None
        ]
        if not clients:
            return None
        clients.sort(
            key=lambda client: float(client.amounts[-1]) / client.replies
        )
        median = clients[(len(clients) - 1) // 2]
        high, middle, low = [
            self.promise.epsilon_of(scale * self.promise.std, median.replies)
            for scale in self._scales(median)
        ]
        return middle, low, high, median.replies

    def _scales(self, client: _Node) -> list[float]:
        """Lower end, estimate and upper end of a client's noise over the promise."""
        amount = float(client.amounts[-1])
        count = self._dim * client.replies
        signal = client.clipped
        exponent = -math.log(_OUTSIDE)

        def surplus(variance: float) -> float:
            """An amount that noise of this variance hardly exceeds, less the measured one."""
            spread = math.sqrt(
                exponent * variance * (count * variance + 2 * signal)
            )
            return (
                variance * (count + 2 * exponent) + signal + 2 * spread - amount
            )

        high = amount / (
            2 * float(scipy.special.gammaincinv(count / 2, _OUTSIDE))
        )
        low = 0.0
        if surplus(0.0) < 0:
            low = float(scipy.optimize.brentq(surplus, 0.0, high))
        middle = min(max((amount - signal / 2) / count, low), high)
        return [math.sqrt(low), math.sqrt(middle), math.sqrt(high)]

    def findings(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What replies show, in sentences, and what is wrong with nodes, the first ten by name."""
        faults = tuple(self.faults.values())
        if len(faults) > _NAMED:
            more = f"{len(faults) - _NAMED} more nodes do not add the noise that they promise"
            faults = (*faults[:_NAMED], more)
        outcome = "not as" if faults else "as"
        sentence = f"Noise of clients: {outcome} promised, by {self._replies:,} replies."
        measured = self.measured()
        if not measured:
            return (sentence,), faults
        return (
            sentence,
            f"{measured}. That updates are clipped is not seen.",
        ), faults

    def measured(self) -> str:
        """ε of a client whose noise is the median, as a clause; "" without replies of nodes."""
        estimate = self.epsilon()
        if estimate is None:
            return ""
        epsilon, low, high, replies = estimate
        return (
            f"ε of a client by the noise in its {replies} replies:"
            f" {epsilon:.3g} ({low:.3g} – {high:.3g}) for opposite updates of norm"
            f" {self.promise.clip_norm:.3g} at δ = {self.promise.delta:g}"
        )

    def state(self) -> NamedArrays:
        """Named arrays from which `restore` goes on."""
        nodes = [
            [node, *vars(history).values()]
            for node, history in self._nodes.items()
        ]
        state = [self._replies, nodes, self._senders]
        return {
            "kept": np.array(json.dumps(state, default=np.ndarray.tolist)),
            "directions": self._directions[: len(self._senders)],
        }

    def restore(self, state: NamedArrays) -> None:
        """Go on from what `state` returned."""
        self._replies, nodes, self._senders = json.loads(str(state["kept"]))
        self._nodes = {
            node: _Node(np.array(amounts), *history)
            for node, amounts, *history in nodes
        }
        self._directions[: len(self._senders)] = state["directions"]


def _not_gaussian(sketch: Floats32, level: float) -> str:
    """The largest excess of small values (Massart 1990).

    An update makes the size of a Gaussian value stochastically larger only, so that there are never
    more small ones than in noise alone. Noise of the same variance and another shape has more.
    """
    sizes = np.sort(np.abs(sketch))
    count = len(sizes)
    expected = 2 * scipy.special.ndtr(sizes + ROUNDING) - 1
    excess = (np.arange(1, count + 1) / count - expected).max()
    if 2 * count * excess**2 < -math.log(level):
        return ""
    return "noise that is not Gaussian"
