"""What else a report says, under the questions that somebody would ask: `details`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from fl_epe.auditing import (
    Answer,
    FaultKind,
    NotMeasured,
    dependence,
    epsilon_of,
    others_share,
    seen_by,
)
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.reporting.charts import answer_cells
from fl_epe.reporting.clients import client_leakage
from fl_epe.reporting.numbers import number
from fl_epe.reporting.reliability import MOST_SHARE, SEES, canary_share
from fl_epe.reporting.sentences import SCOPE, rounds_of
from fl_epe.reporting.summary import Summary

_PAPER = {"final": ("model", "cosine with the final model"), "all": ("maximum", "largest cosine")}


def details(summary: Summary) -> list[tuple[str, list[str]]]:
    """Each question with its sentences; without questions that this run says nothing about."""
    asked: dict[str, Callable[[Summary], Iterator[str]]] = {
        "Can I trust it?": _trust,
        "Who knows what?": _knowledge,
        "Which clients are worst off?": _clients,
        "What did the paper's statistics say?": _paper,
        "What happened?": _events,
    }
    found = [(question, list(says(summary))) for question, says in asked.items()]
    return [(question, lines) for question, lines in found if lines]


def _trust(summary: Summary) -> Iterator[str]:
    record = summary.record
    if record is None:
        return
    for one in summary.answers:
        yield from _fit(one)
    share = canary_share(record)
    if share is not None:
        yield (
            f"{record.num_canaries:,} canaries took part; they are {share:.1%} of a round's weight "
            f"(up to {MOST_SHARE:.0%} is taken as harmless)."
        )
    shares = others_share(record)[record.presence.any(axis=1)]
    if len(shares) and (overlap := float(shares.mean())) >= 1e-3:
        taken = "taken out of its scores" if record.norms.sums is not None else "left in"
        yield (
            f"The other canaries are {overlap:.1%} of the energy of a round's mean; for each "
            f"canary they are {taken}."
        )
    if idle := int((record.norms.means == 0).sum()):
        yield f"The model did not move in {idle} of {record.rounds} rounds, which say nothing."
    for who, test in dependence(record).items():
        yield (
            f"Scores of two {who} canaries of a round have the correlation "
            f"{test.correlation:.2g} "
            f"± {test.standard_error:.1g} (p = {test.p_value:.2g}); independent ones by 0."
        )
    yield "One run cannot show dependence that is the same in all its rounds."


def _fit(one: Answer) -> Iterator[str]:
    seen = f"{SEES[one.adversary.sees][:1].upper()}{SEES[one.adversary.sees][1:]}"
    if one.fit is None or one.scores is None:
        yield f"{seen}: not measured, as {one.reason}."
        return
    fit, scores = one.fit, one.scores
    yield (
        f"{seen}: scores are {fit.scale:.3g} ({fit.low:.3g} – {fit.high:.3g}) times as large as "
        f"what the canaries added predicts, and vary {fit.width:.2f} times as much as assumed."
    )
    tests = (
        (fit.number, "grow with the number of participations", "they grew half as much"),
        (fit.time, "do not depend on the time of participation", "the first round left half"),
    )
    for test, what, otherwise in tests:
        if test is not None:
            yield (
                f"{seen}: test that scores {what} as assumed: p = {test.p_value:.2g}. If "
                f"{otherwise}, a run of this load would show it at level 1% in {test.power:.0%} of "
                "cases."
            )
    if (null := scores.unobserved) is not None and scores.standard_null:
        yield (
            f"{seen}: {len(null)} canaries that took no part have scores of mean {null.mean():.2f} "
            f"and width {np.sqrt(np.mean(null**2)):.2f}; 0 and 1 are expected."
        )
    if scores.unit_error > 0.001:
        yield f"{seen}: the unit of the scores has a relative error of {scores.unit_error:.1%}."
    if scores.spread > 1.1:
        yield (
            f"{seen}: the scores share the random norm of the residual; their mean varies "
            f"{scores.spread:.2f} times as much as that of independent ones."
        )
    if scores.followed is not None:
        yield (
            f"{seen}: the noise is correlated over more rounds than the {scores.followed} that "
            "scores are whitened with, so ε may be up to some 7% too small."
        )
    if one.proof is not None:
        bound = BOUNDS[one.proof]
        yield (
            f"{seen}: the proof is by {one.proof!r}, which was fixed before the run; it assumes "
            f"{bound.assumption}. {bound.theorem[:1].upper()}{bound.theorem[1:]}."
        )


def _knowledge(summary: Summary) -> Iterator[str]:
    record, unit = summary.record, summary.unit
    for one in summary.answers[1:]:
        yield (
            f"Theory is for {one.analytical.adjacency} adjacency, and assumes: "
            f"{one.analytical.assumption}. The unit of privacy is one {unit}."
        )
    for one in summary.told:
        epsilon, ends, proved, theory = answer_cells(one)
        yield (
            f"Another question: an adversary who sees {SEES[one.adversary.sees]} and knows the "
            f"{unit}'s {rounds_of(one, summary)}: ε = {epsilon} ({ends}), proved {proved}, theory "
            f"allows {theory}."
        )
    yield (
        "Both adversaries know the first model, the server's optimizer and the directions of all "
        f"other canaries, but not the other {unit}s' updates."
    )
    if record is not None and record.design.also_known:
        yield f"Who sees every round's model also knows {record.design.also_known}."
    yield f"{SCOPE}."


def _clients(summary: Summary) -> Iterator[str]:
    record = summary.record
    if record is None:
        return
    try:
        found = client_leakage(summary)
    except (ValueError, NotMeasured):
        yield "The record does not say which client took part in which round."
    else:
        counts = found.participations
        ends = [f"{q:g}" for q in np.quantile(counts, (0, 0.5, 1)).tolist()]
        yield (
            f"{len(counts):,} clients took part in {ends[0]} to {ends[2]} rounds, with the median "
            f"{ends[1]}."
        )
        for sees, each in found.epsilon.items():
            if np.isfinite(each).any():
                worst = int(np.nanargmax(each))
                yield (
                    f"The worst-case client took part {counts[worst]} times: ε = "
                    f"{number(each[worst])} against an adversary who sees {SEES[sees]} and knows "
                    "its rounds."
                )
        yield "fl-epe report RUN_DIR --clients writes ε of each client; that is personal data."
    heaviest, canary = record.findings.heaviest_share, record.findings.heaviest_canary_share
    if heaviest and canary and heaviest / canary >= 1.1:
        yield (
            f"The heaviest client has {heaviest / canary:.3g} times the weight of the heaviest "
            "canary, so that its ε is larger than any here."
        )


def _paper(summary: Summary) -> Iterator[str]:
    if summary.record is None:
        return
    taken = summary.record.presence.sum(axis=0)
    for one in summary.answers:
        statistic, name = _PAPER[one.adversary.sees]
        try:
            view = seen_by(summary.record, one.adversary)
            scores = view.scores(statistic)
            found = epsilon_of(scores, summary.delta, "fitted", summary.confidence)
        except (NotMeasured, ValueError) as error:
            yield f"The paper's {name}: not measured, as {error}."
            continue
        if math.isfinite(found.epsilon):
            yield (
                f"The paper's {name}: ε = {number(found.epsilon)} ({number(found.low)} – "
                f"{number(found.high)}), of a mean canary, which took part {taken.mean():.3g} "
                "times: another client than that of the table. All canaries stay in, and two "
                "fitted Gaussians are compared."
            )


def _events(summary: Summary) -> Iterator[str]:
    record = summary.record
    if record is not None:
        z = record.mechanism.noise_multiplier
        yield (
            f"{record.rounds} rounds, {record.dim:,} parameters, noise multiplier "
            f"{'unknown' if z is None else f'{z:g}'}, participation "
            f"{record.mechanism.participation}, {record.num_canaries} observed and "
            f"{record.unobserved.count} unobserved canaries."
        )
    for name, value in summary.held_out():
        yield f"The model's {name} on held-out data: {value}."
    if record is not None and (stop := record.findings.stopped) is not None:
        watched = stop.estimate
        yield (
            f"The run ended after round {stop.after}. What its rule watched was ε = "
            f"{number(watched.epsilon)} ({number(watched.low)} – {number(watched.high)}, an interval "
            "that holds at every round at once), for an adversary who sees every round's model."
        )
    yield from summary.plan
    known = {str(kind): kind.meaning for kind in FaultKind}
    for kind, count in sorted(summary.fault_counts.items(), key=lambda pair: (-pair[1], pair[0])):
        if count:
            yield f"{count} × {kind}. {known.get(kind, '')}".strip()
    yield from summary.faults
