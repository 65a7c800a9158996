"""The report of a federation of silos, or of one silo, for a terminal, a page and JSON.

The report begins with what theory allows, and then names for each adversary the silo with the
largest ε. Only silos with the same unit and the same δ are compared, and no ε is averaged.

Examples:
    >>> from fl_epe.auditing import SiloAnswer, SiloLine
    >>> line = SiloLine("public", epsilon=1.1, low=0.8, high=1.4, theory=3.0)
    >>> answer = SiloAnswer("north", "record", 1e-5, 0.95, 30, 200, (line,))
    >>> for sentence in silos_json([answer])["answer"]:
    ...     print(sentence)
    Theory: ε of one record at δ = 1e-05 is at most 3.00 (in north), if clipping, sampling and noise are as claimed.
    The public, who sees the last model, learns of one record at δ = 1e-05: in north, ε ≈ 1.10 (0.800 – 1.40).
"""  # noqa: E501 - a sentence

import dataclasses
import io
import math
import operator
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fl_epe.auditing import SEEN_OF_SILOS, SiloAdversary, SiloAnswer, SiloLine
from fl_epe.files import write_json, write_text
from fl_epe.reporting.numbers import JSON, as_json, finite_numbers
from fl_epe.reporting.pages import render_page
from fl_epe.reporting.tables import Terminal, plain_table
from fl_epe.wording import counted, number, sentence

SILO_SCHEMA = 1
"""Version of ``report.json``; it grows if a key changes its meaning, not if a key is added."""

WHO: dict[SiloAdversary, str] = {
    "server": "the server",
    "partner": "a partner",
    "outsider": "an outsider",
    "public": "the public",
}
"""The adversaries, in words."""

READING = (
    "Every step, by the accountant: what theory allows an adversary who sees every step of the"
    " silo's training. It holds for all that is made of the steps.",
    "Linear limit: ε by the claimed noise if gradients did not depend on the model. It is exact"
    " only there, and no upper bound.",
    "Measured are canaries with random gradients, which hardly change how training goes on. A real"
    " record may leak less or more.",
    "Stronger attacks may find more. A silo that lies about itself is not detected.",
    "A record is one row of the data: several rows that belong together leak more.",
)
"""How to read the numbers, in sentences."""

HEADINGS = ("seen by", "ε (interval)", "at least", "every step", "linear limit")
"""The headings of a silo's table."""

UNNAMED = "this silo"
"""The name of a silo without a name, in its own report."""

_NUMBERS = ("epsilon", "low", "high", "proved", "theory", "linear_limit")
# Characters that a metric's name cannot have.
_NOT_IN_NAMES = re.compile(r"[^\w.-]")


def silos_text(
    answers: Sequence[SiloAnswer], faults: Sequence[str] = ()
) -> str:
    """The report as plain text.

    Args:
        answers: the answers of silos with different names.
        faults: faults of the federation, in sentences without a full stop.
    """
    console = Terminal(
        file=io.StringIO(), width=80, color_system=None, highlight=False
    )
    report = silos_json(answers, faults)
    for text in (*report["answer"], *report["faults"]):
        console.print(text)
    for answer in answers:
        rows = [(line.adversary, *line_cells(line)) for line in answer.lines]
        console.print()
        console.print(plain_table(silo_title(answer), HEADINGS, rows=rows))
    for text in (*report["notes"], *READING):
        console.print(f"- {text}")
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def write_silos_report(
    answers: Sequence[SiloAnswer], faults: Sequence[str], directory: Path
) -> None:
    """Write ``report.json`` and ``report.html``.

    Args:
        answers: the answers of silos with different names.
        faults: faults of the federation, in sentences without a full stop.
        directory: where to write; created if it is missing.
    """
    report = silos_json(answers, faults)
    page = render_page(
        "silos.html.j2",
        report=report,
        answers=answers,
        title=silo_title,
        headings=HEADINGS,
        cells=line_cells,
        who=WHO,
        seen=SEEN_OF_SILOS,
    )
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "report.json", report)
    write_text(directory / "report.html", page)


def silos_json(
    answers: Sequence[SiloAnswer], faults: Sequence[str] = ()
) -> JSON:
    """The report as JSON values; ``None`` for a number that is infinite or unknown."""
    answers = [
        dataclasses.replace(answer, silo=answer.silo or UNNAMED)
        for answer in answers
    ]
    defects = [
        f"{answer.silo}: more leaks to {WHO[line.adversary]} than theory allows"
        for answer in answers
        for line in answer.lines
        if line.exceeds_theory
    ]
    defects += [
        f"{answer.silo}: {fault}"
        for answer in answers
        for fault in answer.faults
    ]
    lines = [line for answer in answers for line in answer.lines]
    status = "ok"
    if defects:
        status = "faulty"
    elif all(line.epsilon is None for line in lines):
        status = "not measured"
    elif faults or any(line.doubts for line in lines):
        status = "unreliable"
    return {
        "schema": SILO_SCHEMA,
        "status": status,
        "answer": list(_sentences(answers)),
        "faults": [f"{fault}." for fault in (*defects, *faults)],
        "notes": [f"{note}." for note in _notes(answers)],
        "silos": [_values(answer) for answer in answers],
        "reading": list(READING),
    }


