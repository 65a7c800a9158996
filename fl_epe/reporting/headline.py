"""The top of a report: what was found and what to do, whether the run was measured, its faults.

The classes below are ours, not a standard's: they go by how often a guess at whether one client
took part can be right, if it is as likely as not beforehand. `guess_limit` has the formula.

Examples:
    >>> round(guess_limit(1.0, 0.0), 3), guess_limit(0.0, 0.0)
    (0.731, 0.5)
"""

import dataclasses
import math
import shlex

from fl_epe.auditing import EpsilonEstimate, FaultKind
from fl_epe.reporting.numbers import number
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary, Unmeasured

# Guesses that are right at most so often count as "little" and as "some"; above, as "a lot".
LITTLE, SOME = 0.75, 0.95

_SEEN = "only the finished model", "every round's model"
_SURE = 1 - 1e-9  # of a guess, from which on more digits say nothing
_AMOUNTS = ("little", "something", "a lot")


def guess_limit(epsilon: float, delta: float) -> float:
    """How often a guess is right at most under (ε, δ)-DP, if both answers are equally likely.

    ``(e^ε + δ) / (e^ε + 1)``: no test of an (ε, δ)-DP mechanism has false alarms and misses that
    sum to less than ``2(1 − δ)/(1 + e^ε)``.
    """
    return 1 - (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))


def _amount(estimate: EpsilonEstimate, delta: float) -> int:
    """Place in `_AMOUNTS`, by the upper end of the interval: what cannot be excluded counts."""
    return sum(guess_limit(estimate.high, delta) > most for most in (LITTLE, SOME))


def _estimates(summary: RunSummary) -> tuple[EpsilonEstimate | None, EpsilonEstimate | None]:
    """Both headlines; of a run that its rule ended, what was watched stands for every round."""
    parts = summary.headlines
    final, every = (None if isinstance(part, Unmeasured) else part.estimate for part in parts)
    unknown = summary.every_round.known_rounds is not None  # what was watched knows the rounds
    if (found := summary.stopped) is not None and every is not None and not unknown:
        watched, low, high = (
            math.inf if found[name] is None else float(found[name])
            for name in ("epsilon", "low", "high")
        )
        every = dataclasses.replace(every, epsilon=watched, low=low, high=high)
    return final, every


def headline(summary: RunSummary) -> str:
    """What was found, how sure it is, against whom, and what to do."""
    final, every = _estimates(summary)
    unit = summary.unit
    if summary.status == "diverged":
        return (
            "The training went wrong, so the numbers below are not those of a model that learned: "
            "fix the training and measure again before anything is published."
        )
    if summary.status == "faulty":
        return (
            "The steps were not what the privacy accounting assumes, so the numbers below are not "
            "those of the mechanism that it is for: fix the problems above and measure again."
        )
    if final is None and every is None:
        return (
            f"Nothing was measured, so it is not known how much this run tells about one {unit}: "
            "do not take it for private, fix what is named above, and run again."
        )
    found, often = list[str](), participation_mismatch(summary)
    how_often = f" in {often[0]}" if often else ""
    for seen, estimate in zip(_SEEN, (final, every), strict=True):
        if estimate is not None:
            amount = _AMOUNTS[_amount(estimate, summary.delta)]
            sure = f" with {estimate.confidence:.0%} confidence"
            if summary.stopped is not None and seen == _SEEN[0]:
                sure = ", less sure than usual as the run was stopped on its scores"
            what = "" if found else f" about whether one {unit} took part{how_often}"
            found.append(
                f"somebody who has {seen} can tell {amount}{what} (ε about "
                f"{number(estimate.epsilon)}, {number(estimate.low)} to {number(estimate.high)}"
                f"{sure})"
            )
    told = "; ".join(found)
    told = f"{told[0].upper()}{told[1:]}; so {_advice(summary, final, every)}."
    if often is None:
        return told
    advised = final is not None and _amount(final, summary.delta) < 2  # just that, by `_advice`
    again = "" if advised else ", run again with canaries that take part as often"
    option = f": participations={often[1]} of CanaryAudit, or canary_participations of RunConfig."
    return (
        f"{told} But real {unit}s took part in about {often[1]} rounds each, and about them more "
        f"can be told. To measure that{again}{':' if run_again(summary) else option}"
    )


