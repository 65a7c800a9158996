"""The picture of the answer: ε of a client of the run against its number of participations."""

import math
from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from fl_epe.accounting import epsilon_two_gaussians
from fl_epe.auditing import Adversary, Answer, AuditedClient, AuditRecord, seen_by
from fl_epe.checks import Floats
from fl_epe.reporting import charts
from fl_epe.reporting.charts import PLAIN, SEEN, Chart, scatter
from fl_epe.reporting.numbers import JSON, number

_STEPS = 48  # of a curve
_GROUPS = 8  # of canaries at most
_BARS = 60  # of clients at most
_FAR = 4.0  # times the median client's participations at which the x-axis ends
_TICKS = 7
_APART = 0.25  # of the larger ε, if two labels fit between both


def epsilon_chart(record: AuditRecord, answers: tuple[Answer, Answer]) -> Chart | None:
    """ε against participations; ε of the client alone where sampling hides its rounds.

    Returns:
        ``None`` if no ε was measured.
    """
    client = AuditedClient.of(record)
    named = [(SEEN[answer.adversary.sees], answer) for answer in answers]
    times = client.participations
    if client.secret is not None:
        return charts.answer_chart(
            named,
            name="epsilon",
            title=f"ε of a client that is expected to take part {_times(times)}",
            caption="Circles are estimates with their intervals, triangles what is proved, crosses "
            "what theory allows: all for an adversary who does not know in which rounds the client "
            "took part.",
        )
    measured = [a for a in answers if a.estimate and math.isfinite(a.estimate.epsilon)]
    if not measured:
        return None
    counts = _clients(record)
    top = min(max(times, record.presence.sum(axis=0).max(), *counts), _FAR * times)
    grid = np.union1d(top * np.linspace(0, 1, _STEPS) ** 2, [times])
    drawn = [_adversary(record, client, answer, grid) for answer in measured]
    drawn[0][2]["showlegend"] = True
    panels: list[tuple[str, float, JSON]] = [("ε", 5.0, {"rangemode": "tozero"})]
    bars = []
    if len(counts):
        panels.append(("clients", 1.0, {"nticks": 3, "rangemode": "tozero"}))
        bars.append(_bars(counts[counts <= top]))
    beyond = int(np.sum(counts > top))
    return Chart(
        name="epsilon",
        title="ε of a client, by how often it takes part",
        caption="Lines are ε for what an adversary sees, with shaded intervals; open symbols are "
        "canaries, at the number of rounds that they took part in. Diamonds are the client of the "
        f"answer, which took part {_times(times)}, the median; triangles are what is proved of it."
        + (" Below are the clients of this run." if len(counts) else "")
        + (f" {beyond:,} more took part up to {counts.max():,} times." if beyond else ""),
        alternative=f"A client that takes part {_times(times)}. {charts.answers_in_words(named)}",
        traces=(
            *(traces[0] for traces in drawn),
            *(traces[1] for traces in drawn),
            *_theory(answers[1], measured[0], grid),
            *_client(measured),
            *(traces[2] for traces in drawn),
            *bars,
        ),
        layout=charts.axes("participations", *panels, range=[0, 1.15 * top], dtick=_step(top)),
        logs={"y": None},
    )


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.3g} times"


def _step(top: float) -> int:
    """The smallest of 1, 2, 5, 10, … of which few fit."""
    return next(m * 10**e for e in range(12) for m in (1, 2, 5) if top <= _TICKS * m * 10**e)


def _clients(record: AuditRecord) -> NDArray[np.int64]:
    """How often each real client took part; empty if nobody knows."""
    ids = record.clients.ids
    if ids is None or not len(ids):
        return np.empty(0, np.int64)
    return np.bincount(ids, minlength=record.design.num_clients or 0)


