"""What else a report says, under the questions that somebody would ask: `details`."""

from collections.abc import Callable, Iterator

import numpy as np

from fl_epe import auditing
from fl_epe.accounting import epsilon_of_shift
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.reporting.charts import answer_cells
from fl_epe.reporting.clients import ClientLeakage, client_leakage
from fl_epe.reporting.numbers import interval
from fl_epe.reporting.reliability import SEES, canary_share, what_is_seen
from fl_epe.reporting.sentences import rounds_of
from fl_epe.reporting.summary import Summary
from fl_epe.wording import counted, how_often, number

_HEAVY = 1.1  # times the median weight
_PAPER = {"model": "cosine with the final model", "maximum": "largest cosine"}


def details(summary: Summary) -> list[tuple[str, list[str]]]:
    """Each question with its sentences; without questions that this run says nothing about."""
    found = [(question, list(says(summary))) for question, says in _QUESTIONS.items()]
    return [(question, lines) for question, lines in found if lines]


def _trust(summary: Summary) -> Iterator[str]:
    if (record := summary.record) is None:
        return
    for one in summary.answers:
        seen = what_is_seen(one, record)
        seen = f"{seen[:1].upper()}{seen[1:]}"
        said = (
            [f"not measured, as {one.reason}."]
            if one.fit is None
            else _fit(one, one.fit)
        )
        yield from (f"{seen}: {text}" for text in said)
    if (share := canary_share(record)) is not None:
        yield (
            f"{record.num_canaries:,} canaries took part; they are {share:.1%} of a round's weight "
            f"(up to {auditing.MOST_SHARE:.0%} is taken as harmless)."
        )
    if idle := int((record.norms.means == 0).sum()):
        yield f"The model did not move in {idle} of {record.rounds} rounds, which say nothing."
    yield from record.findings.noise


def _fit(one: auditing.Answer, fit: auditing.LadderFit) -> Iterator[str]:
    yield (
        f"scores are {fit.scale:.3g} ({fit.low:.3g} – {fit.high:.3g}) times as large as what the "
        f"canaries added predicts, and vary {fit.width:.2f} times as much as assumed."
    )
    tests = (
        (
            fit.number,
            "grow with the number of participations",
            "they grew half as much",
        ),
        (
            fit.time,
            "do not depend on the time of participation",
            "the first round left half",
        ),
    )
    for test, what, otherwise in tests:
        if test is not None:
            yield (
                f"test that scores {what} as assumed: p = {test.p_value:.2g}. If {otherwise}, a "
                f"run of this load would show it at level 1% in {test.power:.0%} of cases."
            )
    if one.scores is None:
        return
    if (null := one.scores.unobserved) is not None and one.scores.standard_null:
        yield (
            f"{len(null)} canaries that took no part have scores of mean {null.mean():.2f} and "
            f"width {np.sqrt(np.mean(null**2)):.2f}; 0 and 1 are expected."
        )
    if (back := one.scores.followed) is not None:
        yield (
            f"the noise is correlated over more rounds than the {back} that scores are whitened "
            "with, so ε may be up to some 7% too small."
        )
    if one.proof is not None:
        bound = BOUNDS[one.proof]
        yield (
            f"'at least' is by {one.proof!r}, fixed by the number of canaries and δ alone; it "
            f"assumes {bound.assumption} ({bound.theorem})."
        )


def _knowledge(summary: Summary) -> Iterator[str]:
    record, unit, every = summary.record, summary.unit, summary.answers[1].analytical
    yield (
        f"Theory is for {every.adjacency} adjacency, and assumes: {every.assumption}. The unit of "
        f"privacy is one {unit}."
    )
    for one in summary.told:
        epsilon, ends, least, theory = answer_cells(one)
        yield (
            f"Another question: an adversary who sees {SEES[one.adversary.sees]} and knows the "
            f"{unit}'s {rounds_of(one, summary)}: ε = {epsilon} ({ends}), at least {least}, theory "
            f"allows {theory}."
        )
    yield (
        "Both adversaries know the first model, the server's optimizer and the directions of all "
        f"other canaries, but not the update of any other {unit}. The server, or whoever else "
        "trains, is neither: it is trusted, and sees more, such as updates without noise."
    )
    if record is not None and record.design.also_known:
        yield f"Who sees every round's model also knows {record.design.also_known}."