def _notes(answers: Sequence[SiloAnswer]) -> Iterator[str]:
    """Why lines are not measured, doubts, and notes: each text once, with its silos.

    A text that applies only to some of a silo's adversaries also has their names.
    """
    # By the text, and the names of adversaries after the silos.
    silos_by_note: dict[tuple[str, str], list[str]] = {}
    for answer in answers:
        adversaries_by_text: dict[str, list[str]] = {}
        for line in answer.lines:
            reasons = (line.reason,) if line.reason else ()
            for text in (*reasons, *line.doubts):
                adversaries_by_text.setdefault(text, []).append(line.adversary)
        for text, adversaries in adversaries_by_text.items():
            names = ""
            if len(adversaries) < len(answer.lines):
                names = f" ({', '.join(adversaries)})"
            silos_by_note.setdefault((text, names), []).append(answer.silo)
        for text in answer.notes:
            silos_by_note.setdefault((text, ""), []).append(answer.silo)
    for (text, names), silos in silos_by_note.items():
        yield f"{', '.join(silos)}{names}: {text}"


def _values(answer: SiloAnswer) -> JSON:
    """An answer as JSON values, without what the report has elsewhere or must not have."""
    values: JSON = as_json(answer)
    # Faults and notes have keys of their own, and the number of records does not leave the silo.
    for name in ("faults", "notes", "records"):
        del values[name]
    for line_values, line in zip(values["lines"], answer.lines, strict=True):
        line_values |= finite_numbers(
            {name: getattr(line, name) for name in _NUMBERS}
        )
    return values


def _lines(
    answers: Sequence[SiloAnswer], adversary: SiloAdversary
) -> dict[str, SiloLine]:
    """The lines of one adversary, by the names of the silos."""
    return {
        answer.silo: line
        for answer in answers
        for line in answer.lines
        if line.adversary == adversary
    }


def _sentences(answers: Sequence[SiloAnswer]) -> Iterator[str]:
    """What theory allows for each unit and δ, and the largest ε of each adversary."""
    pairs = dict.fromkeys((answer.unit, answer.delta) for answer in answers)
    for unit, delta in pairs:
        comparable = [
            answer
            for answer in answers
            if answer.unit == unit and answer.delta == delta
        ]
        yield sentence(
            f"theory: ε of one {unit} at δ = {delta:.2g} {_allowed(comparable)}"
        )
        for adversary, view in SEEN_OF_SILOS.items():
            lines = _lines(comparable, adversary)
            if lines:
                yield sentence(
                    f"{WHO[adversary]}, who sees {view}, learns of one {unit} at δ = {delta:.2g}: "
                    f"{_largest(lines)}"
                )
    if not answers:
        yield "Not measured: no silo has answered."


def _allowed(answers: Sequence[SiloAnswer]) -> str:
    """The largest ε that theory allows in these silos, in words."""
    limits = {}
    unknown = []
    for answer in answers:
        theories = [
            line.theory for line in answer.lines if line.theory is not None
        ]
        if theories:
            limits[answer.silo] = max(theories)
        else:
            unknown.append(answer.silo)
    clauses = []
    if limits:
        silo, limit = max(limits.items(), key=operator.itemgetter(1))
        if limit < math.inf:
            clauses.append(
                f"is at most {number(limit)} (in {silo}), if clipping, sampling and noise are as "
                "claimed"
            )
        else:
            clauses.append(f"is not bounded in {silo}")
    if unknown:
        clauses.append(f"is not known in {', '.join(unknown)}")
    return "; ".join(clauses)


def _largest(lines: dict[str, SiloLine]) -> str:
    """The largest ε of the silos with these lines, in words."""
    clauses = []
    silo = max(lines, key=lambda name: lines[name].epsilon or 0.0)
    largest = lines[silo]
    if largest.epsilon is not None:
        epsilon, proved, _, _ = line_cells(largest)
        where = f"most in {silo}" if len(lines) > 1 else f"in {silo}"
        at_least = f", at least {proved}" if largest.proved else ""
        clauses.append(f"{where}, ε ≈ {epsilon}{at_least}")
    unmeasured = [name for name, line in lines.items() if line.epsilon is None]
    if unmeasured:
        clauses.append(f"not measured in {', '.join(unmeasured)}")
    return "; ".join(clauses)


def line_cells(line: SiloLine) -> tuple[str, str, str, str]:
    """ε with its interval, what is proved, theory and the linear limit, as text."""
    epsilon = "not measured"
    if line.epsilon is not None:
        epsilon = (
            f"{number(line.epsilon)} ({number(line.low)} – {number(line.high)})"
        )
    proved = number(line.proved) if line.proved else "–"
    theory = "none known" if line.theory is None else number(line.theory)
    limit = "–" if line.linear_limit is None else number(line.linear_limit)
    return epsilon, proved, theory, limit


def silo_title(answer: SiloAnswer) -> str:
    """The title of a silo's table: its name, unit, δ, confidence, and the size of the audit."""
    silo = answer.silo or UNNAMED
    canaries = ""
    if answer.canaries is not None:
        canaries = f", {answer.canaries} canaries"
    return (
        f"{silo}: one {answer.unit}, δ = {answer.delta:.2g}, {100 * answer.confidence:.3g}%"
        f" intervals, {counted(answer.rounds, 'round')}{canaries}"
    )


def silo_metrics(answers: Sequence[SiloAnswer]) -> dict[str, float]:
    """ε of each silo, and the largest ε if all silos have one unit and δ, as named metrics.

    For the server, "silos-server-epsilon-north" is ε of the silo north, and
    "silos-server-epsilon" is the largest ε.
    """
    are_comparable = (
        len({(answer.unit, answer.delta) for answer in answers}) == 1
    )
    metrics = dict[str, float]()
    for adversary in SEEN_OF_SILOS:
        name = f"silos-{adversary}-epsilon"
        for silo, line in _lines(answers, adversary).items():
            if line.epsilon is not None:
                metrics[f"{name}-{_NOT_IN_NAMES.sub('_', silo)}"] = line.epsilon
                if are_comparable:
                    metrics[name] = max(line.epsilon, metrics.get(name, 0.0))
    return metrics
