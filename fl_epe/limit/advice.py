"""Advice on noise and on canaries, and client exposure, as text and tables for the terminal.

Every line and table is of one client, adversary and adjacency, and says which.
"""

import math
from collections.abc import Sequence

from rich.table import Table

from fl_epe.auditing import REAL_UPDATES_LEFT_OUT
from fl_epe.checks import finite
from fl_epe.limit.calibration import CanaryAdvice, NoiseAdvice
from fl_epe.limit.client import ClientEpsilon
from fl_epe.limit.client_exposure import Exposure
from fl_epe.reporting import SEES, number, plain_table
from fl_epe.wording import how_often


def advice_lines(advice: NoiseAdvice) -> list[str]:
    """The noise multiplier, whose ε it is for, what a run with it would report, and assumptions."""
    found = advice.answer
    whose = "the median client"
    if found.client == "worst-case":
        whose = f"the worst-case client of {advice.clients:,}"
    lines = [
        f"Noise multiplier z = {_rounded_up(advice.noise_multiplier)}",
        f"With it {whose} has ε = {number(found.epsilon)} at δ = {advice.delta:.2g}; "
        f"theory allows {_theory(found)}.",
        f"The client takes part {_times(found)}. The adversary {adversary_text(found)} "
        f"({found.theory.adjacency} adjacency).",
    ]
    if not advice.load.places:
        lines += advice.load.sentences()
    elif found.client == "median" and math.isfinite(found.high):
        told = f"this ε within about {number(found.low)} – {number(found.high)}"
        if REAL_UPDATES_LEFT_OUT in advice.notes:
            told = f"at most about {number(found.high)}"
        lines.append(
            f"A run whose canaries are {100 * advice.load.share:.2g}% of a round would report "
            f"{told}."
        )
    return lines + [f"• {note}" for note in advice.notes]


def adversary_text(found: ClientEpsilon) -> str:
    """What the adversary sees and knows, after "the adversary"."""
    knows = "knows" if found.theory.knows_rounds else "does not know"
    return f"sees {SEES[found.sees]} and {knows} the client's rounds"


def canary_lines(found: Sequence[CanaryAdvice]) -> list[str]:
    """What canaries are, and why these numbers."""
    load = found[0].load
    answers = next((one.answers for one in found if one.answers), ())
    lines = [
        f"• The median client takes part {_times(one)}; who {adversary_text(one)} "
        f"({one.theory.adjacency} adjacency) is allowed {_theory(one)} by theory."
        for one in answers
    ]
    lines.append(
        "• Canaries are no more than fit the share, nor than ±10% or ±0.5 in ε needs. "
        f"Four times as many halve the interval. {REAL_UPDATES_LEFT_OUT}"
    )
    if not load.secret:
        lines.append(
            "• A place follows a client's schedule; a few are divided among canaries."
        )
    return lines


def canary_table(found: Sequence[CanaryAdvice], delta: float) -> Table:
    """Of each share of a round: places, and what a run with them would report."""
    load = found[0].load
    headings = (
        "at most",
        "places",
        "of a round",
        "adversary sees",
        "ε",
        "95% interval",
    )
    table = plain_table(
        f"ε of the median client at δ = {delta:.2g}, and what canaries beside {load.clients:,} "
        "clients tell of it",
        headings,
    )
    for one in found:
        first = (
            f"{one.share:.0%}",
            f"{one.load.places:,}",
            f"{100 * one.load.share:.2g}%",
        )
        if not one.answers:
            table.add_row(*first, "–", "not measured", "–")
        for answer in one.answers:
            table.add_row(
                *first,
                SEES[answer.sees],
                number(answer.epsilon),
                f"{number(answer.low)} – {number(answer.high)}",
            )
    return table


def exposure_tables(exposure: Exposure, top: int) -> list[Table]:
    """The median client and the ``top`` worst-case ones, and what caps would change."""
    title = (
        f"ε at δ = {exposure.delta:.2g}, noise multiplier {exposure.noise_multiplier:g}, of "
        f"{exposure.trace.population:,} clients"
    )
    clients = plain_table(title, ("client", "takes part", "ε", "theory"))
    for client in (exposure.median, *exposure.top(top)):
        clients.add_row(
            str(client.name),
            how_often(client.participations),
            number(client.epsilon),
            number(finite(client.analytical)),
        )
    title = "Caps: ε of the worst-case client, and z that keeps it as it is"
    caps = plain_table(title, ("cap", "refused", "clients", "ε", "z"))
    for effect in exposure.caps:
        caps.add_row(
            f"{effect.cap} a run"
            if effect.window is None
            else f"{effect.cap} in {effect.window}",
            f"{effect.refused:.1%}",
            f"{effect.touched:.1%}",
            number(effect.epsilon),
            _rounded_up(effect.noise_multiplier),
        )
    return [clients, caps]


def exposure_lines(exposure: Exposure) -> list[str]:
    """The adversary of the tables, and their assumptions."""
    trace = exposure.trace
    used = len(set(trace.round_ids.tolist()))
    lines = [
        f"• The adversary sees {SEES[exposure.sees]} and knows the client's rounds; zero-out "
        "adjacency.",
        "• These are estimates, not a guarantee; every update is taken to have the clip norm.",
    ]
    if used < trace.rounds:
        lines.append(f"• The log has {trace.rounds:,} rounds; {used:,} have clients.")
    return lines


def _theory(found: ClientEpsilon) -> str:
    if found.theory.epsilon is None:
        return "no bound that is known"
    return f"ε ≤ {number(finite(found.theory.epsilon))}"


def _times(found: ClientEpsilon) -> str:
    often = how_often(found.participations)
    if found.client == "worst-case":
        return f"at most {often}"
    return often if found.theory.knows_rounds else f"{often} on average"


def _rounded_up(value: float) -> str:
    """Four significant digits, rounded up: less noise would not suffice."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.4g}"
