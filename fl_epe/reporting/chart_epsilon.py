"""The chart of the answer: ε of a client of the run against its number of participations."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.accounting import epsilon_of_shift, shift_of_epsilon
from fl_epe.auditing import (
    Adversary,
    Answer,
    AuditedClient,
    AuditRecord,
    EpsilonEstimate,
    LadderFit,
    Scores,
    Sees,
    seen_by,
)
from fl_epe.auditing.estimate import half_width
from fl_epe.checks import Floats, Integers
from fl_epe.reporting import charts
from fl_epe.reporting.charts import PLAIN, Chart, scatter
from fl_epe.reporting.numbers import JSON
from fl_epe.reporting.summary import CONFIDENCE
from fl_epe.wording import how_often, number

_NUM_POINTS = 48  # points of a curve
_MAX_GROUPS = 8  # groups of canaries
_MAX_BARS = 60  # bars that count clients
_MAX_TICKS = 7  # ticks of the x-axis, besides 0

# The x-axis ends at the largest number of participations, or at this many times the median
# client's.
_MAX_TIMES_MEDIAN = 4.0

# The space for the labels of the last points on a narrow screen, as a share of the x-axis.
_LABEL_WIDTH = 0.2

# Both labels fit between two ε that differ by more than this share of the largest ε drawn.
_LABEL_HEIGHTS = 0.2

# The width of a bar: as a share of its bin, but at most this share of the x-axis.
_BAR_WIDTH = 0.8
_MAX_BAR_WIDTH = 0.06


def epsilon_chart(
    record: AuditRecord, answers: tuple[Answer, Answer]
) -> Chart | None:
    """Draws ε against participations, or only ε of the client if sampling hides its rounds.

    Returns:
        ``None`` if no ε was measured.
    """
    client = AuditedClient.of(record)
    times = how_often(client.participations)
    named = [
        (charts.view_name(answer.adversary.sees, record), answer)
        for answer in answers
    ]
    if client.secret is not None:
        return charts.answer_chart(
            named,
            name="epsilon",
            title=f"ε of a client that is expected to take part {times}",
            caption="Circles are estimates with their intervals, triangles what leaks at "
            "least, crosses what theory allows: all for an adversary who does not know in which "
            "rounds the client took part.",
        )
    estimates = dict[str, EpsilonEstimate]()
    for name, answer in named:
        estimate = charts.finite_estimate(answer)
        if estimate is not None:
            estimates[name] = estimate
    if not estimates:
        return None
    client_counts = _client_counts(record)
    canary_counts = record.presence.sum(axis=0)
    largest_count = max(
        client.participations,
        canary_counts.max(initial=0),
        client_counts.max(initial=0),
    )
    end = min(largest_count, _MAX_TIMES_MEDIAN * client.participations)
    traces = _traces(record, client, answers, estimates, end)
    panels: list[tuple[str, float, JSON]] = [
        ("ε", 6.0, {"rangemode": "tozero"})
    ]
    if len(client_counts):
        panels.append(("clients", 1.0, {"nticks": 2, "rangemode": "tozero"}))
        traces.append(_bars(client_counts[client_counts <= end], end))
    delta = next(iter(estimates.values())).delta
    return Chart(
        name="epsilon",
        title=f"ε at δ = {delta:.2g} of one client, by how often it takes part",
        caption=" ".join(
            _caption(times, answers, estimates, client_counts, end)
        ),
        alternative=f"A client that takes part {times}. {charts.answers_in_words(named)}",
        traces=charts.in_legend_once(traces),
        layout=charts.axes("participations", *panels, **_x_axis(end)),
        may_be_logarithmic=True,
    )


def _traces(
    record: AuditRecord,
    client: AuditedClient,
    answers: tuple[Answer, Answer],
    estimates: Mapping[str, EpsilonEstimate],
    end: float,
) -> list[JSON]:
    """The traces of ε against participations, up to ``end``."""
    # More points near 0, where curves are steep.
    squares = end * np.linspace(0, 1, _NUM_POINTS) ** 2
    grid = np.union1d(squares, [client.participations])
    by_adversary = [
        _adversary_traces(record, client, answer, grid) for answer in answers
    ]
    by_adversary = [traces for traces in by_adversary if traces]
    # All areas are drawn first, so that they hide no curve.
    traces = list(
        itertools.chain.from_iterable(zip(*by_adversary, strict=True))
    )
    highest = max(y or 0.0 for area, *_ in by_adversary for y in area["y"])
    traces += _median_client_traces(answers[1], estimates, grid, highest)
    return traces


def _x_axis(end: float) -> JSON:
    """The range and ticks of an axis to ``end``, with space for the labels of points there."""
    step = next(
        digit * 10**power
        for power in itertools.count()
        for digit in (1, 2, 5)
        if end <= _MAX_TICKS * digit * 10**power
    )
    return {
        "range": [0, (1 + _LABEL_WIDTH) * end],
        "tickvals": np.arange(0, end + step / 1000, step).tolist(),
    }


def _caption(
    times: str,
    answers: tuple[Answer, Answer],
    estimates: Mapping[str, EpsilonEstimate],
    client_counts: Integers,
    end: float,
) -> Iterator[str]:
    """The sentences below the chart of a client that takes part ``times``, up to ``end``."""
    yield (
        f"Lines are ε by what an adversary sees, with shaded {CONFIDENCE:.0%} intervals; "
        "open symbols are canaries, at the number of rounds that they took part in. Diamonds are "
        f"the client of the answer, which took part {times}, the median; triangles are what leaks "
        "of it at least."
    )
    limit = charts.drawable(answers[1].analytical.epsilon)
    if any(estimate.epsilon > limit for estimate in estimates.values()):
        yield "Estimates exceed theory by chance."
    if any(answer.extrapolated for answer in answers):
        yield "No canary took part as often."
    if len(client_counts):
        yield "Below are the clients of this run."
    not_drawn = int(np.sum(client_counts > end))
    if not_drawn:
        yield f"{not_drawn:,} more took part up to {how_often(client_counts.max())}."


def _client_counts(record: AuditRecord) -> Integers:
    """Number of participations of each real client; empty if the record does not have them."""
    ids = record.clients.ids
    if ids is None or not len(ids):
        return np.empty(0, np.int64)
    return np.asarray(
        np.bincount(ids, minlength=record.design.num_clients or 0)
    )


def _bars(counts: Integers, end: float) -> JSON:
    """A bar chart of the number of clients by their number of participations."""
    width = 1 + int(np.ptp(counts)) // _MAX_BARS
    bins, clients = np.unique(counts // width, return_counts=True)
    return {
        "type": "bar",
        "name": "clients",
        # The middle of the whole numbers in each bin.
        "x": (bins * width + (width - 1) / 2).tolist(),
        "y": clients.tolist(),
        "width": min(_BAR_WIDTH * width, _MAX_BAR_WIDTH * end),
        "marker": {"color": PLAIN},
        "hovertemplate": "%{y} clients took part %{x} times<extra></extra>",
        "yaxis": "y2",
        "showlegend": False,
    }


def _median_client_traces(
    answer: Answer,
    estimates: Mapping[str, EpsilonEstimate],
    grid: Floats,
    highest: float,
) -> Iterator[JSON]:
    """The curve of theory, and ε of the median client with labels that do not overlap.

    Args:
        answer: the answer for an adversary who sees every round's model.
        estimates: the estimate for each adversary, by its name.
        grid: the numbers of participations of the curve.
        highest: the largest ε drawn.
    """
    delta = next(iter(estimates.values())).delta
    limit = charts.drawable(answer.analytical.epsilon)
    if math.isfinite(limit):
        growth = np.sqrt(grid / answer.participations)
        allowed = epsilon_of_shift(
            shift_of_epsilon(limit, delta) * growth, delta
        )
        yield scatter("lines", grid, allowed, "theory", charts.THEORY, "dot")
    epsilons = [estimate.epsilon for estimate in estimates.values()]
    larger = max(epsilons)
    if len(epsilons) == 1 or np.ptp(epsilons) > _LABEL_HEIGHTS * highest:
        larger_place = "bottom right"
        smaller_place = "top right"
    else:
        larger_place = "top left"
        smaller_place = "bottom right"
    yield scatter(
        "markers+text",
        [answer.participations] * len(epsilons),
        epsilons,
        "median client",
        PLAIN,
        "diamond",
        size=7,
        text=[number(epsilon) for epsilon in epsilons],
        textposition=[
            smaller_place if epsilon < larger else larger_place
            for epsilon in epsilons
        ],
        meta=list(estimates),
    )


def _adversary_traces(
    record: AuditRecord, client: AuditedClient, answer: Answer, grid: Floats
) -> tuple[JSON, ...]:
    """Interval, curve, canaries and lower bound of an adversary; empty without an ε."""
    sees = answer.adversary.sees
    fit = answer.fit
    scores = answer.scores
    estimate = charts.finite_estimate(answer)
    if fit is None or scores is None or estimate is None:
        return ()
    view = seen_by(record, Adversary(sees))
    name = charts.view_name(sees, record)
    color, dash, _ = charts.LOOKS[sees]
    client_score = client.expected_score(view)
    delta = estimate.delta

    def epsilon(scale: ArrayLike, times: ArrayLike) -> Floats:
        # The expected score grows with the number of rounds for the final model, and with its
        # square root for the models of all rounds.
        ratio = np.asarray(times) / client.participations
        growth = ratio if answer.adversary.sees_final else np.sqrt(ratio)
        shift = np.asarray(scale) * client_score * growth
        return epsilon_of_shift(shift, delta)

    traces = (
        charts.band(
            grid,
            epsilon(fit.low, grid),
            epsilon(fit.high, grid),
            "interval",
            color,
        ),
        scatter("lines", grid, epsilon(fit.scale, grid), name, color, dash),
        _canary_trace(
            record, sees, fit, scores, view.expected_scores.observed, epsilon
        ),
        scatter(
            "markers",
            [client.participations],
            [charts.drawable(answer.proved)],
            f"at least, {name}",
            color,
            "triangle-up",
        ),
    )
    return tuple(trace | {"meta": name} for trace in traces)


def _canary_trace(
    record: AuditRecord,
    sees: Sees,
    fit: LadderFit,
    scores: Scores,
    expected_scores: Floats,
    epsilon: Callable[[ArrayLike, ArrayLike], Floats],
) -> JSON:
    """ε of each group of canaries by the group's own κ, with its interval.

    Args:
        record: the record.
        sees: what the adversary sees.
        fit: the fit of all canaries.
        scores: the canaries' scores.
        expected_scores: the canaries' expected scores.
        epsilon: ε as a function of κ and of the number of participations.
    """
    counts = scored_participations(record, len(expected_scores))
    residuals = scores.deviates(fit.scale * expected_scores)
    groups = [
        group for group in _groups(counts) if expected_scores[group].any()
    ]
    times = np.array([counts[group].mean() for group in groups])
    energies = np.array(
        [np.sum(expected_scores[group] ** 2) for group in groups]
    )
    # Least squares in each group: the correction of κ that its residuals suggest.
    products = np.array(
        [residuals[group] @ expected_scores[group] for group in groups]
    )
    scales = fit.scale + products / energies
    half_widths = (
        half_width(CONFIDENCE) * max(fit.width, 1.0) / np.sqrt(energies)
    )
    name = charts.view_name(sees, record)
    color, _, symbol = charts.LOOKS[sees]
    middle = epsilon(scales, times)
    canaries = scatter(
        "markers", times, middle, f"canaries, {name}", color, symbol, size=10
    )
    hover = "%{customdata[0]} canaries, %{x:.3g} times: ε %{y:.3g}"
    return canaries | {
        "error_y": charts.error_bars(
            middle,
            epsilon(scales - half_widths, times),
            epsilon(scales + half_widths, times),
            color,
        ),
        "customdata": [[len(group)] for group in groups],
        "hovertemplate": f"{hover}<extra>{name}</extra>",
    }


def _groups(counts: Integers) -> list[Integers]:
    """Groups of canaries with equal participations, or with similar ones to limit the number.

    Canaries that took no part are in no group.
    """
    num_absent = np.sum(counts == 0)
    order = np.argsort(counts, kind="stable")[num_absent:]
    ends = np.flatnonzero(np.diff(counts[order])) + 1
    if len(ends) < _MAX_GROUPS:
        return np.split(order, ends)
    return np.array_split(order, _MAX_GROUPS)


def scored_participations(record: AuditRecord, count: int) -> Integers:
    """Participations of the ``count`` canaries that have a score."""
    participations = np.asarray(record.presence.sum(axis=0))
    if count == len(participations):
        return participations
    return participations[participations > 0]
