"""`details`: the details of a report, under the questions that a reader would ask."""

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
from fl_epe.reporting.summary import CONFIDENCE, Summary
from fl_epe.wording import capitalized, counted, how_often, number

# The heaviest client is named if its weight is at least this many times the median weight.
_MIN_HEAVY = 1.1

# Statistics of Andrew et al. (2024), and their names.
_PAPER_STATISTICS = {
    "model": "cosine with the final model",
    "maximum": "largest cosine",
}


def details(summary: Summary) -> list[tuple[str, list[str]]]:
    """Each question with its sentences; questions without sentences are left out."""
    sections = [
        (question, list(sentences_of(summary)))
        for question, sentences_of in _QUESTIONS.items()
    ]
    return [(question, lines) for question, lines in sections if lines]


def _trust(summary: Summary) -> Iterator[str]:
    """How well the scores fit their model, and how large the canaries' share is."""
    record = summary.record
    if record is None:
        return
    for answer in summary.answers:
        view = capitalized(what_is_seen(answer, record))
        if answer.fit is None:
            yield f"{view}: not measured, as {answer.reason}."
        else:
            for text in _fit(answer, answer.fit):
                yield f"{view}: {text}"
    share = canary_share(record)
    if share is not None:
        yield (
            f"{record.num_canaries:,} canaries took part; they are {share:.1%} of a round's weight "
            f"(up to {auditing.MAX_CANARY_SHARE:.0%} counts as harmless)."
        )
    idle_rounds = int((record.norms.means == 0).sum())
    if idle_rounds:
        yield (
            f"The model did not move in {idle_rounds} of {record.rounds} rounds, which show "
            "nothing."
        )
    yield from record.findings.noise


def _fit(answer: auditing.Answer, fit: auditing.LadderFit) -> Iterator[str]:
    """The fitted κ, its tests, the unobserved canaries, and the assumptions of the bound."""
    yield (
        f"scores are {fit.scale:.3g} ({fit.low:.3g} – {fit.high:.3g}) times as large as what the "
        f"canaries added predicts, and vary {fit.width:.2f} times as much as assumed."
    )
    if fit.intercept_test is not None:
        yield (
            "test that scores grow with the number of participations as assumed: "
            f"{_p_value_and_power(fit.intercept_test, 'they grew half as much')}"
        )
    if fit.trend_test is not None:
        yield (
            "test that scores do not depend on the time of participation, as assumed: "
            f"{_p_value_and_power(fit.trend_test, 'the first round left half')}"
        )
    scores = answer.scores
    if scores is None:
        return
    null = scores.unobserved
    if null is not None and scores.standard_null:
        yield (
            f"{len(null)} canaries that took no part have scores of mean {null.mean():.2f} and "
            f"width {np.sqrt(np.mean(null**2)):.2f}; 0 and 1 are expected."
        )
    if scores.followed is not None:
        yield (
            f"the noise is correlated over more rounds than the {scores.followed} that scores are "
            "whitened with, so ε may be up to some 7% too small."
        )
    if answer.proof is not None:
        bound = BOUNDS[answer.proof]
        yield (
            f"'at least' is by {answer.proof!r}, fixed by the number of canaries and δ alone; it "
            f"assumes {bound.assumption} ({bound.theorem})."
        )


def _p_value_and_power(test: auditing.LadderTest, alternative: str) -> str:
    return (
        f"p = {test.p_value:.2g}. If {alternative}, a run of this load would show it at level 1% "
        f"in {test.power:.0%} of cases."
    )


def _knowledge(summary: Summary) -> Iterator[str]:
    """The adjacency and assumptions of theory, and what the adversaries know."""
    record = summary.record
    unit = summary.unit
    every_round = summary.answers[1].analytical
    yield (
        f"Theory is for {every_round.adjacency} adjacency, and assumes: {every_round.assumption}. "
        f"The unit of privacy is one {unit}."
    )
    for answer in summary.answers_with_known_rounds:
        epsilon, ends, proved, theory = answer_cells(answer)
        yield (
            f"Another question: an adversary who sees {SEES[answer.adversary.sees]} and knows the "
            f"{unit}'s {rounds_of(answer, summary)}: ε = {epsilon} ({ends}), at least {proved}, "
            f"theory allows {theory}."
        )
    yield (
        "Both adversaries know the first model, the server's optimizer and the directions of all "
        f"other canaries, but not the update of any other {unit}. The server, or whoever else "
        "trains, is neither: it is trusted, and sees more, such as updates without noise."
    )
    if record is not None and record.design.also_known:
        yield f"Who sees every round's model also knows {record.design.also_known}."


