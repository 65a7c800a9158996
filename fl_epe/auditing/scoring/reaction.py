"""The reaction of training to a client, for canaries that take part in fewer rounds.

A client's contribution to a round is partly undone in later rounds, as the other clients train
towards their own optima from the current model. The score of a canary that takes part as often
as a client includes this reaction. If canaries take part less often, a client's score can be
predicted from theirs only if the reaction is known. There are two cases:

- Noise dominates the residual. The other clients then react to the noise of earlier rounds as
they
  react to the client, and whitening measures the reaction: the innovation of each round
  contains the client's whole contribution.
- Otherwise the reaction is fitted. In each round clients undo a share ρ of the model's
displacement
  along a canary: ``f_t = c_t − ρ·p_{t−1}``, with ``p`` the position along the canary and
  ``c_t`` its contribution. ρ and κ are fitted to the whitened scores of all canaries in all
  rounds, also those after their participations. For quadratic losses the model is exact.

Derivation and coverage: docs/notes/few-nodes.md, simulations/studies/few_nodes.py.

Examples:
    >>> step = ServerStep("sgd", np.ones(3))
    >>> moved = pulled_back(np.array([[1.0], [0.0], [0.0]]), np.full((3, 1), 0.5), step)
    >>> moved.updates.ravel().tolist(), moved.position.tolist()
    ([1.0, -0.5, -0.25], [0.25])
"""

import dataclasses

import numpy as np

from fl_epe.auditing.record import ServerStep
from fl_epe.checks import Floats

RATES = (-0.1, 0.9)
"""The range of ρ."""


@dataclasses.dataclass(frozen=True)
class Reaction:
    """The reaction of later rounds to a client's contribution.

    Attributes:
        rate: ρ; ``None`` if they react to the contribution as they react to the noise.
        error: standard error of ρ.
    """

    rate: float | None = None
    error: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Moved:
    """The effect of contributions on the rounds' means and on the final model.

    Attributes:
        updates: part of each round's mean along each direction, ``(T, m)``.
        position: position of the final model along each direction, ``(m,)``.
    """

    updates: Floats
    position: Floats


def pulled_back(
    contributions: Floats, rates: Floats, server: ServerStep
) -> Moved:
    """The parts of the rounds' means, if clients undo a share of the position in each round.

    Args:
        contributions: contributions to each round's mean, ``(T, m)``.
        rates: ρ of each round and direction, ``(T, m)``.
        server: the server's SGD step.
    """
    steps = np.asarray(server.learning_rates)
    updates = np.empty_like(contributions)
    velocity = np.zeros(contributions.shape[1])
    position = np.zeros(contributions.shape[1])
    for t, contribution in enumerate(contributions):
        updates[t] = contribution - rates[t] * position
        velocity = server.momentum * velocity + updates[t]
        position = position + steps[t] * velocity
    return Moved(updates, position)
