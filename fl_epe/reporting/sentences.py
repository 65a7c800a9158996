"""What a report says first, for the terminal and for the page: two sentences, a table, warnings.

How exposed a client is goes by how often a guess at whether it took part can be right, if it is as
likely as not beforehand: `guess_limit` has the formula. Where "little" and "a lot" begin is ours.

Examples:
    >>> round(guess_limit(1.0, 0.0), 3), guess_limit(0.0, 0.0)
    (0.731, 0.5)
"""

import math
import textwrap

import numpy as np

from fl_epe.auditing import Answer, EpsilonEstimate
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.checks import finite
from fl_epe.reporting.charts import answer_cells, seen
from fl_epe.reporting.reliability import what_is_seen
from fl_epe.reporting.summary import SMALL_DELTA, Summary
from fl_epe.wording import counted, number

LITTLE, SOME = 0.75, 0.95
"""Guesses that are right at most so often count as "little" and as "some"; above, as "a lot"."""


def size_of_updates(summary: Summary) -> str:
    """How large the canaries' updates are, in words."""
    record = summary.record
    clips = record is not None and np.isfinite(record.mechanism.clip_norms).any()
    return "as large as clipping allows" if clips else "of a client's size"


def scope(summary: Summary) -> str:
    """What the answer does and does not say about real clients' data, without its full stop."""
    views = [one.view for one in summary.answers if one.view is not None]
    more = ""
    if not all(view.noise_prevails() for view in views):
        more = (
            "A client whose update avoids the directions of all others (a rare word's) is hidden "
            "by the noise alone, and leaks more, up to what theory allows. "
        )
    return (
        f"Measured are random updates, {size_of_updates(summary)}, known to the adversary. Clients "
        "whose updates are smaller, or not to be guessed, leak less; how much less is not "
        f"measured. {more}ε is of all that one {summary.unit} contributes together: what leaks "
        "about one person or record in it is not measured. It tells what clipping, noise and "
        "schedule let through, not whether this training data is easy to attack"
    )


def about_run(summary: Summary) -> str:
    """Which run it is: what was trained, for how many, how long, when and how well."""
    record, unit = summary.record, summary.unit
    facts = [f"Task: {summary.task or 'not named'}"]
    if record is not None:
        if record.design.num_clients is not None:
            each = "" if unit == "client" else f", each one {unit}"
            facts.append(f"{counted(record.design.num_clients, 'client')}{each}")
        facts.append(counted(record.rounds, "round"))
        ended = record.provenance.ended
        facts.append(
            f"ended {ended[:16].replace('T', ' ')} UTC"
            if ended
            else "date not recorded"
        )
    facts += [
        f"{name} on held-out data {value}" for name, value in summary.held_out()[:1]
    ]
    return " · ".join(facts)


CAVEAT = "Stronger attacks may find more"
"""What has to stand with every ε that was measured, as it is that of one attack."""

ALWAYS = "practically always"
"""How often a guess is right that is never wrong, but for one in a million."""

_INSTEAD = {
    "zero-out": "zeros in the same run (zero-out adjacency)",
    "add-or-remove": "the same run without it (add-or-remove adjacency)",
}

_SURE = 1 - 1e-6  # of a guess, from which on more digits say nothing
_LONGEST = 230  # letters of a warning in a terminal
_LONGEST_FAULT = 160  # and of a fault

_ADVICE = {
    "diverged": "Fix the training, and measure again before anything is published.",
    "not-measured": "Do not take the run for private: fix what is named, and run again.",
    "steps": "Fix the steps, and measure again before the model is published.",
    "exceeds-theory": "Look for the defect in clipping, noise or sampling before the model is "
    "published.",
    "above-theory": "Measure again with another seed before the model is published.",
    "contradicted": "Rely on the least ε that is proved, not on the estimate.",
    "doubts": "Find the reason before you rely on these numbers.",
    "size": "Rely on theory; a model of this size has too few directions to measure in.",
    "lost": "Find out why clients do not answer, and measure again.",
    "load": "Measure again with fewer canaries, or with more clients.",
    "learning": "Train until the model learns, and measure again.",
}
ADVISE = "fl-epe advise noise"
_DECIDES = "whoever answers for the data decides"
_RELY = (
    "Rely on the least ε that is proved, and on no estimate, until the reason is found."
)


def guess_limit(epsilon: float, delta: float) -> float:
    """How often a guess is right at most under (ε, δ)-DP, if both answers are equally likely.

    ``(e^ε + δ) / (e^ε + 1)``: no test of an (ε, δ)-DP mechanism has false alarms and misses that
    sum to less than ``2(1 − δ)/(1 + e^ε)``.
    """
    return 1 - (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))


def share(limit: float) -> str:
    """How often, in words, with as many digits as tell it from certainty."""
    if limit > _SURE:
        return ALWAYS
    digits = max(0, math.ceil(-math.log10(1 - limit)) - 2)
    percent = math.ceil(100 * limit * 10**digits - 1e-9) / 10**digits
    return f"in at most {percent:.{digits}f}% of cases"