def _advice(
    summary: RunSummary, final: EpsilonEstimate | None, every: EpsilonEstimate | None
) -> str:
    amounts = [None if found is None else _amount(found, summary.delta) for found in (final, every)]
    noise = "raise the noise" if summary.noise_multiplier else "add noise"
    if amounts[0] is None:
        return "measure the finished model as well before it is published"
    if amounts[0] == 2:
        return (
            f"{noise}, or let each client take part less often, and measure again before the model "
            "is published"
        )
    # more can be told of clients than was measured
    if (often := participation_mismatch(summary)) is not None:
        return (
            f"measure again with canaries that take part in {often[1]} rounds, as clients do, "
            "before the model is published"
        )
    publish = "publish only the finished model"
    unsure = "" if amounts[0] == 0 else f", {noise} if even that is too much"
    if amounts[1] is None:
        return f"{publish}{unsure}, as the rounds were not measured"
    if amounts[1] > amounts[0]:
        keep = f"{publish} and keep those of the rounds to yourself{unsure}"
        return f"{keep}; {noise} if others see them" if not unsure else keep
    if amounts[0] == 1:
        return f"{noise} if that is too much for the data at hand"
    limit = summary.analytical.epsilon
    if limit is None or math.isinf(limit):
        return "by this measurement nothing has to change, but no theorem guarantees it: " + noise
    return (
        "by this measurement nothing has to change, though other attacks may find more, up to the "
        f"limit by theory of ε = {number(limit)}"
        + ", which holds for those who do not know the rounds"
        * (summary.analytical.rounds_known is False)
    )


def meaning(summary: RunSummary) -> list[str]:
    """What the ε of this run mean for a guess, a sentence or two for each."""
    unit, delta = summary.unit, summary.delta
    lines = [
        f"ε = {number(found.epsilon)} ({seen}): {_guess(found.epsilon, delta, unit)}"
        f"{_at_the_end(found, delta)}"
        for seen, found in zip(_SEEN, _estimates(summary), strict=True)
        if found is not None
    ]
    if not lines:
        return [f"Had ε been measured, ε = 1 would mean: {_guess(1.0, delta, unit)}"]
    lines.append(
        "All of this is what an attack achieved on canaries, synthetic clients who were trained "
        f"along and took part {_as_real_ones(summary)}. It is an estimate, and another attack may "
        f"achieve more. “Little” stands for limits of up to {LITTLE:.0%} right guesses, "
        f"“something” for up to {SOME:.0%}, “a lot” for more, by the upper end of the interval; "
        "where these lines are drawn is our choice, and delicate data may need lower ones."
    )
    return lines


def _as_real_ones(summary: RunSummary) -> str:
    if (often := participation_mismatch(summary)) is None:
        return "as real ones do"
    return f"in {often[0]} each, where real ones did so in about {often[1]}: ε of those is larger"


def _guess(epsilon: float, delta: float, unit: str) -> str:
    limit = guess_limit(epsilon, delta)
    if limit > _SURE:
        return f"a guess at whether one {unit} took part may be right practically always."
    odds = limit / (1 - limit)
    shown = number(odds) if odds < 1e4 else f"{float(f'{odds:.2g}'):,.0f}"
    return (
        f"whoever guesses whether one {unit} took part, with yes as likely as no beforehand, is "
        f"right in at most {_share(limit)} of cases, at odds of {shown} to 1 (50%, or 1 to 1, is a "
        f"blind guess; δ = {delta:.2g} is counted in)."
    )


def _at_the_end(found: EpsilonEstimate, delta: float) -> str:
    """The limit at the upper end of the interval, which the truth may well be."""
    limit = guess_limit(found.high, delta)
    most = "practically always" if limit > _SURE else f"in at most {_share(limit)} of cases"
    return f" If ε is at the upper end of its interval, {number(found.high)}, {most}."


