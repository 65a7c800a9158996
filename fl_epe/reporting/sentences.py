"""The beginning of a report, in the terminal and on the page: two sentences, a table, warnings.

How exposed a client is depends on how often an adversary can guess correctly whether the client
took part, if both answers are equally likely beforehand: `guess_limit` has the formula. The
limits of "little" and "a lot" are a choice of this package.

Examples:
    >>> round(guess_limit(1.0, 0.0), 3), guess_limit(0.0, 0.0)
    (0.731, 0.5)
"""

import math
import textwrap
from collections.abc import Iterator

import numpy as np

from fl_epe.auditing import Answer
from fl_epe.auditing.bounds import BOUNDS
from fl_epe.checks import finite
from fl_epe.reporting.charts import answer_cells, view_name
from fl_epe.reporting.reliability import after_first_sentence, what_is_seen
from fl_epe.reporting.summary import CONFIDENCE, SMALL_DELTA, Summary
from fl_epe.wording import counted, number, sentence

LITTLE = 0.75
"""Up to this `guess_limit`, the leakage counts as "little"."""

SOME = 0.95
"""Up to this `guess_limit`, the leakage counts as "some"; above, as "a lot"."""

CAVEAT = "Stronger attacks may find more"
"""A warning beside every measured ε, which is that of one attack."""

ADVISE = "fl-epe advise noise"
"""The command that finds the noise for a target ε."""

HEADINGS = (
    "adversary sees",
    "ε",
    f"{CONFIDENCE:.0%} interval",
    f"at least ({CONFIDENCE:.0%})",
    "theory allows",
)
"""The headings of the table."""

ALWAYS = "practically always"
"""How often a guess is right, in words, if at most one in a million is wrong."""

# A larger `guess_limit` is `ALWAYS`.
_CERTAIN = 1 - 1e-6

# The rounding error of a percentage that has few digits already.
_ROUNDING = 1e-9

# The largest ε whose exponential does not overflow.
_MAX_EPSILON = 700.0

# The largest number of letters of a warning, and of a fault, in a terminal.
_MAX_WARNING = 230
_MAX_FAULT = 160

# The run with which a client's run is compared, for each adjacency.
_COMPARED_RUNS = {
    "zero-out": "zeros in the same run (zero-out adjacency)",
    "add-or-remove": "the same run without it (add-or-remove adjacency)",
}

