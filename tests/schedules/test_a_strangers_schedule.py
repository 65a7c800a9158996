"""A schedule that somebody writes outside the package: two clients always come together.

Its rounds are secret and its clients are added or removed. Nothing in the package knows it.
"""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest
import scipy
from every_schedule import law_faults

from fl_epe.accounting import gaussian_epsilon, poisson_epsilon, upper_bounds
from fl_epe.auditing import (
    AuditRecord,
    RoundFacts,
    RunAuditor,
    answers,
    claim_adversary,
    epsilon_by_round,
)
from fl_epe.limit import (
    ComparisonPlan,
    carry_out,
    limit_record,
    noise_for_epsilon,
)
from fl_epe.schedules import SCHEDULES, Cohort, Events, ParticipationLaw
from fl_epe.schedules.contract import Rated

T, RATE, Z, DELTA = 20, 0.2, 1.0, 1e-3


@dataclasses.dataclass(frozen=True)
class Pairs(Rated):
    """Clients 2i and 2i + 1 share a coin in every round.

    Who knows the partner's update learns from it that both took part, so that amplification by
    Poisson sampling is not promised: there are no `Coins`.
    """

    kind: ClassVar[str] = "pairs"

    def cohorts(
        self, population: int, rng: np.random.Generator
    ) -> Iterator[Cohort]:
        for _ in range(self.rounds):
            together = np.repeat(rng.random(-(-population // 2)) < self.rate, 2)
            yield np.flatnonzero(together[:population])

    def law(self, population: int) -> ParticipationLaw:
        return dataclasses.replace(
            super().law(population),
            hidden=True,
            adjacency="add-or-remove",
            events=Events.coins(np.full(self.rounds, self.rate)),
        )


@pytest.fixture(autouse=True)
def named(monkeypatch):
    monkeypatch.setitem(SCHEDULES, Pairs.kind, Pairs)


def drawn(seed: int = 1, **options) -> AuditRecord:
    return limit_record(
        Pairs(T, RATE), Z, DELTA, num_canaries=200, seed=seed, **options
    )


def test_its_law_is_what_its_clients_do():
    assert law_faults(Pairs(T, RATE)) == []


@pytest.mark.slow
def test_the_answer_is_that_of_a_client_whose_coins_are_secret():
    record = drawn()
    final, every = answers(record)
    assert claim_adversary(record) == every.adversary
    assert not every.adversary.knows_rounds
    assert every.analytical.adjacency == "add-or-remove"
    assert every.participations == pytest.approx(T * RATE)
    truth = poisson_epsilon(
        Z, RATE, T, DELTA
    )  # of an adversary who has no partner's update
    assert every.estimate.low < truth < every.estimate.high
    assert final.estimate is not None


def test_theory_is_not_that_of_independent_coins():
    """With the partner's update, the exact δ at Poisson's ε is more than δ."""
    theory = answers(drawn())[1].analytical.epsilon or np.nan
    poisson = poisson_epsilon(Z, RATE, 1, DELTA)
    grid = np.linspace(-12, 14, 200_001)
    densities = scipy.stats.norm.pdf(grid[:, None], [0, 1, 2])
    absent, partner, both = densities.T
    others = (1 - RATE) * absent + RATE * partner
    members = (1 - RATE) * absent + RATE * both
    step = grid[1] - grid[0]
    exact = np.maximum(members - np.exp(poisson) * others, 0).sum() * step
    assert exact > 2 * DELTA
    one = min(
        b.epsilon for b in upper_bounds(Pairs(1, RATE).law(100), Z, DELTA)
    )
    assert np.maximum(members - np.exp(one) * others, 0).sum() * step <= DELTA
    assert (
        poisson_epsilon(Z, RATE, T, DELTA)
        < theory
        < gaussian_epsilon(Z, DELTA, T)
    )


def test_its_record_is_read_where_nobody_knows_it(tmp_path, monkeypatch):
    record = drawn()
    path = record.save(tmp_path / "record.npz")
    monkeypatch.delitem(SCHEDULES, Pairs.kind)
    loaded = AuditRecord.load(path)
    for mine, other in zip(answers(loaded), answers(record), strict=True):
        assert (mine.estimate, mine.analytical) == (
            other.estimate,
            other.analytical,
        )


def test_epsilon_so_far_ends_with_the_answer():
    rng, law = np.random.default_rng(4), Pairs(16, RATE).law(60)
    auditor = RunAuditor(60, 40, seed=7, delta=DELTA, client=law)
    auditor.begin(theta := np.zeros(4000))
    for cohort in Pairs(16, RATE).cohorts(60, rng):
        total = auditor.canaries.combine(
            np.ones((1, len(cohort))), numbers=cohort.tolist()
        )[0]
        theta = theta + total + Z * rng.standard_normal(4000)
        auditor.observe(theta, RoundFacts(cohort.tolist(), contribution=1.0))
    said, record = auditor.epsilon_so_far(), auditor.record()
    assert not said.adversary.knows_rounds
    *_, last = epsilon_by_round(record)
    assert last.estimate == answers(record)[1].estimate
    assert last.estimate.epsilon == pytest.approx(said.epsilon, rel=0.02)
    assert said.low < poisson_epsilon(Z, RATE, 16, DELTA) < said.high


@pytest.mark.slow
def test_it_can_be_compared_and_calibrated(tmp_path):
    plan = ComparisonPlan(
        schedules=("pairs", "poisson"),
        noise_multipliers=(1.0,),
        participations=(4.0,),
        rounds=20,
    )
    pairs, poisson = carry_out(plan, tmp_path)
    for sees in ("final", "all"):
        mine, other = (row.of("median", sees) for row in (pairs, poisson))
        assert mine.epsilon == pytest.approx(other.epsilon, rel=1e-9)
        assert (mine.theory.epsilon or 0) > (other.theory.epsilon or np.nan)
        assert (
            mine.theory.adjacency == other.theory.adjacency == "add-or-remove"
        )
    advice = noise_for_epsilon(Pairs(T, RATE), 2.0, DELTA, 200, sees="all")
    assert advice.answer.epsilon == pytest.approx(2.0, rel=0.01)
    assert not advice.answer.theory.knows_rounds
