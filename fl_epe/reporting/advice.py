"""Advice on noise and on canaries, and client exposure, as text and tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from fl_epe.checks import finite
from fl_epe.reporting.numbers import number
from fl_epe.reporting.reliability import SEES
from fl_epe.reporting.tables import plain_table

if TYPE_CHECKING:
    from fl_epe.accounting import UpperBound
    from fl_epe.limit import CanaryAdvice, CapEffect, ExposedClient, Exposure, NoiseAdvice


def advice_lines(advice: NoiseAdvice) -> list[str]:
    """The noise multiplier, its meaning, what a run with it would report, and its assumptions."""
    whom = "the worst case of all clients" if advice.worst_case else "a client drawn at random"
    return [
        f"Noise multiplier z = {_rounded_up(advice.noise_multiplier)}",
        f"Expected ε = {number(advice.epsilon)} at δ = {advice.delta:.2g} for an adversary who "
        f"sees {SEES[advice.adversary.sees]}, and knows who took part when",
        f"This is for {whom}, who takes part {_times(advice)}",
        f"A run with {advice.num_canaries:,} canaries would report about "
        f"{number(advice.measured_low)} – {number(advice.measured_high)} "
        f"({advice.confidence:.0%} interval)",
        *(f"• {note}" for note in advice.notes),
        *map(_theory_line, advice.analytical),
    ]


def _theory_line(bound: UpperBound) -> str:
    whom = "a client drawn at random" if bound.averages else "every client"
    return (
        f"• Theory guarantees ε ≤ {number(finite(bound.epsilon))} at that z for {whom}, whatever "
        f"the attack, with rounds {'known' if bound.rounds_known else 'unknown'} "
        f"({bound.assumption}; {bound.adjacency} adjacency)."
    )


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
                f"{_most_text(one.ceiling or 0.0)}."
            )
    lines.append(
        "• Simulated with Gaussian scores, as in the limit of a large model. The numbers tried are "
        "19% apart. Real scores may differ, and a real ε is not known beforehand."
    )
    return lines


def exposure_tables(exposure: Exposure, top: int) -> list[Table]:
    """How exposed clients are, the ``top`` worst case ones, and what caps would change."""
    return [
        _clients(
            f"ε at δ = {exposure.delta:.2g} and noise multiplier {exposure.noise_multiplier:g} of "
            f"{exposure.trace.population:,} clients",
            "client",
            exposure.levels(),
        ),
        _clients("Worst case", "client_id", exposure.top(top)),
        _caps(exposure.caps),
    ]


def exposure_lines(exposure: Exposure) -> list[str]:
    """The assumptions behind the tables."""
    trace = exposure.trace
    used = len(set(trace.round_ids.tolist()))
    return [
        "• These are estimates of what a canary in a client's place would measure on average, and "
        "no guarantee of differential privacy.",
        "• Every update is assumed to have the full clip norm, and only the noise hides it.",
        f"• The log has {trace.rounds:,} rounds; {used:,} have clients.",
    ]


def _clients(title: str, name: str, clients: Sequence[ExposedClient]) -> Table:
    table = plain_table(title, (name, "rounds", "ε, final model", "ε, every round"))
    for client in clients:
        table.add_row(
            str(client.name),
            f"{client.participations:.4g}",
            number(client.epsilon_final),
            number(client.epsilon_every_round),
        )
    return table


def _caps(effects: Sequence[CapEffect]) -> Table:
    headings = ("cap", "refused", "clients", "ε, final", "ε, every", "z, final", "z, every")
    table = plain_table("Caps: ε of the worst-case client, and z that keeps it as it is", headings)
    for effect in effects:
        table.add_row(
            f"{effect.cap} a run" if effect.window is None else f"{effect.cap} in {effect.window}",
            f"{effect.refused:.1%}",
            f"{effect.touched:.1%}",
            number(effect.epsilon_final),
            number(effect.epsilon_every_round),
            _rounded_up(effect.noise_final),
            _rounded_up(effect.noise_every_round),
        )
    return table


def _times(advice: NoiseAdvice) -> str:
    count, many = advice.participations, "at most " * (advice.worst_case)
    return "once" if count == 1 else f"{many}{count:.3g} times{' on average' * (not many)}"


def _rounded_up(value: float) -> str:
    """Four significant digits, rounded up: less noise would not suffice."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.4g}"


def _most_text(most: float) -> str:
    """The largest bound that so many canaries can show, as a sentence without full stop."""
    if most <= 0:
        return "So few canaries cannot show any ε, whatever their scores"
    if most > 1e4:
        return "The number of canaries sets no limit to the ε that can be shown"
    return f"So many canaries can show ε ≥ {number(most)} at most, whatever their scores"
