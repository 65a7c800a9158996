"""The picture of the answer: ε of a client of the run against its number of participations."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import scipy
from numpy.typing import ArrayLike

from fl_epe.accounting import epsilon_of_shift, shift_of_epsilon
from fl_epe.auditing import (
    Adversary,
    Answer,
    AuditedClient,
    AuditRecord,
    EpsilonEstimate,
    seen_by,
)
from fl_epe.checks import Floats, Integers
from fl_epe.reporting import charts
from fl_epe.reporting.charts import PLAIN, Chart, scatter
from fl_epe.reporting.numbers import JSON
from fl_epe.wording import how_often, number

_STEPS = 48  # of a curve
_GROUPS = 8  # of canaries at most
_BARS = 60  # of clients at most
_FAR = 4.0  # times the median client's participations at which the x-axis ends
_TICKS = 7
_LETTER = 0.045  # of the x-axis, beside the last point, for each of a label on a narrow screen
_APART = 0.2  # of the largest ε that is drawn, if two labels fit between both ε


def epsilon_chart(record: AuditRecord, answers: tuple[Answer, Answer]) -> Chart | None:
    """ε against participations; ε of the client alone where sampling hides its rounds.

    Returns:
        ``None`` if no ε was measured.
    """
    client = AuditedClient.of(record)
    named = [(charts.seen(one.adversary.sees, record), one) for one in answers]
    often = how_often(client.participations)
    if client.secret is not None:
        return charts.answer_chart(
            named,
            name="epsilon",
            title=f"ε of a client that is expected to take part {often}",
            caption="Circles are estimates with their intervals, triangles what leaks at "
            "least, crosses what theory allows: all for an adversary who does not know in which "
            "rounds the client took part.",
        )
    measured = {
        name: found for name, one in named if (found := charts.finite_estimate(one))
    }
    if not measured:
        return None
    estimate, *_ = measured.values()
    counts, times = _clients(record), client.participations
    taken = record.presence.sum(axis=0)
    top = min(max(times, taken.max(initial=0), counts.max(initial=0)), _FAR * times)
    grid = np.union1d(top * np.linspace(0, 1, _STEPS) ** 2, [times])
    drawn = [parts for a in answers if (parts := _adversary(record, client, a, grid))]
    traces = [trace for kind in zip(*drawn, strict=True) for trace in kind]
    highest = max(y or 0.0 for band, *_ in drawn for y in band["y"])
    panels: list[tuple[str, float, JSON]] = [("ε", 6.0, {"rangemode": "tozero"})]
    bars, beyond = [], int(np.sum(counts > top))
    if len(counts):
        panels.append(("clients", 1.0, {"nticks": 2, "rangemode": "tozero"}))
        bars.append(_bars(counts[counts <= top], top))
    room = 1 + _LETTER * max(len(number(found.epsilon)) for found in measured.values())
    step = next(
        m * 10**e for e in range(9) for m in (1, 2, 5) if top <= _TICKS * m * 10**e
    )
    ticks = np.arange(0, top + step / 1000, step).tolist()
    limit = charts.known(answers[1].analytical.epsilon)
    is_above = any(found.epsilon > limit for found in measured.values())
    return Chart(
        name="epsilon",
        title=f"ε at δ = {estimate.delta:.2g} of one client, by how often it takes part",
        caption=f"Lines are ε by what an adversary sees, with shaded "
        f"{estimate.confidence:.0%} intervals; open symbols are canaries, at the number "
        "of rounds that they took part in. Diamonds are the client of the answer, which took part "
        f"{often}, the median; triangles are what leaks of it at least."
        + (" An estimate above theory is so by chance." if is_above else "")
        + (
            " No canary took part so often."
            if any(a.extrapolated for a in answers)
            else ""
        )
        + (" Below are the clients of this run." if len(counts) else "")
        + (
            f" {beyond:,} more took part up to {how_often(counts.max())}."
            if beyond
            else ""
        ),
        alternative=f"A client that takes part {often}. {charts.answers_in_words(named)}",
        traces=charts.in_legend_once(
            [*traces, *_client(answers[1], measured, grid, highest), *bars]
        ),
        layout=charts.axes(
            "participations", *panels, range=[0, room * top], tickvals=ticks
        ),
        may_be_logarithmic=True,
    )


def _clients(record: AuditRecord) -> Integers:
    """How often each real client took part; empty if nobody knows."""
    if (ids := record.clients.ids) is None or not len(ids):
        return np.empty(0, np.int64)
    return np.asarray(np.bincount(ids, minlength=record.design.num_clients or 0))


def _bars(counts: Integers, top: float) -> JSON:
    """How many clients took part how often."""
    width = 1 + int(np.ptp(counts)) // _BARS
    first, many = np.unique(counts // width, return_counts=True)
    return {
        "type": "bar",
        "name": "clients",
        "x": (first * width + (width - 1) / 2).tolist(),
        "y": many.tolist(),
        "width": min(0.8 * width, 0.06 * top),
        "marker": {"color": PLAIN},
        "hovertemplate": "%{y} clients took part %{x} times<extra></extra>",
        "yaxis": "y2",
        "showlegend": False,
    }


def _client(
    answer: Answer,
    measured: Mapping[str, EpsilonEstimate],
    grid: Floats,
    highest: float,
) -> Iterator[JSON]:
    """What theory allows, and ε of the client with labels that do not touch."""
    times, delta = answer.participations, next(iter(measured.values())).delta
    if math.isfinite(limit := charts.known(answer.analytical.epsilon)):
        allowed = epsilon_of_shift(
            shift_of_epsilon(limit, delta) * np.sqrt(grid / times), delta
        )
        yield scatter("lines", grid, allowed, "theory", charts.THEORY, "dot")
    y = [found.epsilon for found in measured.values()]
    inside = len(y) == 1 or np.ptp(y) > _APART * highest
    sides = ("bottom right", "top right") if inside else ("top left", "bottom right")
    at, text = (
        [sides[epsilon < max(y)] for epsilon in y],
        [number(epsilon) for epsilon in y],
    )
    more: JSON = {"size": 7, "text": text, "textposition": at, "meta": list(measured)}
    x = [times] * len(y)
    yield scatter("markers+text", x, y, "median client", PLAIN, "diamond", **more)


def _adversary(
    record: AuditRecord, client: AuditedClient, answer: Answer, grid: Floats
) -> tuple[JSON, ...]:
    """Interval, curve, canaries and proof of an adversary; empty if ε was not measured."""
    sees, fit, scores = answer.adversary.sees, answer.fit, answer.scores
    if (
        fit is None
        or scores is None
        or (found := charts.finite_estimate(answer)) is None
    ):
        return ()
    view, name = seen_by(record, Adversary(sees)), charts.seen(sees, record)
    color, dash, symbol = charts.LOOKS[sees]
    size, sizes = client.size(view), view.sizes.observed

    def epsilon(scale: ArrayLike, times: ArrayLike) -> Floats:
        share = np.asarray(times) / client.participations
        growth = share if answer.adversary.sees_final else np.sqrt(share)
        return epsilon_of_shift(np.asarray(scale) * size * growth, found.delta)

    taken, rest = scored(record, len(sizes)), scores.deviates(fit.scale * sizes)
    half = float(scipy.special.ndtri((1 + found.confidence) / 2)) * max(fit.width, 1.0)
    groups = [group for group in _groups(taken) if sizes[group].any()]
    times = np.array([taken[group].mean() for group in groups])
    energies = np.array([np.sum(sizes[group] ** 2) for group in groups])
    scales = fit.scale + np.array([rest[g] @ sizes[g] for g in groups]) / energies
    wide = half / np.sqrt(energies)
    middle, low, high = (epsilon(scales + end * wide, times) for end in (0, -1, 1))
    hover = "%{customdata[0]} canaries, %{x:.3g} times: ε %{y:.3g}"
    markers = scatter(
        "markers", times, middle, f"canaries, {name}", color, symbol, size=10
    )
    canaries = markers | {
        "error_y": charts.error_bars(middle, low, high, color),
        "customdata": [[len(group)] for group in groups],
        "hovertemplate": f"{hover}<extra>{name}</extra>",
    }
    proved, at = [charts.known(answer.proved)], [client.participations]
    low, high = epsilon(fit.low, grid), epsilon(fit.high, grid)
    drawn = (
        charts.band(grid, low, high, "interval", color),
        scatter("lines", grid, epsilon(fit.scale, grid), name, color, dash),
        canaries,
        scatter("markers", at, proved, f"at least, {name}", color, "triangle-up"),
    )
    return tuple(trace | {"meta": name} for trace in drawn)


def _groups(taken: Integers) -> list[Integers]:
    """Which canaries took part equally often, or about so if these would be many groups."""
    order = np.argsort(taken, kind="stable")[np.sum(taken == 0) :]
    ends = np.flatnonzero(np.diff(taken[order])) + 1
    return (
        np.split(order, ends) if len(ends) < _GROUPS else np.array_split(order, _GROUPS)
    )


def scored(record: AuditRecord, count: int) -> Integers:
    """Participations of the ``count`` canaries that have a score."""
    taken = np.asarray(record.presence.sum(axis=0))
    return taken if count == len(taken) else taken[taken > 0]