def _bars(counts: NDArray[np.int64]) -> JSON:
    """How many clients took part how often."""
    width = 1 + int(np.ptp(counts)) // _BARS
    first, many = np.unique(counts // width, return_counts=True)
    return {
        "type": "bar",
        "name": "clients",
        "x": (first * width + (width - 1) / 2).tolist(),
        "y": many.tolist(),
        "width": 0.8 * width,
        "marker": {"color": PLAIN},
        "hovertemplate": "%{y} clients took part %{x} times<extra></extra>",
        "yaxis": "y2",
        "showlegend": False,
    }


def _theory(every: Answer, measured: Answer, grid: Floats) -> Iterator[JSON]:
    limit, found = every.analytical.epsilon, measured.estimate
    if found is not None and limit is not None and math.isfinite(limit):
        shifts = shift_of_epsilon(limit, found.delta) * np.sqrt(grid / every.participations)
        y = epsilon_of_shift(shifts, found.delta)
        yield scatter("lines", grid, y, "theory allows", charts.THEORY, "dot")


def _client(measured: list[Answer]) -> Iterator[JSON]:
    """What is proved of the client, and its ε with the numbers, which do not touch."""
    x = [answer.participations for answer in measured]
    proved = [charts.known(answer.proved) for answer in measured]
    yield scatter("markers", x, proved, "proved", PLAIN, "triangle-up")
    epsilons = [answer.estimate.epsilon for answer in measured if answer.estimate]
    inside = np.ptp(epsilons) > _APART * max(epsilons) or len(x) == 1
    at = ("bottom right", "top right") if inside else ("top left", "bottom right")
    yield scatter("markers", x, epsilons, "median client", PLAIN, "diamond", size=8) | {
        "mode": "markers+text",
        "text": [number(epsilon) for epsilon in epsilons],
        "textposition": [at[epsilon < max(epsilons)] for epsilon in epsilons],
    }


def _adversary(
    record: AuditRecord, client: AuditedClient, answer: Answer, grid: Floats
) -> tuple[JSON, JSON, JSON]:
    """Band, curve and canaries of an adversary."""
    sees, fit, scores, found = answer.adversary.sees, answer.fit, answer.scores, answer.estimate
    if fit is None or scores is None or found is None:
        raise ValueError(f"Expected answer to be measured, got {answer.reason!r}.")
    view, name, (color, dash, symbol) = (
        seen_by(record, Adversary(sees)),
        SEEN[sees],
        charts.LOOKS[sees],
    )
    size, sizes = client.size(view), view.sizes.observed

    def epsilon(scale: float, times: float | Floats) -> Floats:
        share = np.asarray(times) / client.participations
        shifts = scale * size * (share if sees == "final" else np.sqrt(share))
        return epsilon_of_shift(shifts, found.delta)

    rest = scores.deviates(fit.scale * sizes)
    half = float(scipy.special.ndtri((1 + found.confidence) / 2)) * max(fit.width, 1.0)
    x, counts, ends = [], [], []
    for times, chosen in _groups(record, len(sizes)):
        energy = float(np.sum(sizes[chosen] ** 2))
        scale, wide = fit.scale + float(rest[chosen] @ sizes[chosen]) / energy, half / energy**0.5
        x.append(times)
        counts.append([len(chosen)])
        ends.append([epsilon(end, times) for end in (scale, scale - wide, scale + wide)])
    middle, low, high = np.array(ends).T
    hover = f"%{{customdata[0]}} canaries, %{{x:.3g}} times: ε %{{y:.3g}}<extra>{name}</extra>"
    canaries = scatter("markers", x, middle, "canaries, interval", color, symbol, size=10)
    return (
        charts.band(grid, epsilon(fit.low, grid), epsilon(fit.high, grid), name, color),
        scatter("lines", grid, epsilon(fit.scale, grid), name, color, dash),
        canaries
        | {"error_y": charts.error_bars(middle, low, high, color), "showlegend": False}
        | {"customdata": counts, "hovertemplate": hover},
    )


def _groups(record: AuditRecord, count: int) -> Iterator[tuple[float, NDArray[np.int64]]]:
    """Canaries that took part so often: their mean number of participations, and which scores."""
    taken = scored(record, count)
    order = np.argsort(taken, kind="stable")[np.sum(taken == 0) :]
    ends = np.flatnonzero(np.diff(taken[order])) + 1
    parts = np.split(order, ends) if len(ends) < _GROUPS else np.array_split(order, _GROUPS)
    for chosen in parts:
        yield float(taken[chosen].mean()), chosen


def scored(record: AuditRecord, count: int) -> NDArray[np.int64]:
    """Participations of the ``count`` canaries that have a score."""
    taken = record.presence.sum(axis=0)
    return taken if count == len(taken) else taken[taken > 0]


def epsilon_of_shift(shifts: Floats, delta: float) -> Floats:
    """ε of N(shift, 1) against N(0, 1); a shift below 0 counts as 0."""
    return np.asarray(epsilon_two_gaussians(0.0, 1.0, np.maximum(shifts, 0.0), 1.0, delta))


def shift_of_epsilon(epsilon: float, delta: float) -> float:
    """The shift at which `epsilon_of_shift` is ``epsilon``."""

    def excess(shift: float) -> float:
        return float(epsilon_of_shift(np.array(shift), delta)) - epsilon

    return float(scipy.optimize.brentq(excess, 0.0, math.sqrt(2 * epsilon) + 10))
