"""ε of an adversary who sees every round but does not know in which ones a client took part.

The adversary's statistic is the likelihood ratio of the mixture. It is not Gaussian, so its ε comes
from the distribution of that ratio, computed on a grid without simulation.
Derivation and measured errors: docs/notes/unknown-rounds.md.

Examples:
    >>> import numpy as np
    >>> from fl_epe.schedules import make_schedule
    >>> law = make_schedule("balls-in-bins", rounds=10, participations=1).law(100)
    >>> round(hidden_rounds_epsilon(law.events, np.ones(10), 1e-5), 2)  # 4.38 for a known round
    2.19
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import scipy

from fl_epe.accounting.composed_gaussians import (
    gaussian_epsilon,
    poisson_epsilon,
)
from fl_epe.accounting.mixtures import raised_to_largest
from fl_epe.accounting.renyi import (
    MIN_FFT_DELTA,
    TAIL_SHARE,
    chernoff_bound,
    log_sums,
    renyi_epsilon,
)
from fl_epe.accounting.sums_of_lognormals import (
    LogLaw,
    lognormal,
    plus,
    split,
    total_of,
)
from fl_epe.accounting.two_gaussians import epsilon_of_shift
from fl_epe.checks import Floats, check_probability, raise_invalid
from fl_epe.schedules import Event, Events

_SMALLEST_TAIL = 1e-300
_SMALLEST_DIVISOR = 1e-300
# Smaller signals are raised to this one, because a grid's memory grows with their inverse.
_MIN_SIGNAL = 1e-4
# In `fixed_size_epsilon`, secret rounds do not lower ε noticeably above this signal of a round.
_LARGEST_SIGNAL = 15.0
# Signals in a cell of this relative width are computed as one.
_CELL_WIDTH = 0.01
# A signal that rounding moved below a cell by this share of the cell counts as inside, and
# ratios of chances that differ by it count as equal.
_ROUNDING = 1e-9
# Up to this number of rounds of an epoch, all groups of signals are distinguished.
_MAX_SHORT_EPOCH = 16
_MAX_GROUPS = 4  # groups of signals that are distinguished in a longer epoch
_ROUNDING_MARGIN = 5  # of a sum of rounding errors, in its standard deviations
_LARGEST_EXPONENT = 300.0  # largest ε whose exponential dp-accounting may take
_LARGEST_SCORE = 37.0  # above it a normal's tail probability underflows
_ROOT_ERROR = 1e-12  # relative error of ε as a root
_CELLS_OF_A_ROUND = 2000  # cells of a grid of a round's score, on each side
_CELLS = 2**14  # cells of the grid on which losses of several epochs are added

Groups = tuple[tuple[float, int], ...]
"""Each group of rounds: its signal, and the number of its rounds."""


def hidden_rounds_epsilon(
    events: Events, signals: Floats, delta: float
) -> float:
    """ε of a client against an adversary who sees every round's model, not the client's rounds.

    Events are independent, so the distributions of their privacy losses are convolved on one grid.
    If all rounds of an event have the same signal, the result is never below the exact ε, as
    every rounding is upwards and tails outside the grids count towards δ; only the largest
    signal is rounded to eight digits. It was at most 0.15% above the exact ε in all cases of
    docs/notes/unknown-rounds.md. Different signals are grouped, which changed ε by less than
    0.5% there, either way. With δ below 10⁻¹¹ losses are composed by their moments, and the
    result is up to a third larger. It is at most the ε of known rounds in which every event has
    its largest signal. If all events are coins of one probability, on rounds of one signal, it is
    also at most that of `poisson_epsilon`.

    Args:
        events: how the client draws its rounds, see `Events.independent`.
        signals: expected score ``a_t`` of each round, ``(T,)``.
        delta: target δ in (0, 1).

    Raises:
        ValueError: if there is no event, events depend on each other, a signal is not positive
            and finite, or δ is out of range.
    """
    check_probability("delta", delta)
    if not events.independent:
        raise_invalid("events", events, "to be independent, with at least one")
    possible = signals[events.rounds]
    if not np.all(np.isfinite(possible) & (possible > 0)):
        raise_invalid("signals", signals, "positive and finite")
    # A measured signal and its theoretical value differ by a relative 10⁻⁹ or so. After rounding
    # they are equal, and share a cached result.
    largest = float(f"{np.max(possible):.8g}")
    raised = raised_to_largest(signals, largest)
    return _cached_epsilon(events, raised.tobytes(), delta)


@functools.lru_cache(maxsize=256)
def _cached_epsilon(
    events: Events, signals_in_bytes: bytes, delta: float
) -> float:
    """ε of `hidden_rounds_epsilon`, for signals as bytes."""
    signals = np.frombuffer(signals_in_bytes)
    largest_of_events = [
        float(np.max(signals[event.rounds] * event.counts))
        for event in events.independent
    ]
    bound = float(epsilon_of_shift(math.hypot(*largest_of_events), delta))
    is_known = all(event.is_known_round for event in events.independent)
    if bound == 0 or is_known:
        return bound
    tail = _tail(delta, len(events.independent))
    parts = _parts(events.independent, signals, tail)
    epsilon = _epsilon(parts, tail, delta, bound)
    event = events.independent[0]
    # Coins of one probability decide on rounds of one signal.
    is_poisson = len(parts) == 1 and event.is_coin
    if not is_poisson or epsilon > _LARGEST_EXPONENT:
        return epsilon
    ((signal, count),) = _groups(signals[events.rounds])
    noise_multiplier = float(f"{1 / signal:.8g}")
    return min(
        epsilon, poisson_epsilon(noise_multiplier, event.chance, count, delta)
    )


def fixed_size_epsilon(
    noise_multiplier: float,
    population: int,
    cohort: int,
    rounds: int,
    delta: float,
) -> float:
    """ε if every round draws a fresh cohort of fixed size that the adversary does not know.

    Adjacency: zero-out. The result holds for all updates of the other clients, also for updates
    that the adversary chooses. It is never below the exact ε, as every rounding is upwards.
    Proof: docs/notes/fixed-size.md.

    Args:
        noise_multiplier: z ≥ 0.
        population: number of clients.
        cohort: number of clients in a round, without replacement, in [1, population].
        rounds: number of rounds, at least 1.
        delta: target δ in (0, 1).

    Raises:
        ValueError: for an argument out of range.
    """
    if not 1 <= cohort <= population:
        raise_invalid("cohort", cohort, f"from 1 to {population}")
    bound = gaussian_epsilon(noise_multiplier, delta, rounds)
    if (
        cohort == population
        or bound == 0
        or noise_multiplier < 1 / _LARGEST_SIGNAL
    ):
        return bound
    tail = _tail(delta, rounds)
    signal = max(1 / noise_multiplier, _MIN_SIGNAL)
    loss = _cohort_loss(cohort / population, signal, tail)
    return _epsilon([(loss, rounds)], tail, delta, bound)


def partly_known_epsilon(
    blocks: Sequence[tuple[int, float]],
    signal: float,
    known_signal: float,
    delta: float,
) -> float:
    """ε of one participation in each block, whose round the adversary learns with some probability.

    The result is never below the exact ε, as every rounding is upwards.

    Args:
        blocks: for each block, the number of rounds that may be the client's if the adversary
            does not learn which, and the probability that the adversary learns it.
        signal: expected score of each of these rounds, > 0.
        known_signal: expected score of a round that the adversary learns, at least ``signal``.
        delta: target δ in (0, 1).
    """
    tail = _tail(delta, len(blocks))
    known_signal = max(known_signal, signal, _MIN_SIGNAL)
    known_loss = _epoch_loss(((known_signal, 1),), tail)
    parts = []
    for rounds, chance in blocks:
        loss = _epoch_loss(((max(signal, _MIN_SIGNAL), rounds),), tail)
        if chance:
            loss = _revealed_choice(known_loss, loss, chance)
        parts.append((loss, 1))
    largest = math.hypot(
        *(known_signal if chance else signal for _, chance in blocks)
    )
    bound = float(epsilon_of_shift(largest, delta))
    return _epsilon(parts, tail, delta, bound)


@dataclasses.dataclass(frozen=True)
class _Loss:
    """Privacy loss of a round, an epoch or a run.

    Attributes:
        losses: the losses, ascending, ``(n,)``.
        null: their probabilities if the client did not take part, ``(n,)``.
        members: their probabilities if the client may have taken part, ``(n,)``.
        infinity_mass: the probability of an infinite loss. Together with it, the sum of
            ``members`` is 1.
    """

    losses: Floats
    null: Floats
    members: Floats
    infinity_mass: float

    def delta(self, epsilon: float) -> float:
        """The larger δ of both directions."""
        removed = self.members @ -np.expm1(
            np.minimum(epsilon - self.losses, 0.0)
        )
        added = self.null @ -np.expm1(np.minimum(epsilon + self.losses, 0.0))
        return float(max(removed, added) + self.infinity_mass)


def _tail(delta: float, parts: int) -> float:
    """The probability that each part of a run may leave out."""
    return max(TAIL_SHARE * delta / parts, _SMALLEST_TAIL)


def _parts(
    events: Sequence[Event], signals: Floats, tail: float
) -> list[tuple[_Loss, int]]:
    """The distinct losses of independent events, each with the number of events that have it."""
    parts: list[tuple[_Loss, int]] = []
    known_signals: list[float] = []
    # Events that decide on a single round, by their chances and counts.
    by_law: dict[tuple[bytes, bytes], list[Event]] = {}
    for event in events:
        event_signals = signals[event.rounds]
        if event.is_uniform:
            loss = _epoch_loss(_groups(event_signals), tail)
            parts.append((_event_loss(loss, event.chance), 1))
        elif event.is_spread:
            chances = tuple(event.chances.tolist())
            raised = _raised_signals(event_signals)
            parts.append((_spread_loss(raised, chances, tail), 1))
        elif event.is_known_round:
            known_signals.append(float(event_signals[0]))
        else:
            law = (event.chances.tobytes(), event.counts.tobytes())
            by_law.setdefault(law, []).append(event)
    for same_law in by_law.values():
        first_rounds = [event.rounds[0] for event in same_law]
        for signal, count in _groups(signals[first_rounds]):
            parts.append((_round_loss(same_law[0], signal, tail), count))
    if known_signals:
        # Events whose round is known act as one Gaussian.
        parts.append((_epoch_loss(((math.hypot(*known_signals), 1),), tail), 1))
    return parts


def _epsilon(
    parts: list[tuple[_Loss, int]], tail: float, delta: float, bound: float
) -> float:
    """ε of a sum of losses, each with its number of terms; at most ``bound``."""
    loss, count = parts[0]
    if len(parts) > 1 or count > 1:
        # ln(P/Q) under P, and ln(Q/P) under Q, with P the run with the client and Q that without.
        removed = [(part.losses, part.members, count) for part, count in parts]
        added = [(-part.losses, part.null, count) for part, count in parts]
        if delta < MIN_FFT_DELTA:
            infinity_mass = sum(
                count * part.infinity_mass for part, count in parts
            )
            epsilons = [
                renyi_epsilon(terms, delta, infinity_mass)
                for terms in (removed, added)
            ]
            return min(bound, max(epsilons))
        high = chernoff_bound(removed, tail)
        low = -chernoff_bound(added, tail)
        loss = _composed(parts, low, high, tail)
    if loss.delta(0.0) <= delta:
        return 0.0
    # Rounding may have lifted δ, but ε cannot exceed the bound.
    if not loss.delta(bound) < delta:
        return bound

    def excess(epsilon: float) -> float:
        return loss.delta(epsilon) - delta

    return float(scipy.optimize.brentq(excess, 0.0, bound, rtol=_ROOT_ERROR))


def _composed(
    parts: list[tuple[_Loss, int]], low: float, high: float, tail: float
) -> _Loss:
    """The sum of independent losses, each with its number of terms, by a Fourier transform.

    Sums outside the range from ``low`` to ``high`` have a probability of at most ``tail`` at each
    end (Chernoff's bound). They wrap around to the grid's other end, so they are also counted as
    infinite.
    """
    # Each loss is rounded by less than a step, up or down, so the sum of n losses by a few √n
    # steps (Hoeffding).
    margin = _ROUNDING_MARGIN * math.ceil(
        math.sqrt(sum(count for _, count in parts))
    )
    step = (high - low) / (_CELLS - 2 * margin)
    first = 0  # the smallest sum of all terms, in steps
    finite = 1.0  # the probability that no term is infinite
    transforms = np.ones((2, _CELLS // 2 + 1), np.complex128)
    for part, count in parts:
        law = split(part.losses, np.array([part.null, part.members]), step)
        places = np.arange(len(law.null)) % _CELLS
        for transform, masses in zip(
            transforms, (law.null, law.mean), strict=True
        ):
            transform *= (
                np.fft.rfft(np.bincount(places, masses, _CELLS)) ** count
            )
        first += count * law.first
        finite *= (1 - part.infinity_mass) ** count
    start = math.floor(low / step) - margin
    masses = np.roll(np.fft.irfft(transforms, axis=1), first - start, axis=1)
    null, members = np.maximum(masses, 0.0)
    losses = step * np.arange(start, start + _CELLS, dtype=np.float64)
    return _Loss(losses, null, members, 1 - finite + 2 * tail)


def _cells(signals: Floats) -> Floats:
    """The cell of 1% of each signal, counted from the smallest signal."""
    logs = np.log(signals / signals.min()) / math.log1p(_CELL_WIDTH)
    return np.asarray(np.floor(logs + _ROUNDING))


def _groups(signals: Floats) -> Groups:
    """The signals of an epoch; those in one cell of 1% count as their root mean square."""
    ordered = np.sort(np.maximum(signals, _MIN_SIGNAL))
    first_of_cell = np.flatnonzero(np.diff(_cells(ordered))) + 1
    return tuple(
        (float(np.sqrt(np.mean(part**2))), len(part))
        for part in np.split(ordered, first_of_cell)
    )


def _raised_signals(signals: Floats) -> tuple[float, ...]:
    """The signals, each raised to the largest one of its cell of 1%."""
    raised = np.maximum(signals, _MIN_SIGNAL)
    cells = _cells(raised)
    return tuple(float(raised[cells == cell].max()) for cell in cells)


def _round_ratio(signal: float, tail: float) -> LogLaw:
    """Likelihood ratio of a round for a client who takes part for sure."""
    return lognormal(np.array([signal]), np.ones(1), tail)


def _normalised(total: LogLaw, weight: float) -> _Loss:
    """The loss of a mixture: the logarithm of its ratios' sum over the sum of their weights."""
    losses = total.logs() - math.log(weight)
    return _Loss(losses, total.null, total.mean / weight, total.lost / weight)


@functools.lru_cache(maxsize=64)
def _epoch_loss(groups: Groups, tail: float) -> _Loss:
    """Privacy loss of an epoch: the logarithm of the mean of its rounds' likelihood ratios."""
    count = sum(number for _, number in groups)
    if count > _MAX_SHORT_EPOCH and len(groups) > _MAX_GROUPS:
        # An approximation: each round draws its signal independently.
        signals, numbers = np.array(groups).T
        law = lognormal(signals, numbers / count, tail)
        return _normalised(total_of(law, count, tail), count)
    laws = [
        total_of(_round_ratio(signal, tail), number, tail)
        for signal, number in groups
    ]
    while len(laws) > 1:
        pairs = zip(laws[::2], laws[1::2], strict=False)
        sums = [plus(a, b, tail) for a, b in pairs]
        unpaired = laws[-1:] if len(laws) % 2 else []
        laws = sums + unpaired
    return _normalised(laws[0], count)


@functools.lru_cache(maxsize=64)
def _spread_loss(
    signals: tuple[float, ...], chances: tuple[float, ...], tail: float
) -> _Loss:
    """The loss of an event with one of several rounds, or none.

    Its likelihood ratio is 1 − q + Σ_t q_t·X_t, with q = Σ_t q_t.
    """

    def total(start: int, end: int) -> LogLaw:
        """Σ_t q_t·X_t over some of the rounds, from both halves of them."""
        if end - start == 1:
            return _scaled(_round_ratio(signals[start], tail), chances[start])
        middle = start + (end - start) // 2
        first = total(start, middle)
        if signals[start:middle] == signals[middle:end]:
            factors = np.divide(chances[middle:end], chances[start:middle])
            # With geometric chances, the second half has the law of a multiple of the first.
            if np.ptp(factors) <= _ROUNDING * factors[0]:
                return plus(first, _scaled(first, float(factors.max())), tail)
        return plus(first, total(middle, end), tail)

    chance = min(math.fsum(chances), 1.0)
    return _event_loss(_normalised(total(0, len(signals)), chance), chance)


def _scaled(law: LogLaw, factor: float) -> LogLaw:
    """The law of ``factor`` times the variable."""
    logs = law.logs() + math.log(factor)
    masses = np.array([law.null, factor * law.mean])
    return split(logs, masses, law.step, factor * law.lost)


def _event_loss(loss: _Loss, chance: float) -> _Loss:
    """The loss of an event of probability q with likelihood ratio X: 1 − q + q·X."""
    if chance == 1:
        return loss
    losses = np.logaddexp(math.log1p(-chance), math.log(chance) + loss.losses)
    members = (1 - chance) * loss.null + chance * loss.members
    return _Loss(
        np.asarray(losses, np.float64),
        loss.null,
        members,
        chance * loss.infinity_mass,
    )


def _round_loss(event: Event, signal: float, tail: float) -> _Loss:
    """The loss of an event with one possible round, which may have the client several times.

    The likelihood ratio is Σ_j p_j exp(j·a·s − (j·a)²/2), which rises with the round's score s.
    Each cell of a grid of scores is split between its ends so that its probability and its mean
    ratio do not change, as in `sums_of_lognormals`.
    """
    if event.is_coin:
        return _event_loss(_epoch_loss(((signal, 1),), tail), event.chance)
    # Absence is a shift of 0.
    shifts = signal * np.append(event.counts, 0.0)
    chances = np.append(event.chances, 1 - event.chance)
    farthest = -float(scipy.special.ndtri(tail))
    end = min(farthest + float(shifts.max()), _LARGEST_SCORE)
    edges = np.linspace(-farthest, end, 2 * _CELLS_OF_A_ROUND + 1)
    logs = log_sums(shifts * edges[:, None] - shifts**2 / 2, chances)
    members = np.zeros(len(edges) - 1)
    for shift, chance in zip(shifts, chances, strict=True):
        members += chance * _masses(edges - shift)
    return _loss_of_cells(logs, _masses(edges), members, tail)


def _loss_of_cells(
    logs: Floats, null: Floats, members: Floats, tail: float
) -> _Loss:
    """The loss of cells that are split between their edges, with the same mean ratio.

    Args:
        logs: losses at the edges, ascending, ``(n + 1,)``.
        null: probabilities of the cells if the client did not take part, ``(n,)``.
        members: probabilities of the cells if it may have taken part, ``(n,)``.
        tail: the largest probability that is left out at each end.
    """
    low = np.exp(logs[:-1])
    high = np.exp(logs[1:])
    # The divisor is 0 if both edges have the same ratio, and then so is the dividend.
    upper = (members - null * low) / np.maximum(high - low, _SMALLEST_DIVISOR)
    upper = np.clip(upper, 0.0, null)
    null_at_edges = np.append(null - upper, 0.0) + np.append(0.0, upper)
    members_at_edges = null_at_edges * np.exp(logs)
    infinity_mass = max(1 - float(members_at_edges.sum()), 0.0) + 2 * tail
    return _Loss(logs, null_at_edges, members_at_edges, infinity_mass)


def _cohort_loss(rate: float, signal: float, tail: float) -> _Loss:
    """The loss of a round with a cohort of fixed size, whatever the other clients' updates are.

    With probability q the client is in the cohort; else another client is in its place. The
    client's update moves the mean by a, the other client's by b·a, |b| ≤ 1. The worst case is
    b = −1 for losses above 0, and b = 1 for losses below 0 (docs/notes/fixed-size.md). The loss
    is 0 at a score of half the signal.
    """
    farthest = -float(scipy.special.ndtri(tail))
    end = min(farthest + signal, _LARGEST_SCORE)
    # Scores with losses below and above 0.
    below = np.linspace(-farthest, signal / 2, _CELLS_OF_A_ROUND + 1)
    above = np.linspace(signal / 2, end, _CELLS_OF_A_ROUND + 1)
    absent = 1 - rate
    # Logarithms of the probability of each client times its likelihood ratio to a round without
    # either of them.
    log_client = math.log(rate) + (signal * above - signal**2 / 2)
    log_another = np.log(absent) - signal * above - signal**2 / 2
    logs_below = -np.log(absent + rate * np.exp(signal**2 / 2 - signal * below))
    logs_above = np.logaddexp(log_client, log_another)
    logs_above -= np.logaddexp(math.log(rate), log_another)
    another_above = absent * _masses(above + signal)
    members_below = _masses(below - signal)
    members_above = rate * _masses(above - signal) + another_above
    null_below = rate * _masses(below) + absent * members_below
    null_above = rate * _masses(above) + another_above
    # In the cell between the two halves, the remaining probability has a loss of 0.
    atom = max(1 - float(members_below.sum() + members_above.sum()), 0.0)
    return _loss_of_cells(
        np.concatenate([logs_below, logs_above]),
        np.concatenate([null_below, [atom], null_above]),
        np.concatenate([members_below, [atom], members_above]),
        tail,
    )


def _masses(edges: Floats) -> Floats:
    """Probabilities of a standard normal between edges, precise in both tails."""
    lower = scipy.special.ndtr(edges)
    upper = scipy.special.ndtr(-edges)
    return np.asarray(np.where(edges[:-1] > 0, -np.diff(upper), np.diff(lower)))


def _revealed_choice(loss: _Loss, alternative: _Loss, chance: float) -> _Loss:
    """``loss`` with probability ``chance``, else ``alternative``.

    The adversary learns which of the two it is.
    """
    losses = np.concatenate([loss.losses, alternative.losses])
    null = np.concatenate([chance * loss.null, (1 - chance) * alternative.null])
    members = np.concatenate(
        [chance * loss.members, (1 - chance) * alternative.members]
    )
    infinity_mass = chance * loss.infinity_mass
    infinity_mass += (1 - chance) * alternative.infinity_mass
    ascending = np.argsort(losses)
    return _Loss(
        losses[ascending], null[ascending], members[ascending], infinity_mass
    )
