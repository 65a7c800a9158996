"""What stands at the top of a report: the finding, whether the run was measured, and its faults."""

import math
import shlex

from fl_epe.auditing import EpsilonEstimate, FaultKind
from fl_epe.reporting.numbers import number
from fl_epe.reporting.summary_types import RunSummary, StatisticSummary, Unmeasured

NOT_MEASURED = "not measured"
"""What stands in place of a number."""

FIRST_FAULTS = 5
"""How many faults stand at the top of a report."""


def status_line(summary: RunSummary) -> str | None:
    """What stands at the top, in red, if the run diverged or was not measured; else ``None``."""
    if summary.status == "ok":
        return None
    why = sentence("; ".join(summary.reasons))
    if summary.status == "not measured":
        return f"Not measured: {why}"
    if summary.status == "faulty":
        return f"Faulty: {why} ε is not that of the mechanism whose privacy is accounted for."
    if summary.status == "doubtful":
        return f"Doubtful: {why}"
    return f"Diverged: {why} No result below is that of a model that learned."


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


def participation_warning(summary: RunSummary) -> str | None:
    """That ε is of a client who takes part as rarely as canaries do."""
    found = participation_mismatch(summary)
    if found is None or not measured_parts(summary):
        return None
    often = f"participations={found[1]} of CanaryAudit, or canary_participations of RunConfig."
    again = "fewer of them, with:" if run_again(summary) else often
    return (
        f"This ε is of a client who takes part in {found[0]}, as the canaries did. Real clients "
        f"took part in about {found[1]} rounds each: theirs is larger. To measure theirs, run "
        f"again with canaries that take part as often: {again}"
    )


_OTHERWISE = ("--seed", "--output", "--canary-participations", "--num-canaries")
_FEW_CANARIES = 20


def run_again(summary: RunSummary) -> str | None:
    """The command that measures clients who take part more often than the run's canaries.

    ``None`` where that is not so, or where `fl-epe run` did not make the record. The words may be a
    stranger's, so each is quoted.
    """
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


def finding(summary: RunSummary) -> str:
    """The result in one sentence, for non-experts."""
    final, every = summary.headlines
    estimates: list[EpsilonEstimate] = []
    seen: list[str] = []
    for part, sees in ((final, "only the final model"), (every, "every round's model")):
        if isinstance(part, Unmeasured):
            continue
        who = "and one" if seen else "An adversary"
        what = "" if seen else f" can tell whether one {summary.unit} took part"
        estimates.append(part.estimate)
        seen.append(f"{who} who sees {sees}{what} with ε ≈ {number(part.estimate.epsilon)}")
    if not seen:
        return (
            "No ε was measured. That is not ε = 0: nothing is known about how much this run gives "
            "away."
        )
    limit = summary.analytical.epsilon
    if limit is None:
        known = "no theorem known to us limits it"
    elif math.isinf(limit):
        known = "without noise no theorem limits it"
    else:
        known = f"the upper bound by theory, as assumed below, is {number(limit)}"
        if any(estimate.low <= limit < estimate.epsilon for estimate in estimates):
            known += " (an estimate may lie above it by chance)"
    return f"{', '.join(seen)}. At ε = 0 one can only guess blindly; {known}."
