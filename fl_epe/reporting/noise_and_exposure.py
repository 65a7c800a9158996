"""Noise advice and client exposure as text and tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from fl_epe.reporting.numbers import number
from fl_epe.reporting.tables import plain_table
from fl_epe.reporting.verdict_types import SEES

if TYPE_CHECKING:
    from fl_epe.limit import CapEffect, ExposedClient, Exposure, NoiseAdvice

_MEANT = {
    "random": "a client drawn at random",
    "mean": "a client with the mean expected score",
    "worst-case": "the worst case of all clients",
}


def advice_lines(advice: NoiseAdvice) -> list[str]:
    """The noise multiplier, its meaning, what a run with it would report, and its assumptions."""
    confidence = f"{advice.confidence:.0%}"
    return [
        f"Noise multiplier z = {_rounded_up(advice.noise_multiplier)}",
        f"Expected ε = {number(advice.epsilon)} at δ = {advice.delta:.2g} for an adversary who "
        f"sees {SEES[advice.adversary.sees]}, and knows who took part when",
        f"This is for {_MEANT[advice.who]}, who takes part {_times(advice)}",
        f"A run with {advice.num_canaries:,} canaries would report about "
        f"{number(advice.measured_low)} – {number(advice.measured_high)} ({confidence} interval)",
        *(f"• {note}" for note in advice.notes),
    ]


def exposure_tables(
    exposure: Exposure, effects: Sequence[CapEffect] = (), top: int = 10
) -> list[Table]:
    """How exposed clients are, the worst case ones, and what caps would change.

    Args:
        exposure: of a log, with or without a cap.
        effects: of caps, from `fl_epe.limit.caps`.
        top: number of clients to list.
    """
    title = (
        f"ε at δ = {exposure.delta:.2g} and noise multiplier {exposure.noise_multiplier:g} of "
        f"{len(exposure.clients):,} clients"
    )
    tables = [_clients(title, "client", exposure.levels())]
    if exposure.capped is not None:
        tables.append(_clients("With the cap", "client", exposure.capped.levels()))
    tables.append(_clients("Worst case", "client_id", exposure.top(top)))
    return [*tables, _caps(effects)] if effects else tables


def exposure_lines(exposure: Exposure) -> list[str]:
    """The effect of the cap, and the assumptions behind the tables."""
    lines = [
        "• These are estimates of what a canary in a client's place would measure on average, and "
        "no guarantee of differential privacy.",
        "• Every update is assumed to have the full clip norm, and only the noise hides it.",
    ]
    return lines if exposure.cap is None else [_effect(exposure.cap, exposure), *lines]


def _effect(effect: CapEffect, exposure: Exposure) -> str:
    return (
        f"At most {_cap(effect)}: {effect.refused:.1%} of the participations would be refused, "
        f"from {effect.touched:.1%} of the clients. With the same ε of the worst-case client, "
        f"the noise multiplier could be {_rounded_up(effect.noise_final)} (final model) or "
        f"{_rounded_up(effect.noise_every_round)} (every round) instead of "
        f"{exposure.noise_multiplier:g}"
    )


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
            _cap(effect),
            f"{effect.refused:.1%}",
            f"{effect.touched:.1%}",
            number(effect.epsilon_final),
            number(effect.epsilon_every_round),
            _rounded_up(effect.noise_final),
            _rounded_up(effect.noise_every_round),
        )
    return table


def _cap(effect: CapEffect) -> str:
    parts = []
    if effect.per_run is not None:
        parts.append(f"{effect.per_run} a run")
    if effect.per_window is not None:
        parts.append(f"{effect.per_window} in {effect.window}")
    return ", ".join(parts)


def _times(advice: NoiseAdvice) -> str:
    count, many = advice.participations, "at most " * (advice.who == "worst-case")
    return "once" if count == 1 else f"{many}{count:.3g} times{' on average' * (not many)}"


def _rounded_up(value: float) -> str:
    """Four significant digits, rounded up: less noise would not suffice."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.4g}"
