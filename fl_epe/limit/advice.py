"""Advice on noise and on canaries, and client exposure, as text and tables for the terminal.

Every line and table is for one client, adversary and adjacency, and names them.
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
    """The noise multiplier, its client and ε, the expected report of a run, and assumptions."""
    answer = advice.answer
    client = "the median client"
    if answer.client == "worst-case":
        client = f"the worst-case client of {advice.clients:,}"
    lines = [
        f"Noise multiplier z = {_rounded_up(advice.noise_multiplier)}",
        f"With it {client} has ε = {number(answer.epsilon)} at δ = {advice.delta:.2g}; "
        f"theory allows {_theory(answer)}.",
        f"The client takes part {_times(answer)}. The adversary {_adversary(answer)} "
        f"({answer.theory.adjacency} adjacency).",
    ]
    if not advice.load.places:
        lines += advice.load.sentences()
    elif answer.client == "median" and math.isfinite(answer.high):
        interval = (
            f"this ε within about {number(answer.low)} – {number(answer.high)}"
        )
        if REAL_UPDATES_LEFT_OUT in advice.notes:
            interval = f"at most about {number(answer.high)}"
        lines.append(
            f"A run whose canaries are {100 * advice.load.share:.2g}% of a round would report "
            f"{interval}."
        )
    return lines + [f"• {note}" for note in advice.notes]


def canary_lines(advice: Sequence[CanaryAdvice]) -> list[str]:
    """The analytical ε of the median client, and the reasons for the number of canaries."""
    answers = next((option.answers for option in advice if option.answers), ())
    lines = [
        f"• The median client takes part {_times(answer)}; who {_adversary(answer)} "
        f"({answer.theory.adjacency} adjacency) is allowed {_theory(answer)} by theory."
        for answer in answers
    ]
    lines.append(
        "• Canaries are no more than fit the share, nor than ±10% or ±0.5 in ε needs. "
        f"Four times as many halve the interval. {REAL_UPDATES_LEFT_OUT}"
    )
    if not advice[0].load.secret:
        lines.append(
            "• A place follows a client's schedule; a few are divided among canaries."
        )
    return lines


def canary_table(advice: Sequence[CanaryAdvice], delta: float) -> Table:
    """The number of places for each share of a round, and the expected report of such a run."""
    headings = (
        "at most",
        "places",
        "of a round",
        "adversary sees",
        "ε",
        "95% interval",
    )
    table = plain_table(
        f"ε of the median client at δ = {delta:.2g}, and what canaries beside "
        f"{advice[0].load.clients:,} clients tell of it",
        headings,
    )
    for option in advice:
        load = (
            f"{option.share:.0%}",
            f"{option.load.places:,}",
            f"{100 * option.load.share:.2g}%",
        )
        if not option.answers:
            table.add_row(*load, "–", "not measured", "–")
        for answer in option.answers:
            interval = f"{number(answer.low)} – {number(answer.high)}"
            table.add_row(
                *load, SEES[answer.sees], number(answer.epsilon), interval
            )
    return table


def exposure_tables(exposure: Exposure, top: int) -> list[Table]:
    """The tables of the median client and the ``top`` worst-case ones, and of caps."""
    clients = plain_table(
        f"ε at δ = {exposure.delta:.2g}, noise multiplier {exposure.noise_multiplier:g}, of "
        f"{exposure.trace.population:,} clients",
        ("client", "takes part", "ε", "theory"),
    )
    for client in (exposure.median, *exposure.top(top)):
        clients.add_row(
            str(client.name),
            how_often(client.participations),
            number(client.epsilon),
            number(finite(client.analytical)),
        )
    caps = plain_table(
        "Caps: ε of the worst-case client, and z that keeps it as it is",
        ("cap", "refused", "clients", "ε", "z"),
    )
    for effect in exposure.caps:
        span = "a run" if effect.window is None else f"in {effect.window}"
        caps.add_row(
            f"{effect.cap} {span}",
            f"{effect.refused:.1%}",
            f"{effect.touched:.1%}",
            number(effect.epsilon),
            _rounded_up(effect.noise_multiplier),
        )
    return [clients, caps]


def exposure_lines(exposure: Exposure) -> list[str]:
    """The adversary of the tables, and their assumptions."""
    trace = exposure.trace
    rounds = len(set(trace.round_ids.tolist()))
    lines = [
        f"• The adversary sees {SEES[exposure.sees]} and knows the client's rounds; zero-out "
        "adjacency.",
        "• These are estimates, not a guarantee; every update is taken to have the clip norm.",
    ]
    if rounds < trace.rounds:
        lines.append(
            f"• The log has {trace.rounds:,} rounds; {rounds:,} have clients."
        )
    return lines


def _adversary(answer: ClientEpsilon) -> str:
    knows = "knows" if answer.theory.knows_rounds else "does not know"
    return f"sees {SEES[answer.sees]} and {knows} the client's rounds"


def _theory(answer: ClientEpsilon) -> str:
    if answer.theory.epsilon is None:
        return "no bound that is known"
    return f"ε ≤ {number(finite(answer.theory.epsilon))}"


def _times(answer: ClientEpsilon) -> str:
    times = how_often(answer.participations)
    if answer.client == "worst-case":
        return f"at most {times}"
    if answer.theory.knows_rounds:
        return times
    return f"{times} on average"


def _rounded_up(value: float) -> str:
    """The value with four significant digits, rounded up, as less noise would not suffice."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.4g}"
