"""The membership game against one right round: how much of its ε each bound proves."""

from __future__ import annotations

from fl_epe.accounting import gaussian_epsilon
from fl_epe.auditing import BOUNDS, COIN_METHODS, games, lower_bound
from fl_epe.audits.settings import AuditSettings
from fl_epe.reporting import AuditResult, AuditTable

_NAME = "gaussian"
_NOISE = (2.0, 1.0, 0.5)
_DIM = 100


def audit(settings: AuditSettings) -> AuditResult:
    """Play the game at three noise multipliers; a valid bound above the theorem fails."""
    count = settings.count(1000, 200)
    methods = [
        name
        for name, bound in BOUNDS.items()
        if bound.valid and name not in (*COIN_METHODS, "lifted")
    ]
    rows = []
    for noise in _NOISE:
        scores = games.play_game(
            games.NoisySum(1.0, noise),
            games.ADD_OR_REMOVE,
            games.dirac(_DIM),
            observations=count,
            seed=settings.seed,
        )
        found = {
            name: lower_bound(scores, settings.delta, confidence=settings.confidence, method=name)
            for name in methods
        }
        rows.append((noise, gaussian_epsilon(noise, settings.delta), *found.values()))
    passed = all(max(row[2:]) <= row[1] for row in rows)
    share = min(max(row[2:]) / row[1] for row in rows)
    finding = (
        f"From {count:,} observations of each world the sharpest bound proves at least "
        f"{share:.0%} of the ε that theory promises, and "
        f"{'none is above it' if passed else 'one is above it'}."
    )
    table = AuditTable(("noise multiplier", "ε of the theorem", *methods), rows)
    notes = [
        f"Each bound holds on its own at {settings.confidence:.0%} confidence; the largest of "
        "several is no bound. Adjacency: add-or-remove."
    ]
    return AuditResult(_NAME, finding, [table], notes, settings=settings.to_dict(), passed=passed)
