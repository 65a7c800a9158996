"""ε of secret rounds by Monte Carlo, where no theorem gives it. Noise may be correlated.

Whatever a client sends, and however noise is correlated, its privacy loss is at most that of one
pair of Gaussian mixtures, the dominating pair (proof: docs/notes/unknown-rounds.md). Losses of this
pair are drawn, and the result is an upper confidence bound for ε: it is too low with a stated
probability.

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

_MAX_IN_MEMORY = 8192  # number of draws that are in memory at a time
_STREAM = 31  # index of the random stream, see fl_epe.seeding
# Likelihood ratios are rescaled before they exceed the exponential of this number.
_LARGEST_EXPONENT = 300.0
# The largest score for which this holds, in standard deviations above the mean with the client. A
# float64 has room for higher ones.
_LARGEST_SCORE = 8.0
_ROOT_ERROR = 1e-9  # relative error of ε as a root


@dataclasses.dataclass(frozen=True, eq=False)
class SecretRounds:
    """A client who tosses a coin in each round, unless its last participation forbids it.

    Attributes:
        chances: the probability of taking part in each round, for a client who is not barred from
            it, ``(T,)``.
        barred_from: for each round t, the first round s such that a client whose last
            participation is in round s or later may not take part in round t, ``(T,)``, ascending.
        bands: rounds that are at least this number of rounds apart share no noise.
        root: A, the transpose of |C|/z, with columns of C of a norm below 1 scaled to a norm of 1,
            ``(T, T)``, sparse.
        signals: A·Aᵀ, the inner products of the rounds' signals in units of the noise, ``(T, T)``,
            sparse.
    """

    chances: Floats
    barred_from: Integers
    bands: int
    root: scipy.sparse.csr_array
    signals: scipy.sparse.csr_array

    def losses(
        self, draws: int, rng: np.random.Generator
    ) -> tuple[Floats, Floats]:
        """Draws of the losses of the dominating pair, ``(draws,)`` each.

        With P for a run with the client and Q for one without, they are ln(P/Q) under P, and
        ln(Q/P) under Q.
        """
        with_client = np.empty(draws)
        without_client = np.empty(draws)
        for first in range(0, draws, _MAX_IN_MEMORY):
            count = min(_MAX_IN_MEMORY, draws - first)
            block = slice(first, first + count)
            presence = self.presence(count, rng).astype(np.float64)
            scores = self._noise(count, rng) + self.signals @ presence
            with_client[block] = self.log_ratios(scores)
            without_client[block] = -self.log_ratios(self._noise(count, rng))
        return with_client, without_client

    def presence(self, count: int, rng: np.random.Generator) -> Booleans:
        """Draw the rounds in which each of ``count`` clients takes part, ``(T, count)``."""
        last_round = np.full(count, -1)
        present = np.empty((len(self.chances), count), bool)
        for t, chance in enumerate(self.chances):
            is_heads = rng.random(count) < chance
            present[t] = (last_round < self.barred_from[t]) & is_heads
            last_round[present[t]] = t
        return present

    def _noise(self, count: int, rng: np.random.Generator) -> Floats:
        """Draw the scores of `log_ratios` in runs without the client, ``(T, count)``."""
        normal = rng.standard_normal((len(self.chances), count))
        return np.asarray(self.root @ normal)

    def log_ratios(self, scores: Floats) -> Floats:
        """The log-likelihood ratio ln(P/Q) of each draw, ``(draws,)``.

        It is computed by a forward recursion over rounds. ``by_last_round`` has the sum of the
        likelihood ratios of all participation patterns with the same last round, for as long as
        this round bars the client from later ones or shares noise with them. Then the sum is added
        to ``free``, which starts as the ratio of no participation.

        Args:
            scores: the released values' inner products with the rows of ``root``, ``(T, draws)``.
        """
        squares = self.signals.diagonal()
        logs = np.zeros(scores.shape[1])
        free = np.ones(scores.shape[1])
        by_last_round: dict[int, Floats] = {}
        largest_exponent = squares.max() / 2
        largest_exponent += _LARGEST_SCORE * math.sqrt(squares.max())
        rounds_per_scaling = max(int(_LARGEST_EXPONENT / largest_exponent), 1)
        for t, chance in enumerate(self.chances):
            first_barring = self.barred_from[t]
            for last_round in list(by_last_round):
                shares_noise = last_round > t - self.bands
                if last_round < first_barring and not shares_noise:
                    free = free + by_last_round.pop(last_round)
            if chance == 0:
                continue
            present = free * chance
            free = free * (1 - chance)
            for last_round, ratios in by_last_round.items():
                if last_round < first_barring:
                    # The cross term of the Gaussian density, 1 if the rounds share no noise.
                    factor = math.exp(-float(self.signals[last_round, t]))
                    present += ratios * (chance * factor)
                    ratios *= 1 - chance
            present *= np.exp(scores[t] - squares[t] / 2)
            by_last_round[t] = present
            if t % rounds_per_scaling == 0:
                total = free + sum(by_last_round.values())
                logs += np.log(total)
                free = free / total
                for ratios in by_last_round.values():
                    ratios /= total
        return logs + np.log(free + sum(by_last_round.values()))


def secret_rounds(
    law: ParticipationLaw, strategy: Floats | None, noise_multiplier: float
) -> SecretRounds | None:
    """A client's rounds as a Markov chain, if they are secret and independent of other clients'.

    Args:
        law: the law of a client's participations.
        strategy: C, lower triangular, shape ``(T, T)``; ``None`` for independent noise.
        noise_multiplier: z > 0.

    Returns:
        The chain, or ``None`` for any other law, see `drawn_epsilon`.
    """
    # In these laws a client's rounds do not depend on other clients.
    is_independent = (
        law.uniform or law.coins is not None or law.dominating is not None
    )
    events = law.events
    if not (law.hidden and is_independent) or events is None:
        return None
    # A rest is the only thing by which the events depend on each other.
    has_only_rests = (
        len(events.shares) == 1
        and events.counts is None
        and events.keep == 1
        and events.most is None
        and events.exactly is None
    )
    is_chronological = np.all(np.diff(events.rounds) > 0)
    if not (has_only_rests and is_chronological):
        return None
    chances, barred_from = _chances_in_time(events, law.rounds)
    columns = np.eye(law.rounds) if strategy is None else np.abs(strategy)
    bands = bands_of(columns)
    # The latest participation that may precede one in each round, and the latest one that may
    # precede this; -1 for none.
    previous = barred_from - 1
    second_previous = np.where(previous >= 0, barred_from[previous] - 1, -1)
    distances = np.arange(law.rounds) - second_previous
    # The recursion over the last round is exact only if the round before it shares no noise with
    # the next one.
    if np.any(distances[second_previous >= 0] < bands):
        return None
    # A noisy count with independent noise may share the budget, so columns of a norm below 1 are
    # scaled to a norm of 1.
    scaled_columns = (
        columns
        / np.minimum(np.linalg.norm(columns, axis=0), 1)
        / noise_multiplier
    )
    root = scipy.sparse.csr_array(scaled_columns.T)
    return SecretRounds(chances, barred_from, bands, root, root @ root.T)


def _chances_in_time(events: Events, rounds: int) -> tuple[Floats, Integers]:
    """The fields ``chances`` and ``barred_from`` of `SecretRounds`.

    An event with several rounds becomes a coin in each round, whose chance is that of the round if
    the client was in no earlier round of the event.
    """
    chances = np.zeros(rounds)
    barred_from = np.arange(rounds)
    for event in np.unique(events.events):
        rows = events.events == event
        event_chances = events.chances[rows]
        event_rounds = events.rounds[rows]
        # The probability that the client is in no earlier round of the event.
        absent = 1 - np.append(0.0, np.cumsum(event_chances)[:-1])
        chances[event_rounds] = np.minimum(
            event_chances / np.maximum(absent, event_chances), 1.0
        )
        barred_from[event_rounds[0] : event_rounds[-1] + 1] = event_rounds[0]
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
    """An upper confidence bound for ε of a client whose rounds are secret.

    The adversary sees every round's model, and chooses adaptively what the client and all
    others send. δ is a mean over the draws of the schedule. Both directions of the dominating
    pair are drawn; the mean of each is bounded by Chernoff's bound for variables in [0, 1]
    (Hoeffding 1963, theorem 1).

    Args:
        law: the law of a client's participations.
        strategy: C, lower triangular, shape ``(T, T)``; ``None`` for independent noise.
        noise_multiplier: z > 0.
        delta: target δ in (0, 1).
        draws: number of draws of each direction; with 100/δ draws the bound is a few percent above
            the estimate.
        seed: the seed of the draws.
        confidence: probability over the draws that the bound is not below the exact ε, in
            (0, 1).

    Returns:
        The bound; ``None`` if the client's rounds are no such chain: they are not secret, its coins
        depend on other clients or a cap, or more than two of its rounds may be within the
        strategy's bands.

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
    # Each direction may fail with half of the probability 1 − confidence.
    log_failure = math.log((1 - confidence) / 2)
    divergence = -log_failure / draws
    # Even a mean of 0 does not show an expectation of at most δ.
    if -math.expm1(-divergence) >= delta:
        fewest = math.ceil(log_failure / math.log1p(-delta))
        raise_invalid("draws", draws, f"more than {fewest} for δ = {delta:g}")
    rng = generator(seed, _STREAM)
    largest_mean = _largest_mean(delta, divergence)
    return max(
        _epsilon_at_mean(losses, largest_mean)
        for losses in chain.losses(draws, rng)
    )


def _epsilon_at_mean(losses: Floats, largest_mean: float) -> float:
    """The least ε at which the mean of [1 − exp(ε − loss)]₊ is at most ``largest_mean``."""

    def excess(epsilon: float) -> float:
        gains = -np.expm1(np.minimum(epsilon - losses, 0.0))
        return float(gains.mean()) - largest_mean

    if excess(0.0) <= 0:
        return 0.0
    return float(
        scipy.optimize.brentq(
            excess, 0.0, float(losses.max()), rtol=_ROOT_ERROR
        )
    )


def _largest_mean(delta: float, divergence: float) -> float:
    """The largest mean of the draws that shows an expectation of at most ``delta``.

    It is the m < δ with ``KL(m ‖ δ) = divergence``. By Chernoff's bound, draws with an expectation
    above δ have a mean of at most m with probability at most ``exp(−draws · divergence)``.
    """

    def surplus(mean: float) -> float:
        kl_of_success = scipy.special.rel_entr(mean, delta)
        kl_of_failure = scipy.special.rel_entr(1 - mean, 1 - delta)
        return float(kl_of_success + kl_of_failure) - divergence

    return float(scipy.optimize.brentq(surplus, 0.0, delta))