# What to do about the most important warning, by its code.
_ADVICE = {
    "diverged": "Fix the training, and measure again before anything is published.",
    "not-measured": "Do not take the run for private: fix the problem above, and run again.",
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
_OTHER_ADVICE = "Rely on the least ε that is proved, and on no estimate, until the reason is found."


def guess_limit(epsilon: float, delta: float) -> float:
    """Largest probability of a correct guess under (ε, δ)-DP, with equally likely answers.

    ``(e^ε + δ) / (e^ε + 1)``: no test of an (ε, δ)-DP mechanism has false alarms and misses
    that sum to less than ``2(1 − δ)/(1 + e^ε)``.
    """
    return 1 - (1 - delta) / (1 + math.exp(min(epsilon, _MAX_EPSILON)))


def limit_in_words(limit: float) -> str:
    """A `guess_limit` in words, with enough digits to distinguish it from certainty."""
    if limit > _CERTAIN:
        return ALWAYS
    # As many decimals as distinguish the percentage from 100%.
    digits = max(0, math.ceil(-math.log10(1 - limit)) - 2)
    percent = math.ceil(100 * limit * 10**digits - _ROUNDING) / 10**digits
    return f"in at most {percent:.{digits}f}% of cases"


def first_sentence(summary: Summary) -> str:
    """How exposed a client is and to whom, and `CAVEAT` if an ε was measured.

    Unless the status is "ok", the sentence begins with the most important warning.
    """
    status = summary.status
    clause = exposure(summary)
    caveat = ""
    if clause:
        caveat = f" {CAVEAT}"
        limit = finite(summary.answers[1].analytical.epsilon)
        if limit is not None and status != "faulty":
            caveat += (
                f": theory allows {number(limit)} if implemented as claimed"
            )
        caveat += "."
    if status == "ok":
        return sentence(clause) + caveat
    warning = summary.warnings[0]
    text = textwrap.shorten(warning.text, _MAX_WARNING, placeholder=" …")
    unit = summary.full_unit
    if status == "diverged":
        clause = f"the numbers below, of one {unit}, are not those of a model that learned"
    elif warning.code == "steps":
        clause = f"ε of one {unit} is not that of the mechanism whose privacy is accounted for"
    elif not clause:
        clause = f"it is not known how much this run leaks about one {unit}"
    return f"{status.capitalize()}, as {text}: {clause}.{caveat}"


def exposure(summary: Summary) -> str:
    """How often this attack is right, for each adversary; empty if nothing was measured."""
    clauses = list[str]()
    for answer in summary.answers:
        estimate = answer.estimate
        if estimate is None:
            continue
        upper = _upper_end(answer)
        how_often_right = limit_in_words(guess_limit(upper, summary.delta))
        if (
            how_often_right == ALWAYS
            and guess_limit(estimate.low, summary.delta) < LITTLE
        ):
            # The interval is too wide for a narrower statement.
            how_often_right = f"between a blind guess and {how_often_right}"
        source = what_is_seen(answer, summary.record)
        if not answer.adversary.sees_final and summary.unit != "example":
            source += f", which another {summary.unit} sees"
        numbers = f"ε ≈ {number(estimate.epsilon)}"
        if upper != estimate.epsilon:
            limit = "theory ≤" if upper < estimate.high else "up to"
            numbers += f", {limit} {number(upper)}"
        if not clauses and ALWAYS not in how_often_right:
            numbers += "; blind guess: 50%"
        clauses.append(f"{how_often_right} from {source} ({numbers})")
    if not clauses:
        return ""
    return (
        f"whether one {summary.full_unit} took part, this audit's attack guesses right "
        f"{' and '.join(clauses)}"
    )


def _upper_end(answer: Answer) -> float:
    """The upper end of the interval, or theory's ε if that is smaller but not excluded."""
    estimate = answer.estimate
    if estimate is None:
        return 0.0
    limit = answer.analytical.epsilon
    if limit is None or estimate.low > limit:
        return estimate.high
    return min(estimate.high, limit)


def rounds_of(answer: Answer, summary: Summary) -> str:
    """How often the client of an answer takes part, in words that follow "in"."""
    if not math.isfinite(answer.participations):
        return "an unknown number of rounds"
    rounds = counted(answer.participations, "round")
    if not answer.adversary.knows_rounds:
        return f"{rounds} on average, drawn in secret"
    ids = summary.record.clients.ids if summary.record else None
    if ids is None or not len(ids):
        return rounds
    return f"{rounds} (the median)"


def what_to_do(summary: Summary) -> str:
    """Advice in one sentence, which is never that a model may be published."""
    if summary.status != "ok":
        return _ADVICE.get(summary.warnings[0].code, _OTHER_ADVICE)
    final, every = (
        guess_limit(_upper_end(answer), summary.delta)
        for answer in summary.answers
    )
    has_noise = summary.record and summary.record.mechanism.noise_multiplier
    noise = "raise the noise" if has_noise else "add noise"
    if final > SOME:
        how = "" if summary.unit == "example" else f" ({ADVISE})"
        return (
            f"Before the model is published, {noise}{how} or let each {summary.unit} take part "
            "less often, and train again."
        )
    if every > SOME or every > LITTLE >= final:
        return (
            f"Keep the rounds' models secret, as they leak more than the final one; {noise} if "
            "that one leaks too much, which the data owner decides."
        )
    if final > LITTLE:
        return sentence(
            f"{noise} if that is too much, which the data owner decides"
        )
    return (
        "Little was found; whether it is little enough, the data owner decides."
    )


def table_rows(summary: Summary) -> list[tuple[str, ...]]:
    """The cells of the table, as text: a row for each adversary."""
    return [
        (
            view_name(answer.adversary.sees, summary.record),
            *marked_cells(answer),
        )
        for answer in summary.answers
    ]


def marked_cells(answer: Answer) -> tuple[str, str, str, str]:
    """ε, its interval, lower bound and theory, marked as in `table_note`."""
    epsilon, ends, proved, theory = answer_cells(answer)
    if answer.extrapolated:
        epsilon += "†"
    if finite(answer.analytical.epsilon) is not None:
        theory = f"≤ {theory}"
        if answer.adversary.sees_final:
            theory += "*"
    return epsilon, ends, proved, theory


def table_title(summary: Summary) -> str:
    """The title above the table."""
    return (
        f"How much leaks about one {summary.unit}: ε at δ = {summary.delta:.2g}"
    )


def table_note(summary: Summary) -> str:
    """The client and adversary of the ε in the table, and the meaning of its marks."""
    every_round = summary.answers[1]
    if not math.isfinite(every_round.participations):
        return ""
    contrast = ""
    if summary.unit not in ("example", "record"):
        contrast = " (not one record's)"
    if every_round.adversary.knows_rounds:
        knows = " and rounds"
    else:
        knows = ", not its rounds"
    compared_run = _COMPARED_RUNS[every_round.analytical.adjacency]
    text = (
        f"ε compares one {summary.unit}'s random updates{contrast} in "
        f"{rounds_of(every_round, summary)}, {size_of_updates(summary)}, with {compared_run}. The "
        f"adversary knows its updates{knows}."
    )
    return " ".join([text, *_remarks(summary)])


def _remarks(summary: Summary) -> Iterator[str]:
    """The meaning of single numbers and marks of the table, in sentences."""
    answers = summary.answers
    measured = [
        (answer, answer.estimate)
        for answer in answers
        if answer.estimate is not None
    ]
    if any(
        estimate.epsilon > (answer.analytical.epsilon or math.inf)
        for answer, estimate in measured
    ):
        yield "Estimates may exceed theory by chance."
    if any(
        not answer.proved and estimate.low == 0 < estimate.epsilon
        for answer, estimate in measured
    ):
        yield "An interval from 0 shows neither a leak nor its absence."
    *_, final_model_theory = marked_cells(answers[0])
    if final_model_theory.endswith("*"):
        yield "* As every round's."
    is_extrapolated = any(answer.extrapolated for answer in answers)
    if is_extrapolated and summary.record is not None:
        largest_count = int(summary.record.presence.sum(axis=0).max())
        yield (
            "† Extrapolated from canaries (synthetic clients) in at most "
            f"{counted(largest_count, 'round')}."
        )
    if summary.at_small_delta and measured:
        final, every_round = map(answer_cells, summary.at_small_delta)
        final_epsilon, *_ = final
        every_round_epsilon, *_, theory = every_round
        yield (
            f"At δ = {SMALL_DELTA:.0e}, usual in larger runs: ε ≈ {final_epsilon} and "
            f"{every_round_epsilon} (theory: {theory})."
        )


def more_warnings(summary: Summary) -> list[str]:
    """The warnings that the first sentence does not have, as sentences."""
    warnings = after_first_sentence(summary.warnings)
    return [sentence(warning.text) for warning in warnings]


def fault_lines(summary: Summary) -> list[str]:
    """The number of faults, the three most frequent kinds, and the first fault; empty if none."""
    kinds = summary.faults_by_kind()
    total = sum(count for _, count in kinds) or len(summary.faults)
    if not total:
        return []
    line = f"{counted(total, 'fault')} during the run"
    if kinds:
        line += ": " + ", ".join(f"{count} {kind}" for kind, count in kinds[:3])
    lines = [f"{line}."]
    if summary.faults:
        fault = textwrap.shorten(
            summary.faults[0], _MAX_FAULT, placeholder=" …"
        )
        lines.append(f"The first fault: {fault}")
    return lines


def size_of_updates(summary: Summary) -> str:
    """How large the canaries' updates are, in words."""
    record = summary.record
    if record is not None and np.isfinite(record.mechanism.clip_norms).any():
        return "as large as clipping allows"
    return "of a client's size"


def scope(summary: Summary) -> str:
    """What is measured about the data of clients and what is not, without the full stop."""
    views = [
        answer.view for answer in summary.answers if answer.view is not None
    ]
    rare = ""
    if not all(view.noise_prevails() for view in views):
        rare = (
            "A client whose update avoids the directions of all others (a rare word's) is hidden "
            "by the noise alone, and leaks more, up to what theory allows. "
        )
    return (
        f"Measured are random updates, {size_of_updates(summary)}, known to the adversary. Clients "
        "whose updates are smaller, or cannot be guessed, leak less; how much less is not "
        f"measured. {rare}ε is of all that one {summary.unit} contributes together: what leaks "
        "about one person or record in it is not measured. It tells what clipping, noise and "
        "schedule let through, not whether this training data is easy to attack"
    )


def about_run(summary: Summary) -> str:
    """The run: its task, number of clients, rounds, end, and metric on held-out data."""
    record = summary.record
    facts = [f"Task: {summary.task or 'not named'}"]
    if record is not None:
        if record.design.num_clients is not None:
            clients = counted(record.design.num_clients, "client")
            if summary.unit != "client":
                clients += f", each one {summary.unit}"
            facts.append(clients)
        facts.append(counted(record.rounds, "round"))
        ended = record.provenance.ended
        if ended:
            to_the_minute = ended[: len("2026-01-01T12:00")]
            facts.append(f"ended {to_the_minute.replace('T', ' ')} UTC")
        else:
            facts.append("date not recorded")
    for name, value in summary.held_out()[:1]:
        facts.append(f"{name} on held-out data {value}")
    return " · ".join(facts)


def meaning(summary: Summary) -> list[str]:
    """The meaning of ε for a guess, and of each kind of number, in sentences."""
    scale = [
        f"{limit_in_words(guess_limit(epsilon, summary.delta))} at ε = {epsilon}"
        for epsilon in (1, 3)
    ]
    assumes = ""
    proof = summary.answers[1].proof
    if proof is not None:
        assumes = (
            f"; it assumes {BOUNDS[proof].assumption} ({BOUNDS[proof].theorem})"
        )
    return [
        f"A guess whether one {summary.unit} took part, if yes and no are equally likely "
        f"beforehand, is right {' and '.join(scale)}; 50% is a blind guess. Which ε is small "
        "enough, the data owner decides.",
        "ε is an estimate of what this attack achieves. A stronger one may achieve more: up to "
        "what theory allows, if clipping and noise are implemented as claimed. An estimate "
        "exceeds theory by chance, or because they are not implemented as claimed. ε is at least "
        "the number under "
        f'"at least", with {CONFIDENCE:.0%} confidence{assumes}. δ is the small '
        "probability with which ε need not hold.",
    ]
