"""ε of privacy losses that were drawn, as several studies set it beside a bound."""

import math

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def epsilon_of(losses: Floats, delta: float) -> tuple[float, float]:
    """The smallest ε at δ of drawn losses, and its standard error; zeros where δ exceeds theirs."""

    def excess(epsilon: float) -> Floats:
        return np.asarray(-np.expm1(np.minimum(epsilon - losses, 0.0)))

    if excess(0.0).mean() <= delta:
        return 0.0, 0.0
    epsilon = float(
        scipy.optimize.brentq(
            lambda e: excess(e).mean() - delta, 0, losses.max()
        )
    )
    slope = float(
        np.exp(np.minimum(epsilon - losses, 0.0))[losses > epsilon].sum()
    ) / len(losses)
    return epsilon, float(excess(epsilon).std()) / math.sqrt(
        len(losses)
    ) / slope
