"""ε of a client whose expected scores are known: one function for all adversaries.

Examples:
    >>> import numpy as np
    >>> from fl_epe.schedules import Poisson
    >>> round(epsilon_of_signals(np.array([1.0]), 1e-5), 3)  # one round, which is known
    4.377
    >>> events = Poisson(rounds=4, rate=0.5).law(100).events
    >>> epsilon_of_signals(np.ones(4), 1e-5, events) < epsilon_of_signals(np.ones(4), 1e-5)
    True
"""

import numpy as np

from fl_epe.accounting.expected_score_law import expected_score_law
from fl_epe.accounting.mixtures import unknown_expected_score_epsilon
from fl_epe.accounting.two_gaussians import epsilon_of_shift
from fl_epe.accounting.unknown_rounds import hidden_rounds_epsilon
from fl_epe.checks import Floats
from fl_epe.schedules import Events

_LEAST = 1e-9  # of a round's expected score, as logarithms are taken


def epsilon_of_signals(
    signals: Floats, delta: float, events: Events | None = None, *, final_only: bool = False
) -> float:
    """ε of a client whose score moves by ``signals`` where it takes part, in units of the noise.

    At known rounds ε of two Gaussians √Σ a_t² apart (Andrew et al. 2024, Algorithm 3, at the
    expected scores); at hidden ones that of the mixture over all rounds that it may have had.

    Args:
        signals: a_t of each of the client's rounds if they are known, else of each round that it
            may have, ``(T,)``; against the final model what the round adds to its only score.
        delta: target δ in (0, 1).
        events: how the client draws its rounds, if the adversary does not know them.
        final_only: whether only the final model is seen, so that signals add up to one score.

    Raises:
        ValueError: as `hidden_rounds_epsilon`, or if the law of the score would take minutes.
    """
    if events is None:
        size = float(signals.sum()) if final_only else float(np.linalg.norm(signals))
        return float(epsilon_of_shift(max(size, 0.0), delta))
    if not final_only:
        return hidden_rounds_epsilon(events, np.maximum(signals, _LEAST), delta)
    law = expected_score_law(events, signals)
    if law is None:
        raise ValueError("Expected events whose expected scores have a law that takes no minutes.")
    return unknown_expected_score_epsilon(law.expected_scores, delta, weights=law.shares)