def _clients(summary: Summary) -> Iterator[str]:
    """The clients' participations, and ε of the worst-case and of the heaviest client."""
    if summary.record is None:
        return
    try:
        leakage = client_leakage(summary)
    except ValueError:
        yield "The record does not say which client took part in which round."
        return
    counts = leakage.participations
    low, median, high = np.quantile(counts, (0, 0.5, 1)).tolist()
    rounds = f"{low:g} to {high:g} rounds, median {median:g}"
    if low == high:
        rounds = f"{low:g} rounds each"
    yield (
        f"{counted(len(counts), 'client')} took part in {rounds}. Their ε differ by the number of "
        "their rounds, and by how much the noise and other clients hide them in these."
    )
    measured = [answer for answer in summary.answers if answer.fit is not None]
    for answer in measured:
        epsilons = leakage.epsilon[answer.adversary.sees]
        if np.isfinite(epsilons).any():
            worst = int(np.nanargmax(epsilons))
            yield (
                f"The worst-case client took part {how_often(counts[worst])}; against an "
                "adversary who knows its rounds, ε is "
                f"{_of_client(summary, leakage, worst, answer)}."
            )
    heaviest = int(np.argmax(leakage.weights))
    if leakage.weights[heaviest] >= _MIN_HEAVY:
        epsilons_in_words = [
            _of_client(summary, leakage, heaviest, answer)
            for answer in measured
        ]
        yield (
            f"The heaviest client has {leakage.weights[heaviest]:.3g} times the median weight; "
            f"its ε is {', and '.join(epsilons_in_words) or 'not measured'}. Canaries have the "
            "median weight, so nothing is proved of it."
        )
    yield "fl-epe report RUN_DIR --clients writes ε of each client; that is personal data."


def _of_client(
    summary: Summary,
    leakage: ClientLeakage,
    index: int,
    answer: auditing.Answer,
) -> str:
    """ε of a client by the canaries' κ, its interval, and what theory allows, in words.

    Args:
        summary: the summary of the run.
        leakage: the leakage of its clients.
        index: the index of the client in ``leakage``.
        answer: an answer with a fit.
    """
    record = summary.record
    fit = answer.fit
    view = answer.view
    assert record is not None and fit is not None and view is not None  # noqa: S101, PT018
    shares = record.clients.weights_by_round(leakage.ids[index : index + 1])
    client = auditing.AuditedClient(
        float(leakage.participations[index]), shares
    )
    limit = auditing.analytical(record.mechanism, client, summary.delta).epsilon
    theory = "no theory is known"
    if limit is not None:
        theory = f"theory allows {number(limit)}"
    scales = np.maximum([fit.scale, fit.low, fit.high], 0.0)
    epsilons = epsilon_of_shift(
        scales * view.expected_scores.of(shares), summary.delta
    )
    epsilon, low, high = map(number, epsilons.tolist())
    return f"{epsilon} ({low} – {high}; {theory}) from {what_is_seen(answer, record)}"


def _paper(summary: Summary) -> Iterator[str]:
    """The estimates of Andrew et al. (2024)."""
    record = summary.record
    if record is None:
        return
    counts = record.presence.sum(axis=0)
    for statistic, name in _PAPER_STATISTICS.items():
        try:
            estimate = auditing.epsilon_from_record(
                record,
                summary.delta,
                statistic=statistic,
                variance="fitted",
                confidence=CONFIDENCE,
            )
        except ValueError as error:
            yield f"The paper's {name}: not measured, as {error}."
        else:
            yield (
                f"The paper's {name}: ε = {number(estimate.epsilon)} ({interval(estimate)}). It "
                "need not agree with the table: it is of a mean canary, which took part "
                f"{how_often(counts.mean())}, and compares Gaussians whose widths are fitted. "
                "Canaries that took part more and less often widen theirs, and so raise ε; the "
                "table's fit knows how often each took part."
            )


def _events(summary: Summary) -> Iterator[str]:
    """The size of the run, its end, the audit's costs, the model's metrics, and faults."""
    record = summary.record
    if record is not None:
        yield (
            f"{counted(record.rounds, 'round')}, {record.dim:,} parameters, "
            f"{record.unobserved.count} canaries that took no part."
        )
        stop = record.findings.stopped
        if stop is not None:
            yield (
                f"The run ended after round {stop.after}; its rule watched ε = "
                f"{number(stop.estimate.epsilon)} ({interval(stop.estimate)}, which holds at "
                "every round at once) for an adversary who sees every round's model."
            )
        provenance = record.provenance
        if provenance.seconds is not None:
            yield (
                f"The audit took {provenance.seconds:.2g} s a round, beside the strategy's own "
                f"work, and {provenance.canary_bytes / 1e6:.2g} MB of memory for a round's "
                "canaries."
            )
    yield from (f"{line}." for line in summary.performance())
    yield from summary.plan
    meanings = {str(kind): kind.meaning for kind in auditing.FaultKind}
    for kind, count in summary.faults_by_kind():
        yield f"{count} × {kind}. {meanings.get(kind, '')}".strip()
    yield from summary.faults


_QUESTIONS: dict[str, Callable[[Summary], Iterator[str]]] = {
    "Can I trust it?": _trust,
    "Who knows what?": _knowledge,
    "Which clients are worst off?": _clients,
    "What do the statistics of Andrew et al. (2024) say?": _paper,
    "What happened?": _events,
}
