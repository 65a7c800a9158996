"""The analytical ε of the answer's client and adversary.

If the adversary knows the client's rounds S, it is ε of a Gaussian mechanism: μ-GDP with
``μ = √(Σ_{s,t∈S} |(CᵀC)_st|·r_s·r_t)/z``. C is the strategy of correlated noise (the identity for
independent noise), and r the client's share of the mean, divided by the share that the noise is
calibrated to (Dong, Roth, Su 2019; Denisov et al. 2022). If sampling hides the rounds, it is ε by
the schedule's theorem (`fl_epe.accounting.upper_bounds`). Both hold for every round's model, and
so for the final one, by post-processing.
"""

import dataclasses
import math

import numpy as np

from fl_epe import accounting
from fl_epe.auditing.answer.audited_client import AuditedClient
from fl_epe.auditing.record import Mechanism
from fl_epe.checks import Floats
from fl_epe.schedules import Adjacency


@dataclasses.dataclass(frozen=True)
class Analytical:
    """An analytical ε and its assumptions.

    Attributes:
        epsilon: ε in nats; infinite without noise, ``None`` if no theorem is known to apply.
        knows_rounds: whether ε holds against an adversary who knows the client's rounds.
        adjacency: the relation of the two runs, "zero-out" or "add-or-remove".
        assumption: the assumption of ε, in words; without an ε the reason why there is none.
    """

    epsilon: float | None
    knows_rounds: bool
    adjacency: Adjacency
    assumption: str


def analytical(
    mechanism: Mechanism, client: AuditedClient, delta: float
) -> Analytical:
    """The analytical ε of a client of a run, after all rounds of the mechanism.

    Args:
        mechanism: the mechanism of these rounds.
        client: the client.
        delta: target δ.
    """
    law = mechanism.participation
    z = mechanism.noise_multiplier
    rounds = len(mechanism.clip_norms)

    def result(epsilon: float | None, assumption: str) -> Analytical:
        return Analytical(
            epsilon, client.secret is None, law.adjacency, assumption
        )

    if z is None:
        return result(None, "the noise is not known")
    if rounds == 0 or not 0 < client.participations < math.inf:
        return result(None, "nobody took part")
    if z == 0:
        return result(math.inf, "there is no noise")
    relative = _relative_contributions(mechanism)
    if relative is None:
        return result(None, "what a client adds is not known")
    if client.secret is not None:
        # The theorems are for clients with the contribution that the noise is calibrated to. A
        # larger one has the effect of a smaller noise multiplier.
        z /= max(1.0, float(relative.max()))
        bounds = accounting.strategy_bounds(
            law.first(rounds), mechanism.strategy, z, delta
        )
        bound = accounting.tightest(bounds, rounds_known=False)
        return result(bound.epsilon, bound.assumption)
    sensitivity = _sensitivity(mechanism, client, relative)
    if sensitivity == 0:
        return result(None, "no round of the client released a model")
    epsilon = accounting.gaussian_epsilon(z / sensitivity, delta)
    return result(epsilon, "the adversary knows the client's rounds")


def _relative_contributions(mechanism: Mechanism) -> Floats | None:
    """The contribution of a client of median weight, relative to the calibrated one, ``(T,)``.

    The calibrated contribution is that to which the noise is calibrated. Unknown values are
    replaced by the largest known one; the result is ``None`` if none is known.
    """
    num_clients = mechanism.noise_cohort_size
    if mechanism.contributions is None or not num_clients:
        return np.ones(len(mechanism.clip_norms))
    relative = mechanism.contributions * num_clients / mechanism.clip_norms
    is_known = np.isfinite(relative)
    if not is_known.any():
        return None
    return np.where(is_known, relative, float(relative[is_known].max()))


def _sensitivity(
    mechanism: Mechanism, client: AuditedClient, relative: Floats
) -> float:
    """The sensitivity to all rounds of the client, in clip norms, given the noise's correlation.

    Args:
        mechanism: the mechanism.
        client: the client.
        relative: the result of `_relative_contributions`.
    """
    strategy = mechanism.strategy
    patterns = client.patterns
    if strategy is None:
        mean_squares = np.full(
            len(relative), client.participations / len(relative)
        )
        if patterns.any():
            mean_squares = np.mean(patterns**2, axis=1)
        return float(np.sqrt(mean_squares @ relative**2))
    gram = np.abs(strategy.T @ strategy)
    if not patterns.shape[1]:
        return math.sqrt(client.participations * float(gram.sum()) / len(gram))
    contributions = relative[:, None] * patterns
    squares = np.einsum(
        "tm,ts,sm->m", contributions, gram, contributions, optimize=True
    )
    # At least the sensitivity with independent noise and the calibrated contribution.
    return max(float(np.sqrt(squares).mean()), math.sqrt(client.participations))
