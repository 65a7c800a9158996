"""What theory promises a client of a run: the analytical ε of the answer's client and adversary.

Where the adversary knows the client's rounds, a Gaussian mechanism with that client's own rounds
and share of the mean: μ-GDP with ``μ = √(Σ_{s,t∈S} |(CᵀC)_st|·r_s·r_t)/z``, C the strategy of
correlated noise (the identity for independent noise) and r the client's share over the one that
the noise is for (Dong, Roth, Su 2019; Denisov et al. 2022). Where sampling hides the rounds, the
schedule's theorem (`fl_epe.accounting.upper_bounds`). Both are for every round's model, and hold
for the final one, which is made of them.
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
        epsilon: in nats; infinite without noise, ``None`` if no theorem is known to apply.
        knows_rounds: whether it holds against an adversary who knows the client's rounds.
        adjacency: which two runs it tells apart: "zero-out" or "add-or-remove".
        assumption: what it assumes, in words; without an ε why there is none.
    """

    epsilon: float | None
    knows_rounds: bool
    adjacency: Adjacency
    assumption: str


def analytical(mechanism: Mechanism, client: AuditedClient, delta: float) -> Analytical:
    """The analytical ε of a client of a run, after the rounds so far or all of them.

    Args:
        mechanism: of these rounds.
        client: whose.
        delta: target δ.
    """
    law, z, rounds = (
        mechanism.participation,
        mechanism.noise_multiplier,
        len(mechanism.clip_norms),
    )

    def without(epsilon: float | None, assumption: str) -> Analytical:
        return Analytical(epsilon, client.secret is None, law.adjacency, assumption)

    if z is None:
        return without(None, "the noise is not known")
    if rounds == 0 or not 0 < client.participations < math.inf:
        return without(None, "nobody took part")
    if z == 0:
        return without(math.inf, "there is no noise")
    shares = _shares(mechanism)
    if shares is None:
        return without(None, "what a client adds is not known")
    if client.secret is not None:
        bound = _at_hidden_rounds(mechanism, z / max(1.0, float(shares.max())), delta)
        return without(bound.epsilon, bound.assumption)
    sensitivity = _sensitivity(mechanism, client, shares)
    if sensitivity == 0:
        return without(None, "no round of the client released a model")
    epsilon = accounting.gaussian_epsilon(z / sensitivity, delta)
    return without(epsilon, "the adversary knows the client's rounds")


def _at_hidden_rounds(
    mechanism: Mechanism, z: float, delta: float
) -> accounting.UpperBound:
    """By the law's theorem; ``z`` is that of a client of median weight."""
    law = mechanism.participation.first(len(mechanism.clip_norms))
    found = accounting.strategy_bounds(law, mechanism.strategy, z, delta)
    return accounting.tightest(found, rounds_known=False)


def _shares(mechanism: Mechanism) -> Floats | None:
    """What a client of median weight adds, over what the noise is for, ``(T,)``."""
    expected = mechanism.noise_is_for
    if mechanism.contributions is None or not expected:
        return np.ones(len(mechanism.clip_norms))
    shares = mechanism.contributions * expected / mechanism.clip_norms
    known = np.isfinite(shares)
    if not known.any():
        return None
    return np.where(known, shares, float(shares[known].max()))


def _sensitivity(mechanism: Mechanism, client: AuditedClient, shares: Floats) -> float:
    """How many clip norms the client's rounds add up to, given the noise's correlation."""
    strategy = mechanism.strategy
    patterns = client.patterns
    if strategy is None:
        even = np.full(len(shares), client.participations / len(shares))
        chances = np.mean(patterns**2, axis=1) if patterns.any() else even
        return float(np.sqrt(chances @ shares**2))
    gram = np.abs(strategy.T @ strategy)
    if not patterns.shape[1]:
        return math.sqrt(client.participations * float(gram.sum()) / len(gram))
    moved = shares[:, None] * patterns
    each = np.sqrt(np.einsum("tm,ts,sm->m", moved, gram, moved, optimize=True))
    return max(float(each.mean()), math.sqrt(client.participations))
