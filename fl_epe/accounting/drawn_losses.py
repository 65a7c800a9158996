"""ε of secret rounds by Monte Carlo, where no theorem gives it: also under correlated noise.

Whatever a client sends, and however noise is correlated, its privacy loss is at most that of one
pair of Gaussian mixtures (proof: docs/notes/unknown-rounds.md). Losses of that pair are drawn, and
ε is an upper confidence bound: not exact, and wrong with a stated probability.

Examples:
    >>> from fl_epe.schedules import make_schedule
    >>> law = make_schedule("b-min-sep:separation=4", rounds=12, participations=2).law(1000)
    >>> round(drawn_epsilon(law, None, 1.0, 1e-2, draws=20_000, seed=0), 1)
    1.8
"""

import dataclasses
import math

import numpy as np
import scipy

from fl_epe.accounting.sensitivity import bands_of
from fl_epe.checks import (
    Booleans,
    Floats,
    Integers,
    check_count,
    check_probability,
    raise_invalid,
)
from fl_epe.schedules import Events, ParticipationLaw
from fl_epe.seeding import generator

_AT_ONCE = 8192  # draws that are in memory at a time
_STREAM = 31
_MOST_EXPONENT = 300.0  # of likelihood ratios between two scalings
_FAR = 8.0  # standard deviations of a score that are reckoned with


@dataclasses.dataclass(frozen=True, eq=False)
class SecretRounds:
    """A client who takes part by coins in time, some of which its last round bars.

    Attributes:
        chances: of taking part in each round, for a client who may, ``(T,)``.
        barred_from: a client whose last round is this one or later may not, ``(T,)``.
        bands: rounds so far apart that no noise is shared.
        root: rows whose products are ``signals``, ``(T, T)``, sparse.
        signals: CᵀC/z² of absolute values, with columns of length 1 at least, ``(T, T)``, sparse.
    """

    chances: Floats
    barred_from: Integers
    bands: int
    root: scipy.sparse.csr_array
    signals: scipy.sparse.csr_array

    def losses(
        self, draws: int, rng: np.random.Generator
    ) -> tuple[Floats, Floats]:
        """Privacy losses of the dominating pair, with and without the client, ``(draws,)``."""
        with_client = np.empty(draws)
        without_client = np.empty(draws)
        for first in range(0, draws, _AT_ONCE):
            count = min(_AT_ONCE, draws - first)
            part = slice(first, first + count)
            added = self.signals @ self.drawn(count, rng).astype(np.float64)
            with_client[part] = self.log_ratios(self._noise(count, rng) + added)
            without_client[part] = -self.log_ratios(self._noise(count, rng))
        return with_client, without_client

    def drawn(self, count: int, rng: np.random.Generator) -> Booleans:
        """In which rounds each of ``count`` clients takes part, ``(T, count)``."""
        last = np.full(count, -1)
        present = np.empty((len(self.chances), count), bool)
        for t, chance in enumerate(self.chances):
            present[t] = (last < self.barred_from[t]) & (
                rng.random(count) < chance
            )
            last[present[t]] = t
        return present

    def _noise(self, count: int, rng: np.random.Generator) -> Floats:
        """Scores without the client, ``(T, count)``."""
        return np.asarray(
            self.root @ rng.standard_normal((len(self.chances), count))
        )

    def log_ratios(self, scores: Floats) -> Floats:
        """Logarithms of the likelihood ratio of a client that may have taken part, ``(draws,)``.

        A forward recursion over the client's last round: rounds of which it may be one (``near``,
        whose noise is shared with rounds to come), which still bars others (``waiting``), or which
        no longer matters (``free``).

        Args:
            scores: of each round, its column's product with what was released, over z²,
                ``(T, draws)``.
        """
        squares = self.signals.diagonal()
        # The first round from which on each last round bars no other.
        free_from = np.searchsorted(
            self.barred_from, np.arange(len(scores)), side="right"
        )
        zeros = np.zeros(scores.shape[1])
        logs = zeros
        free = np.ones(scores.shape[1])
        near: dict[int, Floats] = {}
        waiting: dict[int, Floats] = {}
        largest_exponent = squares.max() / 2 + _FAR * math.sqrt(squares.max())
        rounds_between_scalings = max(int(_MOST_EXPONENT / largest_exponent), 1)
        for t, chance in enumerate(self.chances):
            past = t - self.bands
            if past in near:
                end = max(int(free_from[past]), t)
                waiting[end] = waiting.get(end, zeros) + near.pop(past)
            free = free + waiting.pop(t, zeros)
            if chance == 0:
                continue
            present = free * chance
            free *= 1 - chance
            for last in near:
                if last < self.barred_from[t]:
                    shared = math.exp(-float(self.signals[last, t]))
                    present += near[last] * (chance * shared)
                    near[last] *= 1 - chance
            present *= np.exp(scores[t] - squares[t] / 2)
            near[t] = present
            if t % rounds_between_scalings == 0:
                total = free + sum(waiting.values()) + sum(near.values())
                logs = logs + np.log(total)
                free = free / total
                near = {last: weights / total for last, weights in near.items()}
                waiting = {
                    end: weights / total for end, weights in waiting.items()
                }
        total = free + sum(waiting.values()) + sum(near.values())
        return np.asarray(logs + np.log(total))


