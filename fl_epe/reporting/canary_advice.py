"""How many canaries an audit needs, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fl_epe.reporting.numbers import number
from fl_epe.reporting.verdict import most_text

if TYPE_CHECKING:
    from fl_epe.limit import CanaryAdvice


def canary_lines(found: Sequence[CanaryAdvice], power: float) -> list[str]:
    """What `fl_epe.limit.canaries_for_epsilon` returns, a line or two for each.

    Args:
        found: advice for several numbers of participations.
        power: that was wanted.
    """
    first = found[0]
    lines = [
        f"To show ε > {number(first.claimed)} at δ = {first.delta:.2g} with "
        f"{100 * first.confidence:.6g}% confidence, in about {100 * power:.6g}% of runs:"
    ]
    for one in found:
        times = "once" if one.participations == 1 else f"{one.participations} times"
        start = f"Each canary takes part {times} (true ε = {number(one.true_epsilon)}): "
        if one.true_epsilon <= one.claimed:
            lines.append(f"{start}impossible, as the claim is true.")
        elif one.canaries is None:
            lines.append(f"{start}more canaries than were tried.")
        else:
            against = "the exact null" if not one.unobserved else f"{one.unobserved} unobserved"
            rounds = f", in {one.rounds} rounds or more" if one.rounds else ""
            lines.append(
                f"{start}{one.canaries} canaries against {against}{rounds}, by {one.method!r}; "
                f"{100 * one.power:.3g}% ± {100 * one.power_error:.2g}% of simulated audits do. "
                f"{most_text(one.ceiling or 0.0)}."
            )
    lines.append(
        "• Simulated with Gaussian scores, as in the limit of a large model. The numbers tried are "
        "19% apart. Real scores may differ, and a real ε is not known beforehand."
    )
    return lines
