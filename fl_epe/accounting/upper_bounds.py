"""Analytical upper bounds on ε for one client's participation, and for a whole schedule.

Every bound holds against an adversary who sees the model after each round, and so also against one
who sees only the final one. The guarantees of a schedule are its
`fl_epe.schedules.ParticipationLaw`; the bounds hold for clients and for canaries.

Examples:
    >>> from fl_epe.schedules import Poisson
    >>> bound = tightest(upper_bounds(Poisson(10, 0.1).law(1000), 1.0, 1e-5), rounds_known=False)
    >>> bound.adjacency
    'add-or-remove'
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from fl_epe.accounting.composed_gaussians import (
    gaussian_epsilon,
    poisson_epsilon,
    random_participations_epsilon,
)
from fl_epe.accounting.expected_score_law import expected_score_law
from fl_epe.accounting.unknown_rounds import (
    fixed_size_epsilon,
    hidden_rounds_epsilon,
    partly_known_epsilon,
)
from fl_epe.checks import Floats
from fl_epe.schedules import Adjacency, ParticipationLaw
from fl_epe.wording import how_often


@dataclasses.dataclass(frozen=True)
class UpperBound:
    """An analytical ε and its assumptions.

    Attributes:
        epsilon: ε in nats; infinite without noise, or with so little that ε would overflow.
        rounds_known: whether the bound holds against an adversary who knows a client's rounds.
        adjacency: the relation of the two runs, "zero-out" or "add-or-remove".
        assumption: the other assumptions of the bound, in words.
        averages: whether δ is a mean over the draw of the client's participations. For a client
            who happens to take part often, ε is larger.
    """

    epsilon: float
    rounds_known: bool
    adjacency: Adjacency
    assumption: str
    averages: bool = False


@functools.lru_cache(maxsize=4096)
def upper_bounds(
    law: ParticipationLaw, noise_multiplier: float, delta: float
) -> tuple[UpperBound, ...]:
    """Every analytical ε that follows from a participation law.

    If the rounds are known, a limit R on participations gives √R/z-GDP (Dong, Roth, Su 2019),
    and m·√R/z-GDP for a unit of m records; for a client drawn at random δ is the mean over its
    number of participations. If the rounds are unknown, cohorts of fixed size give
    `fixed_size_epsilon`, and coins and uniform rounds of blocks give `amplified_bounds`.

    Args:
        law: the law of a client's participations.
        noise_multiplier: z ≥ 0.
        delta: target δ in (0, 1).

    Raises:
        ValueError: for an argument out of range.
    """
    records = 1 if law.local is None else law.local.records
    bounds = [
        UpperBound(
            epsilon=gaussian_epsilon(
                noise_multiplier / records, delta, law.limit
            ),
            rounds_known=True,
            adjacency="zero-out",
            assumption=f"takes part at most {how_often(law.limit)}",
        )
    ]
    pmf = _participations(law)
    if pmf is not None:
        bounds.append(
            UpperBound(
                epsilon=random_participations_epsilon(
                    noise_multiplier, delta, pmf
                ),
                rounds_known=True,
                adjacency="zero-out",
                assumption="participations follow the schedule's law",
                averages=True,
            )
        )
    cohorts = law.cohorts
    if cohorts is not None:
        bounds.append(
            UpperBound(
                epsilon=fixed_size_epsilon(
                    noise_multiplier,
                    cohorts.available,
                    cohorts.size,
                    cohorts.rounds,
                    delta,
                ),
                rounds_known=False,
                adjacency="zero-out",
                assumption="unknown cohorts of fixed size",
                averages=True,
            )
        )
    return *bounds, *amplified_bounds(law, noise_multiplier, delta)


def _participations(law: ParticipationLaw) -> Floats | None:
    """The probabilities of 0, 1, 2, … participations of a client, shape ``(n,)``.

    The result is ``None`` if they are not known, or if all clients take part equally often.
    """
    events = law.events or law.events_at_most
    if events is None or law.local is not None:
        return None
    counts = expected_score_law(events, np.ones(law.rounds))
    if counts is None or counts.shares.max() >= 1:
        return None
    participations = np.rint(counts.expected_scores).astype(np.int64)
    pmf = np.bincount(participations, counts.shares)
    return np.asarray(pmf, np.float64)


def amplified_bounds(
    law: ParticipationLaw,
    noise_multiplier: float,
    delta: float,
    bands: int = 1,
    overlap: float = 0.0,
) -> Iterator[UpperBound]:
    """The bounds for an adversary who does not know a client's rounds, where there is a theorem.

    - The client tosses a coin in each of its possible rounds, and its rounds are at least ``bands``
      apart. The bound is `poisson_epsilon` for the number of possible rounds (Choquette-Choo et al.
      2023, "(Amplified) Banded Matrix Factorization", Theorem 4).
    - Independent coins draw each record of a unit into steps, see `LocalSteps`. A step has a
      binomial number of the unit's records, which gives a mixture of Gaussians (Ganesh 2024,
      "Tight Group-Level DP Guarantees for DP-SGD with Sampling via Mixture of Gaussians
      Mechanisms"). All steps are composed.
    - The law has independent events whose privacy loss is at least that of the client's
      (``law.dominating``). These events are composed.
    - The client has one uniform round in each block (Chua et al. 2024, "Balls-and-Bins Sampling for
      DP-SGD"). With correlated noise the adversary is assumed to know the remainder of the round's
      index modulo ``bands``, and the round itself if it shares noise with another block.

    Args:
        law: the law of a client's participations.
        noise_multiplier: z.
        delta: target δ in (0, 1).
        bands: number of rounds over which noise is correlated, the round itself included; see
            `strategy_bounds`.
        overlap: largest inner product of columns of the strategy in neighbouring blocks.
    """
    coins = law.coins
    # A cap would make the coins depend on each other, which matters with correlated noise only.
    has_no_cap = coins is not None and law.limit >= coins.rounds
    is_separated = bands == 1 or (law.separation >= bands and has_no_cap)
    if coins is not None and coins.rate < 1 and is_separated:
        words = f"takes part by coins that the adversary does not see{coins.condition}"
        if bands > 1:
            words += f", in rounds at least as far apart as the strategy's bands, {bands}"
        yield UpperBound(
            epsilon=poisson_epsilon(
                noise_multiplier, coins.rate, coins.rounds, delta
            ),
            rounds_known=False,
            adjacency=law.adjacency,
            assumption=words,
            averages=True,
        )
    if not 0 < noise_multiplier < math.inf:
        return
    local = law.local
    # If all steps have one rate, those of a single record are the coins above.
    has_other_steps = (
        local is not None
        and local.participations > 0
        and (local.records > 1 or len(set(local.rates)) > 1)
    )
    if local is not None and has_other_steps and bands == 1:
        signals = np.full(local.total, 1 / noise_multiplier)
        yield UpperBound(
            epsilon=hidden_rounds_epsilon(local.every_step(), signals, delta),
            rounds_known=False,
            adjacency=law.adjacency,
            assumption="records take part in steps by coins that the adversary does not see",
            averages=True,
        )
    if law.dominating is not None and bands == 1:
        signals = np.full(law.rounds, 1 / noise_multiplier)
        yield UpperBound(
            epsilon=hidden_rounds_epsilon(law.dominating, signals, delta),
            rounds_known=False,
            adjacency=law.adjacency,
            assumption="has rounds that the adversary does not know",
            averages=True,
        )
    blocks = _hidden_rounds(law, bands) if law.uniform else []
    if blocks:
        signal = 1 / noise_multiplier
        known_signal = math.sqrt(1 + overlap) * signal
        words = "has a round in each block that the adversary does not know"
        if bands > 1:
            words += f"; the strategy has {bands} bands"
        yield UpperBound(
            epsilon=partly_known_epsilon(blocks, signal, known_signal, delta),
            rounds_known=False,
            adjacency="zero-out",
            assumption=words,
            averages=True,
        )


def _hidden_rounds(
    law: ParticipationLaw, bands: int
) -> list[tuple[int, float]]:
    """The arguments ``blocks`` of `partly_known_epsilon`.

    The adversary learns a round whose column shares rows with a column of a neighbouring block, and
    the remainder of every other round's index modulo ``bands``. The list is empty if some block has
    no possible round, or no block has two or more.
    """
    last = len(law.blocks) - 1
    blocks = []
    for block, (start, end) in enumerate(law.blocks):
        length = end - start
        # Only the first and the last block have fewer than two neighbours.
        num_neighbours = min(block, 1) + min(last - block, 1)
        num_revealed = (bands - 1) * num_neighbours
        num_possible = (length - num_revealed) // bands
        blocks.append((num_possible, num_revealed / length))
    possible = [num_possible for num_possible, _ in blocks]
    if min(possible) > 0 and max(possible) > 1:
        return blocks
    return []


def tightest(bounds: Iterable[UpperBound], *, rounds_known: bool) -> UpperBound:
    """The bound with the smallest ε.

    Args:
        bounds: the bounds, such as `upper_bounds`; at least one of them holds for known rounds.
        rounds_known: whether the adversary knows the client's rounds. A bound for known rounds
            holds for unknown rounds as well.
    """
    valid = [
        bound for bound in bounds if bound.rounds_known or not rounds_known
    ]
    return min(valid, key=lambda bound: bound.epsilon)