def first_sentence(summary: Summary) -> str:
    """How exposed a client is, to whom; the most important warning stands before it.

    Wherever an ε was measured, `CAVEAT` stands behind it.
    """
    status = summary.status
    told = exposure(summary)
    caveat = f" {_caveat(summary)}." if told else ""
    if status == "ok":
        return f"{told[:1].upper()}{told[1:]}.{caveat}"
    text = textwrap.shorten(summary.warnings[0].text, _LONGEST, placeholder=" …")
    of_one = f"of one {summary.full_unit}"
    if status == "diverged":
        told = f"the numbers below, {of_one}, are not those of a model that learned"
    elif status == "faulty" and summary.warnings[0].code == "steps":
        told = f"ε {of_one} is not that of the mechanism whose privacy is accounted for"
    elif not told:
        told = f"it is not known how much this run leaks about one {summary.full_unit}"
    return f"{status.capitalize()}, as {text}: {told}.{caveat}"


def _caveat(summary: Summary) -> str:
    """`CAVEAT`, and what theory allows, unless the run is known to break its assumptions."""
    limit = finite(summary.answers[1].analytical.epsilon)
    if summary.status == "faulty" or limit is None:
        return CAVEAT
    return f"{CAVEAT}: theory allows {number(limit)} if implemented as claimed"


def exposure(summary: Summary) -> str:
    """How often this attack is right, from what it sees; empty if nothing was measured."""
    found = list[str]()
    for one in summary.answers:
        if one.estimate is None:
            continue
        often = _often(one, summary.delta)
        source = what_is_seen(one, summary.record)
        if not one.adversary.sees_final and summary.unit != "example":
            source += f", which another {summary.unit} sees"
        blind = "" if found or ALWAYS in often else "; blind guess: 50%"
        numbers = (
            f"ε ≈ {number(one.estimate.epsilon)}{_up_to(one, one.estimate)}{blind}"
        )
        found.append(f"{often} from {source} ({numbers})")
    if not found:
        return ""
    return (
        f"whether one {summary.full_unit} took part, this audit's attack guesses right "
        f"{' and '.join(found)}"
    )


def _often(one: Answer, delta: float) -> str:
    """How often a guess is right; where the interval is too wide to say, that."""
    right = share(guess_limit(_most(one), delta))
    low = 0.0 if one.estimate is None else one.estimate.low
    wide = right == ALWAYS and guess_limit(low, delta) < LITTLE
    return f"between a blind guess and {right}" if wide else right


def _up_to(one: Answer, estimate: EpsilonEstimate) -> str:
    most = _most(one)
    limit = "theory ≤" if most < estimate.high else "up to"
    return f", {limit} {number(most)}" if most != estimate.epsilon else ""


def _most(one: Answer) -> float:
    """The largest ε that the interval allows, and theory unless the interval excludes it."""
    if one.estimate is None:
        return 0.0
    limit = one.analytical.epsilon
    if limit is None or one.estimate.low > limit:
        return one.estimate.high
    return min(one.estimate.high, limit)


def rounds_of(one: Answer, summary: Summary) -> str:
    """How often the client of an answer takes part, in words that follow "in"."""
    if not math.isfinite(one.participations):
        return "nobody knows how many rounds"
    rounds = counted(one.participations, "round")
    if not one.adversary.knows_rounds:
        return f"{rounds} on average, drawn in secret"
    ids = summary.record.clients.ids if summary.record else None
    return rounds if ids is None or not len(ids) else f"{rounds} (the median)"


def what_to_do(summary: Summary) -> str:
    """What to do, in one sentence; never that a model may be published."""
    if summary.status != "ok":
        return _ADVICE.get(summary.warnings[0].code, _RELY)
    levels = [
        sum(guess_limit(_most(one), summary.delta) > most for most in (LITTLE, SOME))
        for one in summary.answers
    ]
    told = _advice(summary, *levels)
    return f"{told[:1].upper()}{told[1:]}."


def _advice(summary: Summary, final: int, every: int) -> str:
    """By how much can be told: little, something or a lot."""
    z = summary.record.mechanism.noise_multiplier if summary.record else None
    noise = "raise the noise" if z else "add noise"
    how = "" if summary.unit == "example" else f" ({ADVISE})"
    if final == 2:
        return (
            f"before the model is published, {noise}{how} or let each {summary.unit} take part "
            "less often, and train again"
        )
    if every > final:
        return (
            f"keep the rounds' models secret, as they leak more than the final one; {noise} if "
            f"that one leaks too much, which {_DECIDES}"
        )
    if final == 1:
        return f"{noise} if that is too much, which {_DECIDES}"
    return f"little was found; whether it is little enough, {_DECIDES}"


