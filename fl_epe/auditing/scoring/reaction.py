"""The reaction of training to a client, for canaries that take part in fewer rounds.

A client's contribution to a round is partly undone in later rounds, as the other clients train
towards their own optima from the current model. The score of a canary that takes part as often
as a client includes this reaction. If canaries take part less often, a client's score can be
predicted from theirs only if the reaction is known. There are two cases:

- Noise dominates the residual. The other clients then react to a client's contribution as they
  react to the noise of earlier rounds. Whitening removes both reactions: the client's whole
  contribution is in the part of each of its rounds that earlier rounds do not predict.
- Otherwise the reaction is fitted. It is assumed that in each round clients undo a share ρ of the
  model's displacement along a canary: ``f_t = c_t − ρ·p_{t−1}``, where ``c_t`` is the canary's
  contribution to round t, ``f_t`` the part of the round's mean along the canary, and ``p_t`` the
  model's position along it. ρ and κ are fitted to the whitened scores of all canaries in all
  rounds, also in rounds after their participations. The assumption is exact for quadratic losses.

Derivation and coverage: docs/notes/few-nodes.md, simulations/studies/few_nodes.py.

Examples:
    >>> step = ServerStep("sgd", np.ones(3))
    >>> response = model_response(np.array([[1.0], [0.0], [0.0]]), np.full((3, 1), 0.5), step)
    >>> response.updates.ravel().tolist(), response.positions.tolist()
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
        rate: the share ρ that is undone; ``None`` if later rounds react to a contribution as
            they react to the noise.
        error: standard error of ρ.
    """

    rate: float | None = None
    error: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class ModelResponse:
    """The components of the means and of the final model along the directions of m contributions.

    Attributes:
        updates: the part of each round's mean along each direction, ``(T, m)``.
        positions: the final model's position along each direction, ``(m,)``.
    """

    updates: Floats
    positions: Floats


def model_response(
    contributions: Floats, rates: Floats, server: ServerStep
) -> ModelResponse:
    """The response of the model if clients undo a share of the position in each round.

    Args:
        contributions: contributions to each round's mean, ``(T, m)``.
        rates: ρ of each round and direction, ``(T, m)``.
        server: the server's SGD step.
    """
    steps = np.asarray(server.learning_rates)
    updates = np.empty_like(contributions)
    velocity = np.zeros(contributions.shape[1])
    positions = np.zeros(contributions.shape[1])
    for t, contribution in enumerate(contributions):
        updates[t] = contribution - rates[t] * positions
        velocity = server.momentum * velocity + updates[t]
        positions = positions + steps[t] * velocity
    return ModelResponse(updates, positions)