def secret_rounds(
    law: ParticipationLaw, strategy: Floats | None, noise_multiplier: float
) -> SecretRounds | None:
    """A client's rounds as a chain in time, if the client draws them alone and nobody is told them.

    Args:
        law: how a client takes part.
        strategy: C, lower triangular, shape ``(T, T)``; ``None`` for independent noise.
        noise_multiplier: z > 0.

    Returns:
        ``None`` for any other law, see `drawn_epsilon`.
    """
    is_independent = (
        law.uniform or law.coins is not None or law.dominating is not None
    )
    events = law.events
    if not (law.hidden and is_independent) or events is None:
        return None
    is_plain = (
        len(events.shares) == 1 and events.counts is None and events.keep == 1
    )
    if not is_plain or events.most is not None or events.exactly is not None:
        return None
    if np.any(np.diff(events.rounds) <= 0):
        return None
    chances, barred_from = _chances_in_time(events, law.rounds)
    columns = np.eye(law.rounds) if strategy is None else np.abs(strategy)
    bands = bands_of(columns)
    # The last round from which each may be reached, and the last from which that one may.
    before = barred_from - 1
    second = np.where(before >= 0, barred_from[before] - 1, -1)
    if np.any((second >= 0) & (np.arange(law.rounds) - second < bands)):
        return None
    # A noisy count may share the budget, with independent noise: columns count as 1 at least.
    size = (
        columns
        / np.minimum(np.linalg.norm(columns, axis=0), 1)
        / noise_multiplier
    )
    root = scipy.sparse.csr_array(size.T)
    return SecretRounds(chances, barred_from, bands, root, root @ root.T)


def _chances_in_time(events: Events, rounds: int) -> tuple[Floats, Integers]:
    """Of taking part in each round for who may, and the first round that bars from it."""
    chances = np.zeros(rounds)
    barred_from = np.arange(rounds)
    for number in np.unique(events.events):
        rows = events.events == number
        of_event = events.chances[rows]
        when = events.rounds[rows]
        absent = 1 - np.append(0.0, np.cumsum(of_event)[:-1])  # before each row
        chances[when] = np.minimum(of_event / np.maximum(absent, of_event), 1.0)
        barred_from[when[0] : when[-1] + 1] = when[0]
    barred_from -= np.minimum(events.rest - 1, barred_from)
    return chances, barred_from


def drawn_epsilon(
    law: ParticipationLaw,
    strategy: Floats | None,
    noise_multiplier: float,
    delta: float,
    *,
    draws: int,
    seed: int,
    confidence: float = 0.999,
) -> float | None:
    """An upper confidence bound for ε of a client whose rounds the adversary is not told.

    The adversary sees every round, and chooses what the client and all others send, each time after
    what was released before. δ is a mean over what the schedule draws. Both directions of the
    dominating pair are drawn; the mean of each is bounded by Chernoff's bound for variables in
    [0, 1] (Hoeffding 1963, theorem 1).

    Args:
        law: how a client takes part.
        strategy: C, lower triangular, shape ``(T, T)``; ``None`` for independent noise.
        noise_multiplier: z > 0.
        delta: in (0, 1).
        draws: of each direction; with 100/δ of them the bound is a few percent above the estimate.
        seed: of the draws.
        confidence: probability over the draws that ε is at least the exact one, in (0, 1).

    Returns:
        ``None`` where the client's rounds do not have such a law: its coins depend on other
        clients or a cap, or more than two of its rounds may be within the strategy's bands.

    Raises:
        ValueError: for an argument out of range, or with too few draws for this δ.
    """
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    check_count("draws", draws)
    if not 0 < noise_multiplier < math.inf:
        raise_invalid(
            "noise_multiplier", noise_multiplier, "positive and finite"
        )
    chain = secret_rounds(law, strategy, noise_multiplier)
    if chain is None:
        return None
    log_doubt = math.log(2 / (1 - confidence))  # half for each direction
    doubt = log_doubt / draws
    if -math.expm1(-doubt) >= delta:
        fewest = math.ceil(log_doubt / -math.log1p(-delta))
        raise_invalid("draws", draws, f"more than {fewest} for δ = {delta:g}")
    rng = generator(seed, _STREAM)
    largest_mean = _largest_mean(delta, doubt)
    return max(
        _largest_epsilon(losses, largest_mean)
        for losses in chain.losses(draws, rng)
    )


def _largest_epsilon(losses: Floats, largest_mean: float) -> float:
    """The least ε at which the mean of [1 − exp(ε − loss)]₊ is at most ``largest_mean``."""

    def excess(epsilon: float) -> float:
        gains = -np.expm1(np.minimum(epsilon - losses, 0.0))
        return float(gains.mean()) - largest_mean

    if excess(0.0) <= 0:
        return 0.0
    return float(
        scipy.optimize.brentq(excess, 0.0, float(losses.max()), rtol=1e-9)
    )


def _largest_mean(delta: float, doubt: float) -> float:
    """The largest mean of draws from which the expectation is surely at most δ."""

    def surplus(mean: float) -> float:
        divergence = scipy.special.rel_entr(mean, delta)
        divergence += scipy.special.rel_entr(1 - mean, 1 - delta)
        return float(divergence) - doubt

    return float(scipy.optimize.brentq(surplus, 0.0, delta))
