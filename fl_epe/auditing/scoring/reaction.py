"""How training reacts to a client, where canaries take part in fewer rounds than it does.

What a client adds to a round is partly taken back in later ones: the others train towards their own
optima, from wherever the model stands. A canary that takes part as often as a client shows that in
its own score. Where canaries take part less often, a client's score follows from theirs only if
that is known. Two cases can be told:

- The noise is most of the residual. Then the others react to the noise of earlier rounds as
  they react to the client, and that is seen: the part of each round that does not follow from
  earlier ones has the client's contribution whole.
- Otherwise the reaction is fitted. In each round a share ρ of how far the model has been moved
  along a canary is taken back: ``f_t = c_t − ρ·p_{t−1}``, with ``p`` the position along the canary
  and ``c_t`` its contribution. ρ and κ are fitted to the whitened scores of all canaries in all
  rounds, also those after their own. For quadratic losses that is exact.

Derivation and coverage: docs/notes/few-nodes.md, simulations/studies/few_nodes.py.

Examples:
    >>> step = ServerStep("sgd", np.ones(3))
    >>> moved = pulled_back(np.array([[1.0], [0.0], [0.0]]), np.full((3, 1), 0.5), step)
    >>> moved.updates.ravel().tolist(), moved.position.tolist()
    ([1.0, -0.5, -0.25], [0.25])
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
import scipy

from fl_epe.auditing.record import NotMeasured, ServerStep
from fl_epe.checks import Floats

if TYPE_CHECKING:
    from fl_epe.auditing.scoring.view import View

RATES = -0.1, 0.9
"""The range of ρ."""
_MOST = 64  # canaries
_MODEL_ERROR = (
    0.1  # of ρ, as losses are not quadratic, and canaries hide a part of themselves
)
_STEP = 1e-3  # of ρ, for derivatives


@dataclasses.dataclass(frozen=True)
class Reaction:
    """How the rounds after a client's contribution react to it.

    Attributes:
        rate: ρ; ``None`` where they react as to the noise.
        error: standard error of ρ.
    """

    rate: float | None = None
    error: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Moved:
    """What contributions came to.

    Attributes:
        updates: part of each round's mean along each direction, ``(T, m)``.
        position: of the final model along each direction, ``(m,)``.
    """

    updates: Floats
    position: Floats


def pulled_back(contributions: Floats, rates: Floats, server: ServerStep) -> Moved:
    """The parts of the rounds' means, where a share of the position is taken back in each.

    Args:
        contributions: to each round's mean, ``(T, m)``.
        rates: ρ of each round and direction, ``(T, m)``.
        server: SGD.
    """
    steps = np.asarray(server.learning_rates)
    updates = np.empty_like(contributions)
    velocity, position = np.zeros((2, contributions.shape[1]))
    for t, contribution in enumerate(contributions):
        updates[t] = contribution - rates[t] * position
        velocity = server.momentum * velocity + updates[t]
        position = position + steps[t] * velocity
    return Moved(updates, position)


def fit_reaction(view: View) -> Reaction:
    """ρ by least squares, with κ, of canaries' scores in all rounds.

    Of many canaries those that took part most often are read.

    Args:
        view: of an adversary who sees every round's model.

    Raises:
        NotMeasured: if the record does not say enough.
    """
    record = view.record
    if record.correlation.window == 1:
        raise NotMeasured(
            "canaries took part in fewer rounds than a client, and how later rounds react to one is"
            " not known: that needs rotated canaries and a model of more than"
            f" {record.dim} parameters"
        )
    often = np.argsort(-record.presence.sum(axis=0), kind="stable")[:_MOST]
    scores = view.whitened_scores[:, often]
    shares = record.shares()[:, often] * 1.0
    # The residuals of other rounds have a part along the canary, which would hide it from itself.
    own = record.correlation.whiten(
        np.where(shares > 0, 0.0, view.round_scores[:, often])
    )
    rest = np.maximum(record.dim - np.sum(own**2, axis=0), 1.0)

    def product(first: Floats, second: Floats) -> float:
        along = np.sum(own * first, axis=0) * np.sum(own * second, axis=0)
        return float(np.sum(first * second) + np.sum(along / rest))

    def means_at(rate: float) -> Floats:
        return view.signals(shares, Reaction(rate))

    def scale(means: Floats) -> float:
        return product(means, scores) / product(means, means)

    def misfit(rate: float) -> float:
        means = means_at(rate)
        residual = scores - scale(means) * means
        return product(residual, residual)

    found = scipy.optimize.minimize_scalar(misfit, bounds=RATES, method="bounded")
    rate = float(found.x)
    means = means_at(float(found.x))
    slope = (means_at(rate + _STEP) - means_at(rate - _STEP)) / (2 * _STEP)
    slope -= product(means, slope) / product(means, means) * means  # what κ explains
    information = scale(means) ** 2 * product(slope, slope)
    chance = information**-0.5 if information > 0 else math.inf
    return Reaction(rate, math.hypot(chance, _MODEL_ERROR * rate))
