"""Substitute adjacency for who sees only the final model: its statistic, and a fast game.

`play_game` with `SUBSTITUTE`, many steps and a sampling rate plays it step by step. Where the
mechanism is a right noisy sum and nobody else has an update, the sum of all steps has a law in
closed form, and `play_hidden_state` draws from it: the same scores in law, in one step.

Examples:
    >>> from fl_epe.accounting import HiddenSubstitute
    >>> pair = HiddenSubstitute(noise_multiplier=10.0, sampling_rate=0.25, rounds=500)
    >>> scores = play_hidden_state(pair, observations=1000, seed=1)
    >>> bool(scores.observed.mean() > 0 > scores.unobserved.mean())
    True
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_epe.accounting import HiddenSubstitute
from fl_epe.auditing.games.statistic import ALONG_CANARY, Statistic
from fl_epe.auditing.scores import Scores
from fl_epe.seeding import generator

_NAME = "log-likelihood ratio of the hidden state"
_MOST_AT_ONCE = 10_000  # scores: each is compared with every number of participations


def hidden_state_ratio(pair: HiddenSubstitute, clip_norm: float = 1.0) -> Statistic:
    """Log of the ratio of the two mixtures at the sum along the canary: the best statistic.

    Args:
        pair: noise multiplier, sampling rate and number of steps of one observation.
        clip_norm: C, the norm of the canary.
    """
    if not clip_norm > 0:
        raise ValueError(f"Expected clip_norm={clip_norm} > 0.")
    return Statistic(
        _NAME, lambda seen: float(pair.log_ratio(ALONG_CANARY.score(seen) / clip_norm))
    )


def play_hidden_state(pair: HiddenSubstitute, *, observations: int, seed: int = 0) -> Scores:
    """Scores by `hidden_state_ratio` of ``observations`` runs of each world.

    Raises:
        ValueError: if there are fewer than 2 observations.
    """
    if observations < 2:
        raise ValueError(f"Expected observations={observations} >= 2.")
    rng = generator(seed)
    present, absent = (_ratios(pair, sign, observations, rng) for sign in (1, -1))
    return Scores(present, absent, statistic=_NAME)


def _ratios(
    pair: HiddenSubstitute, sign: int, count: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    times = rng.binomial(pair.rounds, pair.sampling_rate, count)
    totals = sign * times + rng.normal(0.0, pair.std, count)
    parts = np.array_split(totals, -(-count // _MOST_AT_ONCE))
    return np.concatenate([pair.log_ratio(part) for part in parts])