def _share(limit: float) -> str:
    """A share in percent, with as many digits as tell it from certainty."""
    digits = max(1, math.ceil(-math.log10(1 - limit)) - 1)
    return f"{100 * limit:.{digits}f}".rstrip("0").rstrip(".") + "%"


NOT_MEASURED = "not measured"
"""What stands in place of a number."""

# How many faults stand at the top of a report.
FIRST_FAULTS = 5


def status_line(summary: RunSummary) -> str | None:
    """What stands at the top, in red, if the run diverged or was not measured; else ``None``."""
    if summary.status == "ok":
        return None
    why = sentence("; ".join(summary.reasons))
    meaning = {
        "faulty": " ε is not that of the mechanism whose privacy is accounted for.",
        "diverged": " No result below is that of a model that learned.",
    }.get(summary.status, "")
    return f"{summary.status.capitalize()}: {why}{meaning}"


def sentence(reason: str) -> str:
    """A reason with its full stop, unless it is a question."""
    return reason if reason.endswith(("?", "!")) else f"{reason}."


def fault_lines(summary: RunSummary) -> list[str]:
    """The first faults of a run; empty if nothing went wrong."""
    lines = list(summary.faults[:FIRST_FAULTS])
    if (more := len(summary.faults) - FIRST_FAULTS) > 0:
        lines.append(f"… and {more} more; report.json has all.")
    return lines


def fault_rows(summary: RunSummary) -> list[tuple[str, int, str]]:
    """Each kind of fault that happened: its name, how often, and what was done about it."""
    known = {str(kind): kind.meaning for kind in FaultKind}
    counts = sorted(summary.fault_counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [(kind, count, known.get(kind, "")) for kind, count in counts if count]


def measured_parts(summary: RunSummary) -> list[StatisticSummary]:
    """The results behind the table's rows, of those that were measured."""
    return [row.part for row in summary.rows() if isinstance(row.part, StatisticSummary)]


def unmeasured_notes(summary: RunSummary) -> list[str]:
    """Why rows of the table have no number, where the line at the top does not say it."""
    return [
        f"“{row.sees}, {row.name}” was not measured: {sentence(row.part.reason)}"
        for row in summary.rows()
        if isinstance(row.part, Unmeasured) and row.part.reason not in summary.reasons
    ]


_MORE_OFTEN = 1.2  # as often as canaries; below, ε of a real client hardly differs


def participation_mismatch(summary: RunSummary) -> tuple[str, str] | None:
    """How often canaries and real clients took part, where clients did so much more often.

    ``None`` where they took part alike, or where it is not known.
    """
    mine, theirs = summary.analytical.participations, summary.analytical.client_participations
    if not mine or theirs is None or theirs <= _MORE_OFTEN * mine:
        return None
    rounds = "one round" if mine == 1 else f"{mine:.3g} rounds"
    return rounds, f"{theirs:.0f}" if theirs >= 10 else f"{theirs:.2g}"


_OTHERWISE = ("--seed", "--output", "--canary-participations", "--num-canaries")
_FEW_CANARIES = 20


def run_again(summary: RunSummary) -> str | None:
    """The command that measures clients who take part more often than the run's canaries.

    ``None`` where that is not so, where nothing was measured of a sound run, or where `fl-epe run`
    did not make the record. The words may be a stranger's, so each is quoted.
    """
    if summary.status in ("diverged", "faulty") or not measured_parts(summary):
        return None
    try:
        words = shlex.split((summary.run.get("commands") or ("",))[0])
    except ValueError:
        return None
    words = [word for word in words if word != "--debug"]
    analytical, count = summary.analytical, summary.num_canaries
    if participation_mismatch(summary) is None or words[:2] != ["fl-epe", "run"] or count is None:
        return None
    kept = list[str]()
    for before, word in zip(("", *words), words, strict=False):
        if before not in _OTHERWISE and word.partition("=")[0] not in _OTHERWISE:
            kept.append(shlex.quote(word))
    share = (analytical.participations or 1.0) / (analytical.client_participations or 1.0)
    fewer = max(_FEW_CANARIES, round(count * share))
    more = f"--canary-participations as-clients --num-canaries {fewer}"
    return " ".join([*kept, more])
