"""Scores by which a privacy claim is tested: those of the adversary whom the claim is against.

Likelihood ratios at secret rounds have no closed-form null, but a known one: whitened scores of a
direction that took no part are N(0, 1). Where the ratio is large its tail follows from members'
draws, ``P₀[L ≥ x] = E₁[e^(−L); L ≥ x]``, at any depth; elsewhere from draws of the null. So they
are turned into scores whose null is N(0, 1), and bounds need no unobserved canaries.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.auditing.audited_client import secret_of_claim
from fl_epe.auditing.epsilon_estimate import EVERY_ROUND
from fl_epe.auditing.record import AuditRecord
from fl_epe.auditing.scores import UNKNOWN_ROUNDS, Scores
from fl_epe.auditing.statistics import SecretRounds, mixture_ratios
from fl_epe.auditing.view import View, seen_by
from fl_epe.checks import Floats
from fl_epe.seeding import generator

_DRAWS = 20_000
_BLOCK = 2_000  # draws at once
_SEED = 0
_DIRECT = 0.02  # a tail that is larger comes from draws of the null
_SAFE = 3.0  # standard errors that are added to a drawn tail
_DIM = 10**9  # of scores whose null is N(0, 1)


def scores_for_claim(record: AuditRecord) -> Scores:
    """Scores of the adversary of a privacy claim, who sees every round's model.

    Where sampling hides a client's rounds, privacy accounting holds for an adversary who does not
    know them, and for clients whose rounds are still to be drawn. So the scores are likelihood
    ratios at unknown rounds, and canaries that were drawn for no round count as members. Otherwise
    they are the matched filter at the known rounds.
    """
    secret = secret_of_claim(record)
    view = seen_by(record, EVERY_ROUND)
    if secret is None or not record.signal_known():
        return view.scores()
    count, planned = record.num_canaries, record.design.num_canaries
    drawn = count
    if secret.law == "coins" and record.presence.any(axis=0).all():
        if record.mechanism.inclusion == "fixed" and planned is not None:
            drawn = planned
        else:  # as many as one expects to draw for no round, if those of no round were left out
            drawn = round(count / -np.expm1(record.rounds * np.log1p(-secret.rate)))
    ratios = seen_by(record, dataclasses.replace(EVERY_ROUND, knows_rounds=False)).scores()
    null = np.empty(0) if ratios.unobserved is None else ratios.unobserved
    absent = null[: max(drawn - count, 0)]
    members = np.concatenate([ratios.observed, absent])
    law = _null_of(view, secret)
    return Scores(law.normal(members), None, _DIM, UNKNOWN_ROUNDS, linear=True)


@dataclasses.dataclass(frozen=True, eq=False)
class _NullLaw:
    """Law of likelihood ratios of canaries that took no part, from sorted draws."""

    members: Floats
    null: Floats

    def normal(self, ratios: Floats) -> Floats:
        """Scores that are N(0, 1) for canaries that took no part, or below; rising."""
        count = len(self.null)
        above = count - np.searchsorted(self.null, ratios, side="left")
        direct = (above + _SAFE * np.sqrt(above) + 1) / (count + 1)
        weights = np.exp(-np.maximum(self.members, -50.0))
        first = np.append(np.cumsum(weights[::-1])[::-1], 0.0)
        second = np.append(np.cumsum(weights[::-1] ** 2)[::-1], 0.0)
        at = np.searchsorted(self.members, ratios, side="left")
        far = np.exp(-ratios) / len(self.members)  # beyond all draws
        drawn = (first[at] + _SAFE * np.sqrt(second[at])) / len(self.members) + far
        tail = np.where(above > _DIRECT * count, direct, np.minimum(direct, drawn))
        return np.asarray(-scipy.special.ndtri(np.clip(tail, 1e-300, 1 - 1 / (count + 1))))


def _null_of(view: View, secret: SecretRounds) -> _NullLaw:
    key = "_null_of_ratios"
    known: _NullLaw | None = vars(view).get(key)
    if known is None:
        known = vars(view)[key] = _drawn(view.signal, secret)
    return known


def _drawn(signal: Floats, secret: SecretRounds) -> _NullLaw:
    rng, rounds = generator(_SEED, len(signal)), len(signal)
    ratios_of = functools.partial(mixture_ratios, secret=secret, signal=signal[:, None])
    members, null = [], []
    for _ in range(0, _DRAWS, _BLOCK):
        noise = rng.standard_normal((rounds, _BLOCK))
        null.append(ratios_of(noise))
        noise += signal[:, None] * _presence(secret, rounds, rng)
        members.append(ratios_of(noise))
    return _NullLaw(np.sort(np.concatenate(members)), np.sort(np.concatenate(null)))


def _presence(secret: SecretRounds, rounds: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    if secret.law == "coins":
        return np.asarray(rng.random((rounds, _BLOCK)) < secret.rate)
    found = np.zeros((rounds, _BLOCK), bool)
    for block in secret.blocks:
        found[rng.choice(block, _BLOCK), np.arange(_BLOCK)] = True
    return found
