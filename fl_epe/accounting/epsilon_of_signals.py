"""ε of a client whose expected scores are known, for an adversary who sees every round.

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

from fl_epe.accounting.two_gaussians import epsilon_of_shift
from fl_epe.accounting.unknown_rounds import hidden_rounds_epsilon
from fl_epe.checks import Floats
from fl_epe.schedules import Events

# Smaller expected scores are raised to this one, because `hidden_rounds_epsilon` refuses 0.
_MIN_SIGNAL = 1e-9


def epsilon_of_signals(
    signals: Floats, delta: float, events: Events | None = None
) -> float:
    """ε of a client from the expected score of each round, in units of the noise.

    If the adversary knows the client's rounds, it is ε of two Gaussians that are √Σ a_t² apart
    (Andrew et al. 2024, Algorithm 3, at the expected scores). If not, it is ε of the mixture over
    all rounds that the client may have.

    Args:
        signals: a_t ≥ 0 of each of the client's rounds if they are known, ``(R,)``; else of each
            round of the run, ``(T,)``.
        delta: target δ in (0, 1).
        events: how the client draws its rounds, if the adversary does not know them.

    Raises:
        ValueError: as `hidden_rounds_epsilon`.
    """
    if events is None:
        return float(epsilon_of_shift(float(np.linalg.norm(signals)), delta))
    return hidden_rounds_epsilon(
        events, np.maximum(signals, _MIN_SIGNAL), delta
    )
