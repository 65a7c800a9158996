"""What theory allows: of the same client, adversary and adjacency as the answer."""

import math

import numpy as np
import pytest

from fl_epe.accounting import (
    gaussian_epsilon,
    poisson_epsilon,
    tightest,
    upper_bounds,
)
from fl_epe.auditing import EVERY_ROUND, AuditedClient, analytical
from fl_epe.limit import limit_record
from fl_epe.mechanism.strategies import toeplitz
from fl_epe.schedules import make_schedule


def theory(kind, participations=6, z=1.0, adversary=None, **changes):
    schedule = make_schedule(kind, 60, participations)
    record = limit_record(
        schedule, z, 1e-5, num_canaries=11, beside=60
    ).with_values(**changes)
    return analytical(
        record.mechanism, AuditedClient.of(record, adversary), 1e-5
    )


def test_known_rounds_are_a_gaussian_mechanism():
    found = theory("epochs", 12, z=0.7)
    assert found.epsilon == pytest.approx(
        gaussian_epsilon(0.7 / math.sqrt(12), 1e-5)
    )
    assert (found.knows_rounds, found.adjacency) == (True, "zero-out")


def test_secret_rounds_have_the_theorem_of_their_schedule():
    found = theory("poisson")
    assert found.epsilon == pytest.approx(poisson_epsilon(1.0, 0.1, 60, 1e-5))
    assert (found.knows_rounds, found.adjacency) == (False, "add-or-remove")
    known = theory("poisson", adversary=EVERY_ROUND)
    assert known.knows_rounds
    assert known.epsilon > found.epsilon
    for kind in ("fixed-size", "balls-in-bins"):
        found = theory(kind)
        assert not found.knows_rounds
        bounds = upper_bounds(make_schedule(kind, 60, 6).law(60), 1.0, 1e-5)
        assert found.epsilon == tightest(bounds, rounds_known=False).epsilon


@pytest.mark.parametrize(
    ("changes", "epsilon", "words"),
    [
        ({"noise_multiplier": None}, None, "noise is not known"),
        ({"noise_multiplier": 0.0}, math.inf, "no noise"),
        (
            {"contributions": np.full(60, np.nan), "noise_cohort_size": 10.0},
            None,
            "what a client adds",
        ),
    ],
    ids=["unknown", "none", "share"],
)
def test_what_is_not_known_has_no_epsilon(changes, epsilon, words):
    found = theory("epochs", **changes)
    assert found.epsilon == epsilon
    assert words in found.assumption


def test_heavier_shares_have_less_noise():
    """Fewer replies came than the noise is for: each is twice the part of the mean."""
    record = limit_record(
        make_schedule("epochs", 60, 4), 1.0, 1e-5, num_canaries=11, beside=60
    )
    cohort = record.mechanism.cohort_size
    heavy = record.with_values(
        contributions=np.full(60, 2 / cohort),
        noise_cohort_size=cohort,
        clip_norms=np.ones(60),
    )
    found = analytical(heavy.mechanism, AuditedClient.of(heavy), 1e-5)
    assert found.epsilon == pytest.approx(
        gaussian_epsilon(1 / math.sqrt(4 * 4), 1e-5)
    )


def test_correlated_noise_is_the_sum_over_pairs_of_rounds():
    strategy = toeplitz(60, 4).matrix()
    record = limit_record(
        make_schedule("epochs", 60, 3), 1.0, 1e-5, num_canaries=11, beside=60
    )
    record = record.with_values(strategy=strategy)
    client = AuditedClient.of(record)
    gram = np.abs(strategy.T @ strategy)
    patterns = client.patterns.T.astype(float)
    each = np.sqrt(np.einsum("is,st,it->i", patterns, gram, patterns))
    found = analytical(record.mechanism, client, 1e-5)
    assert found.epsilon == pytest.approx(
        gaussian_epsilon(1 / max(float(each.mean()), math.sqrt(3)), 1e-5)
    )