def _clients(summary: Summary) -> Iterator[str]:
    if summary.record is None:
        return
    try:
        found = client_leakage(summary)
    except ValueError:
        yield "The record does not say which client took part in which round."
    else:
        counts = found.participations
        low, middle, high = np.quantile(counts, (0, 0.5, 1)).tolist()
        clients = counted(len(counts), "client")
        rounds = f"{low:g} to {high:g} rounds, median {middle:g}"
        if low == high:
            rounds = f"{low:g} rounds each"
        yield (
            f"{clients} took part in {rounds}. Their ε differ by the number of their rounds, and "
            "by how much the noise and other clients hide them in these."
        )
        for one in summary.answers:
            each = found.epsilon[one.adversary.sees]
            if np.isfinite(each).any():
                worst = int(np.nanargmax(each))
                yield (
                    f"The worst-case client took part {how_often(counts[worst])}; against an "
                    "adversary who knows its rounds, ε is "
                    f"{_of_client(summary, found, worst, one)}."
                )
        heaviest = int(np.argmax(found.weights))
        if found.weights[heaviest] >= _HEAVY:
            yield _heaviest(summary, found, heaviest)
        yield "fl-epe report RUN_DIR --clients writes ε of each client; that is personal data."


def _heaviest(summary: Summary, found: ClientLeakage, place: int) -> str:
    """The weight of the heaviest client, and its ε."""
    each = [
        _of_client(summary, found, place, one) for one in summary.answers if one.fit
    ]
    return (
        f"The heaviest client has {found.weights[place]:.3g} times the median weight; its ε is "
        f"{', and '.join(each) or 'not measured'}. Canaries have the median weight, so nothing is "
        "proved of it."
    )


def _of_client(
    summary: Summary, found: ClientLeakage, place: int, one: auditing.Answer
) -> str:
    """ε of a client by κ of the canaries, its interval, and what theory allows it."""
    record, fit, view = summary.record, one.fit, one.view
    assert record is not None and fit is not None and view is not None  # noqa: S101, PT018
    shares = record.clients.shares_of(found.ids[place : place + 1])
    client = auditing.AuditedClient(float(found.participations[place]), shares)
    theory = auditing.analytical(record.mechanism, client, summary.delta).epsilon
    allowed = (
        "no theory is known" if theory is None else f"theory allows {number(theory)}"
    )
    scales = np.maximum([fit.scale, fit.low, fit.high], 0.0)
    epsilons = epsilon_of_shift(scales * view.sizes.of(shares), summary.delta)
    epsilon, low, high = map(number, epsilons.tolist())
    return f"{epsilon} ({low} – {high}; {allowed}) from {what_is_seen(one, record)}"


def _paper(summary: Summary) -> Iterator[str]:
    record, sure = summary.record, summary.confidence
    if record is None:
        return
    taken = record.presence.sum(axis=0)
    for statistic, name in _PAPER.items():
        try:
            found = auditing.epsilon_from_record(
                record,
                summary.delta,
                statistic=statistic,
                variance="fitted",
                confidence=sure,
            )
        except ValueError as error:
            yield f"The paper's {name}: not measured, as {error}."
            continue
        yield (
            f"The paper's {name}: ε = {number(found.epsilon)} ({interval(found)}). It need not "
            "agree with the table: it is of a mean canary, which took part "
            f"{how_often(taken.mean())}, and compares Gaussians whose widths are fitted. Canaries "
            "that took part more and less often widen theirs, and so raise ε; the table's fit "
            "knows how often each took part."
        )


def _events(summary: Summary) -> Iterator[str]:
    if (record := summary.record) is not None:
        rounds = counted(record.rounds, "round")
        unobserved = f"{record.unobserved.count} canaries that took no part"
        yield f"{rounds}, {record.dim:,} parameters, {unobserved}."
        if (stop := record.findings.stopped) is not None:
            watched = stop.estimate
            yield (
                f"The run ended after round {stop.after}; its rule watched ε = "
                f"{number(watched.epsilon)} ({interval(watched)}, which holds at "
                "every round at once) for an adversary who sees every round's model."
            )
        if (seconds := record.provenance.seconds) is not None:
            memory = record.provenance.canary_bytes / 1e6
            yield (
                f"The audit took {seconds:.2g} s a round, beside the strategy's own work, and "
                f"{memory:.2g} MB of memory for a round's canaries."
            )
    yield from (f"{line}." for line in summary.performance())
    yield from summary.plan
    known = {str(kind): kind.meaning for kind in auditing.FaultKind}
    for kind, count in sorted(
        summary.fault_counts.items(), key=lambda pair: (-pair[1], pair[0])
    ):
        if count:
            yield f"{count} × {kind}. {known.get(kind, '')}".strip()
    yield from summary.faults


_QUESTIONS: dict[str, Callable[[Summary], Iterator[str]]] = {
    "Can I trust it?": _trust,
    "Who knows what?": _knowledge,
    "Which clients are worst off?": _clients,
    "What do the statistics of Andrew et al. (2024) say?": _paper,
    "What happened?": _events,
}