def headings(summary: Summary) -> tuple[str, ...]:
    """Of the table."""
    sure = f"{summary.confidence:.0%}"
    return (
        "adversary sees",
        "ε",
        f"{sure} interval",
        f"at least ({sure})",
        "theory allows",
    )


def table_rows(summary: Summary) -> list[tuple[str, ...]]:
    """The cells of the table, as text: a row for each adversary."""
    return [
        (seen(one.adversary.sees, summary.record), *marked_cells(one))
        for one in summary.answers
    ]


def marked_cells(one: Answer) -> tuple[str, str, str, str]:
    """ε, its interval, what leaks at least and what theory allows, marked as in `table_note`."""
    epsilon, ends, least, theory = answer_cells(one)
    if finite(one.analytical.epsilon) is not None:
        theory = f"≤ {theory}" + "*" * one.adversary.sees_final
    return epsilon + "†" * one.extrapolated, ends, least, theory


def table_title(summary: Summary) -> str:
    """Above the table."""
    return f"How much leaks about one {summary.unit}: ε at δ = {summary.delta:.2g}"


def table_note(summary: Summary) -> str:
    """Whose ε the table has, and what its marks mean."""
    one = summary.answers[1]
    if not math.isfinite(one.participations):
        return ""
    knows = " and rounds" if one.adversary.knows_rounds else ", not its rounds"
    part = "" if summary.unit in ("example", "record") else " (not one record's)"
    text = (
        f"ε compares one {summary.unit}'s random updates{part} in {rounds_of(one, summary)}, "
        f"{size_of_updates(summary)}, with {_INSTEAD[one.analytical.adjacency]}. The adversary "
        f"knows its updates{knows}."
    )
    found = [(a.estimate, a.analytical.epsilon or math.inf) for a in summary.answers]
    if any(
        estimate is not None and estimate.epsilon > limit for estimate, limit in found
    ):
        text += " Estimates may exceed theory by chance."
    unproved = [one.estimate for one in summary.answers if not one.proved]
    if any(
        estimate is not None and estimate.low == 0 < estimate.epsilon
        for estimate in unproved
    ):
        text += " An interval from 0 shows neither a leak nor its absence."
    if marked_cells(summary.answers[0])[3].endswith("*"):
        text += " * As every round's."
    if (
        any(answer.extrapolated for answer in summary.answers)
        and summary.record is not None
    ):
        most = int(summary.record.presence.sum(axis=0).max())
        often = counted(most, "round")
        text += f" † Extrapolated from canaries (synthetic clients) in at most {often}."
    if summary.at_small_delta and any(estimate for estimate, _ in found):
        final, every = map(answer_cells, summary.at_small_delta)
        text += (
            f" At δ = {SMALL_DELTA:.0e}, usual in larger runs: ε ≈ {final[0]} and "
            f"{every[0]} (theory: {every[3]})."
        )
    return text


def more_warnings(summary: Summary) -> list[str]:
    """The warnings that the first sentence does not have, as sentences."""
    rest = summary.warnings if summary.status == "ok" else summary.warnings[1:]
    return [f"{one.text[:1].upper()}{one.text[1:]}." for one in rest]


def fault_lines(summary: Summary) -> list[str]:
    """How many faults of each kind there were, and the first one; none if nothing went wrong."""
    counts = {kind: count for kind, count in summary.fault_counts.items() if count}
    if not counts and not summary.faults:
        return []
    total = sum(counts.values()) or len(summary.faults)
    kinds = sorted(counts, key=lambda kind: (-counts[kind], kind))
    told = ", ".join(f"{counts[kind]} {kind}" for kind in kinds[:3])
    line = f"{counted(total, 'fault')} during the run{f': {told}' * bool(told)}."
    if not summary.faults:
        return [line]
    first = textwrap.shorten(summary.faults[0], _LONGEST_FAULT, placeholder=" …")
    return [line, f"The first fault: {first}"]


def meaning(summary: Summary) -> list[str]:
    """What an ε means for a guess, and what kind of number each is, in sentences."""
    scale = [
        f"{share(guess_limit(epsilon, summary.delta))} at ε = {epsilon}"
        for epsilon in (1, 3)
    ]
    assumes = ""
    if (proof := summary.answers[1].proof) is not None:
        assumes = f"; it assumes {BOUNDS[proof].assumption} ({BOUNDS[proof].theorem})"
    return [
        f"Whoever guesses whether one {summary.unit} took part, with yes as likely as no "
        f"beforehand, is right {' and '.join(scale)}; 50% is a blind guess. Which ε is small "
        "enough is for whoever answers for the data to decide.",
        "ε is an estimate of what this attack achieves. A stronger one may achieve more: up to "
        "what theory allows, if clipping and noise are implemented as claimed. An estimate is "
        "above that by chance, or because they are not. ε is at least what stands under "
        f'"at least", with {summary.confidence:.0%} confidence{assumes}. δ is the small '
        "probability with which ε need not hold.",
    ]
