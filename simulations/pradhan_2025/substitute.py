"""Substitute adjacency in theory and at the worst case (Pradhan et al. 2025, figures 2 and A5).

    python simulations/pradhan_2025/substitute.py    # minutes on two cores; --quick: seconds

Figure 2: the bound of an adversary who sees the final model of the worst-case data set. The paper
has the same setting (T = 500; 25,000 runs of both worlds together, three times) but no numbers in
its text; it finds the same order of the four. It reads error rates as Gaussian DP, this script
along the mechanism's own curve. Figure A5: substitute ε is more than twice the other "especially
for large q and low σ". It is less than twice where q and σ are both small.

Measured with seed 1 (2026-11-23, two shared cores; 25,000 runs of each world, 95%, δ = 10⁻⁵)::

         z       q  add-or-remove  ε ≥ any law  ε ≥ curve  hidden  substitute   group
      44.7       1          1.994        2.338      4.167   4.380       4.380   4.523
        20       1          4.983        5.633     11.213  11.480      11.480  12.903
      11.2    0.25          2.004        2.484      4.192   4.365       4.365   4.553
         6    0.25          4.103        4.727      8.940   9.138       9.138  10.277
         3  0.0625          1.951        2.098      3.914   4.021       4.025   4.441
         2  0.0625          3.252        3.562      6.279   6.436       6.465   7.925

    The ratio of substitute ε to add-or-remove ε
         z   q = 0.02  0.0625   0.25      1
       0.7      1.255   1.405  1.674  3.582
         1      1.519   1.646  1.968  3.454
         2      1.919   1.988  2.264  3.150
         4      2.052   2.087  2.263  2.823
         8      2.099   2.109  2.202  2.544
"""

from __future__ import annotations

import itertools

from fl_epe.accounting import poisson_epsilon
from fl_epe.auditing.bounds import lower_bound
from simulations.pradhan_2025.group_privacy import group_epsilon
from simulations.pradhan_2025.hidden_substitute import (
    HiddenSubstitute,
    hidden_substitute_lower_bound,
    play_hidden_state,
)
from simulations.shared.audit_script import Result, Settings, Table, run

_WORST = (
    (44.7, 1.0, 500),
    (20.0, 1.0, 500),
    (11.2, 0.25, 500),
    (6.0, 0.25, 500),
    (3.0, 0.0625, 500),
    (2.0, 0.0625, 500),
)
"""z, q and T of figure 2."""

_QUICK_WORST = ((3.0, 0.25, 40),)
_RATIO_NOISES = (0.7, 1.0, 2.0, 4.0, 8.0)
_RATIO_RATES = (0.02, 0.0625, 0.25, 1.0)
_RATIO_STEPS = 500
_QUICK_NOISES = (1.0, 8.0)
_QUICK_RATES = (0.02, 1.0)
_QUICK_STEPS = 50


def audit(settings: Settings) -> Result:
    """Both figures; a bound above substitute ε fails."""
    worst = worst_case(settings)
    excess = [
        bound / add_or_remove for _, _, _, add_or_remove, _, bound, *_ in worst
    ]
    passed = all(bound <= substitute for *_, bound, _, substitute, _ in worst)
    summary = (
        f"Bounds along the curve are {min(excess):.2f} to {max(excess):.2f} times the ε of "
        f"add-or-remove adjacency, and {'none' if passed else 'one'} is above substitute ε."
    )
    tables = [
        Table(
            "Figure 2: worst-case data set, final model",
            (
                "z",
                "q",
                "T",
                "ε add-or-remove",
                "ε ≥ (any law)",
                "ε ≥ (along the curve)",
                "ε hidden state",
                "ε substitute",
                "ε group privacy",
            ),
            worst,
        ),
        Table(
            "Figure A5: substitute ε and add-or-remove ε",
            ("z", "q", "ε add-or-remove", "ε substitute", "ratio"),
            ratios(settings),
        ),
    ]
    return Result(summary, tables, passed=passed)


def worst_case(settings: Settings) -> list[tuple[float, ...]]:
    """The rows of figure 2."""
    count = settings.count(25_000, 2000)
    delta = settings.delta
    rows: list[tuple[float, ...]] = []
    cases = _QUICK_WORST if settings.quick else _WORST
    for seed, (z, q, steps) in enumerate(cases, settings.seed - 1):
        pair = HiddenSubstitute(z, q, steps)
        scores = play_hidden_state(pair, observations=count, seed=seed)
        rows.append(
            (
                z,
                q,
                steps,
                poisson_epsilon(z, q, steps, delta),
                lower_bound(scores, delta, method="clopper-pearson"),
                hidden_substitute_lower_bound(scores, q, steps, delta),
                pair.epsilon(delta),
                poisson_epsilon(z, q, steps, delta, replace_one=True),
                group_epsilon(z, q, steps, delta),
            )
        )
    return rows


def ratios(settings: Settings) -> list[tuple[float, ...]]:
    """The rows of figure A5."""
    noises = _QUICK_NOISES if settings.quick else _RATIO_NOISES
    rates = _QUICK_RATES if settings.quick else _RATIO_RATES
    steps = _QUICK_STEPS if settings.quick else _RATIO_STEPS
    rows: list[tuple[float, ...]] = []
    for z, q in itertools.product(noises, rates):
        add_or_remove = poisson_epsilon(z, q, steps, settings.delta)
        substitute = poisson_epsilon(
            z, q, steps, settings.delta, replace_one=True
        )
        rows.append(
            (z, q, add_or_remove, substitute, substitute / add_or_remove)
        )
    return rows


if __name__ == "__main__":
    run(audit, __doc__)
