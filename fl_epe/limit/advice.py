"""Advice on noise and on canaries, and client exposure, as text and tables for the terminal.

Every line and table is for one client, adversary and adjacency, and names them.
"""

import math
from collections.abc import Sequence

import numpy as np
from rich.table import Table

from fl_epe.auditing import REAL_UPDATES_LEFT_OUT
from fl_epe.checks import finite
from fl_epe.limit.calibration import CanaryAdvice, NoiseAdvice
from fl_epe.limit.client import ClientEpsilon
from fl_epe.limit.client_exposure import Exposure
from fl_epe.reporting import NOT_MEASURED, SEES, number, plain_table
from fl_epe.wording import how_often

# The relative rounding error of a value that has four significant digits already.
_ROUNDING = 1e-12


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
        f"The client takes part {_times(answer)}. The adversary sees {SEES[answer.sees]} and "
        f"{_knowledge(answer)}.",
    ]
    if not advice.load.places:
        lines += advice.load.sentences()
    elif answer.client == "median" and math.isfinite(answer.high):
        interval = (
            f"this ε within about {number(answer.low)} – {number(answer.high)}"
        )
        if REAL_UPDATES_LEFT_OUT in advice.notes:
            # Real updates can only lower ε.
            interval = f"at most about {number(answer.high)}"
        lines.append(
            f"A run whose canaries are {100 * advice.load.share:.2g}% of a round would report "
            f"{interval}."
        )
    return lines + [f"• {note}" for note in advice.notes]


def canary_lines(advice: Sequence[CanaryAdvice]) -> list[str]:
    """What theory allows of the median client, and the reasons for the number of canaries."""
    lines = []
    # Theory is the same for each number of canaries and for both adversaries.
    answers = next((option.answers for option in advice if option.answers), ())
    for answer in answers[:1]:
        lines.append(
            f"• The median client takes part {_times(answer)}. Each adversary "
            f"{_knowledge(answer)}; theory allows {_theory(answer)}."
        )
    lines.append(
        "• There are as many canaries as the share allows, but no more than an interval of ±10% "
        "or ±0.5 in ε needs. Four times as many halve the interval. "
        f"{REAL_UPDATES_LEFT_OUT}"
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
        f"ε of the median client at δ = {delta:.2g}, as canaries beside "
        f"{advice[0].load.clients:,} clients would estimate it",
        headings,
    )
    for option in advice:
        load_cells = (
            f"{option.share:.0%}",
            f"{option.load.places:,}",
            f"{100 * option.load.share:.2g}%",
        )
        if not option.answers:
            table.add_row(*load_cells, "–", NOT_MEASURED, "–")
        for answer in option.answers:
            interval = f"{number(answer.low)} – {number(answer.high)}"
            table.add_row(
                *load_cells,
                SEES[answer.sees],
                number(answer.epsilon),
                interval,
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
        "Caps: ε of the worst-case client, and the z at which a cap does not change it",
        ("cap", "refused", "clients", "ε", "z"),
    )
    for effect in exposure.caps:
        # A cap on the run, or on a window of consecutive rounds.
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
    rounds_with_clients = len(np.unique(trace.round_ids))
    lines = [
        f"• The adversary sees {SEES[exposure.sees]} and knows the client's rounds; zero-out "
        "adjacency.",
        "• These are estimates, not a guarantee; every update is taken to have the clip norm.",
    ]
    if rounds_with_clients < trace.rounds:
        lines.append(
            f"• The log has {trace.rounds:,} rounds; {rounds_with_clients:,} have clients."
        )
    return lines


def _knowledge(answer: ClientEpsilon) -> str:
    knows = "knows" if answer.theory.knows_rounds else "does not know"
    return f"{knows} the client's rounds ({answer.theory.adjacency} adjacency)"


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
    """A noise multiplier with four digits, rounded up, as less noise would not be enough."""
    if value == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1 - _ROUNDING)) * unit:.4g}"
