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
from fl_epe.auditing.audited_client import AuditedClient, schedule_of
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.record_parts import Mechanism
from fl_epe.auditing.statistics import SecretRounds
from fl_epe.checks import Floats


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
    adjacency: str
    assumption: str


def analytical(record: AuditRecord, delta: float, client: AuditedClient) -> Analytical:
    """The analytical ε of a client of a run.

    Args:
        record: the audit record of a run.
        delta: target δ.
        client: whose.
    """
    secret, z = client.secret, record.mechanism.noise_multiplier
    known = secret is None
    adjacency = adjacency_of(record)
    if z is None:
        return Analytical(None, known, adjacency, "the noise is not known")
    if record.rounds == 0 or not 0 < client.participations < math.inf:
        return Analytical(None, known, adjacency, "nobody took part")
    if z == 0:
        return Analytical(math.inf, known, adjacency, "there is no noise")
    shares = _shares(record.mechanism, record.design.noise_is_for)
    if shares is None:
        return Analytical(None, known, adjacency, "what a client adds is not known")
    if secret is not None:
        return _unknown(record, delta, z / max(1.0, float(shares.max())), secret, adjacency)
    sensitivity = _sensitivity(record, client, shares)
    if sensitivity == 0:
        return Analytical(None, known, adjacency, "no round of the client released a model")
    epsilon = accounting.gaussian_epsilon(z / sensitivity, delta)
    return Analytical(epsilon, True, adjacency, "the adversary knows the client's rounds")


def analytical_so_far(
    z: float, mechanism: Mechanism, noise_is_for: float | None, participations: float, delta: float
) -> float:
    """ε of a client of known rounds after the rounds so far, with independent noise.

    Args:
        z: noise multiplier.
        mechanism: of the rounds so far.
        noise_is_for: as in `Design`.
        participations: of the client, any number, spread evenly over the rounds.
        delta: target δ.

    Returns:
        NaN where nothing is known.
    """
    shares = _shares(mechanism, noise_is_for)
    if shares is None or not participations > 0:
        return math.nan
    size = math.sqrt(participations * float(np.mean(shares**2)))
    return accounting.gaussian_epsilon(z / size, delta) if z else math.inf


def adjacency_of(record: AuditRecord) -> str:
    """Which two runs ε of a client tells apart, in its participation schedule."""
    return "add-or-remove" if record.mechanism.participation == "poisson" else "zero-out"


def _shares(mechanism: Mechanism, expected: float | None) -> Floats | None:
    """What a client of median weight adds, over what the noise is for, ``(T,)``."""
    if mechanism.contributions is None or not expected:
        return np.ones(len(mechanism.clip_norms))
    shares = mechanism.contributions * expected / mechanism.clip_norms
    known = np.isfinite(shares)
    if not known.any():
        return None
    return np.where(known, shares, float(shares[known].max()))


def _sensitivity(record: AuditRecord, client: AuditedClient, shares: Floats) -> float:
    """How many clip norms the client's rounds add up to, given the noise's correlation."""
    strategy, patterns = record.mechanism.strategy, client.patterns
    if strategy is None:
        even = np.full(record.rounds, client.participations / record.rounds)
        chances = np.mean(patterns**2, axis=1) if patterns.any() else even
        return float(np.sqrt(chances @ shares**2))
    gram = np.abs(strategy.T @ strategy)
    if not patterns.shape[1]:
        return math.sqrt(client.participations * float(gram.sum()) / len(gram))
    moved = shares[:, None] * patterns
    each = np.sqrt(np.einsum("tm,ts,sm->m", moved, gram, moved, optimize=True))
    return max(float(each.mean()), math.sqrt(client.participations))


def _unknown(
    record: AuditRecord, delta: float, z: float, secret: SecretRounds, adjacency: str
) -> Analytical:
    """By the schedule's theorem; ``z`` is that of a client of median weight."""
    strategy = record.mechanism.strategy
    if secret.law == "coins" and strategy is None and adjacency != "zero-out":
        epsilon = accounting.poisson_epsilon(z, secret.rate, record.rounds, delta)
        words = "the adversary does not know who was sampled"
        return Analytical(epsilon, False, adjacency, words)
    schedule = schedule_of(record)
    if schedule is None:
        return Analytical(None, False, adjacency, "the schedule is not known")
    population = record.design.num_clients or max(record.num_canaries, 1)
    if strategy is None:
        found = accounting.upper_bounds(schedule, z, delta, population)
    elif len(strategy) == schedule.rounds:
        found = accounting.strategy_bounds(schedule, strategy, z, delta, population)
    else:
        return Analytical(None, False, adjacency, "a run that stopped has another strategy")
    bound = accounting.tightest(found, rounds_known=False)
    words = bound.assumption
    if bound.adjacency == "replace-one":  # a client whose update is 0 is one of these
        words += "; replace-one adjacency, of which zero-out is a case"
    return Analytical(bound.epsilon, False, adjacency, words)
