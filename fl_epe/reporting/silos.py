"""The answers of silos, for a terminal, a page and JSON: of a whole federation, or of one silo.

What is said first is, for each adversary, the silo with the largest ε. Only silos with the same
unit and the same δ are compared, and nobody's ε is averaged.

Examples:
    >>> from fl_epe.auditing import SiloAnswer, SiloLine
    >>> line = SiloLine("public", epsilon=1.1, low=0.8, high=1.4, theory=3.0)
    >>> answer = SiloAnswer("north", "record", 1e-5, 0.95, 30, 200, (line,))
    >>> print(silo_sentences([answer])[0])
    The public, who sees the last model: ε ≈ 1.10 (0.800 – 1.40) of one record of north at δ = 1e-05; theory allows 3.00.
"""  # noqa: E501 - a sentence

from __future__ import annotations

import dataclasses
import io
import itertools
import operator
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fl_epe.auditing import SEEN_OF_SILOS, SiloAdversary, SiloAnswer, SiloLine
from fl_epe.files import write_json, write_text
from fl_epe.reporting.numbers import JSON, as_json, finite_numbers
from fl_epe.reporting.pages import render_page
from fl_epe.reporting.reliability import Status
from fl_epe.reporting.tables import Terminal, plain_table
from fl_epe.wording import counted, number, sentence

SILO_SCHEMA = 1
"""Of ``report.json``; grows where a key gets another meaning, not where one is added."""

WHO: dict[SiloAdversary, str] = {
    "server": "the server",
    "partner": "a partner",
    "outsider": "an outsider",
    "public": "the public",
}
"""The adversaries in words."""

READING = (
    "Every step, by the accountant: what theory allows whoever sees every step of the silo's"
    " training. It holds for all that is made of the steps.",
    "Linear limit: ε by the claimed noise if gradients did not depend on the model. It is exact"
    " only there, and no upper bound.",
    "Measured are canaries with random gradients, which hardly change how training goes on. A real"
    " record may be remembered less or more.",
    "Stronger attacks may find more. A silo that lies about itself is not detected.",
)
"""What has to stand with the numbers."""

HEADINGS = ("seen by", "ε (interval)", "at least", "every step", "linear limit")
"""Of a silo's table."""

_NUMBERS = ("epsilon", "low", "high", "proved", "theory", "linear_limit")
_NO_NAME = re.compile(r"[^\w.-]")  # characters that the name of a metric has not


def silos_text(answers: Sequence[SiloAnswer], faults: Sequence[str] = ()) -> str:
    """The report as plain text.

    Args:
        answers: of silos with different names.
        faults: what else went wrong, in sentences without a full stop.
    """
    console = Terminal(file=io.StringIO(), width=80, color_system=None)
    for text in (*silo_sentences(answers), *map(sentence, silo_faults(answers, faults))):
        console.print(text, highlight=False)
    for answer in answers:
        rows = [(line.adversary, *line_cells(line)) for line in answer.lines]
        console.print()
        console.print(plain_table(silo_title(answer), HEADINGS, rows=rows))
    for text in (*map(sentence, silo_notes(answers)), *READING):
        console.print(f"- {text}", highlight=False)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def write_silos_report(
    answers: Sequence[SiloAnswer], faults: Sequence[str], directory: Path
) -> None:
    """Write ``report.json`` and ``report.html``; arguments as of `silos_text`."""
    page = render_page(
        "silos.html.j2",
        sentences=silo_sentences(answers),
        status=silos_status(answers, faults),
        tables=[(silo_title(answer), _page_rows(answer)) for answer in answers],
        headings=HEADINGS,
        faults=[sentence(fault) for fault in silo_faults(answers, faults)],
        notes=[sentence(note) for note in silo_notes(answers)],
        reading=READING,
    )
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "report.json", silos_json(answers, faults))
    write_text(directory / "report.html", page)


def _page_rows(answer: SiloAnswer) -> list[tuple[str, ...]]:
    return [
        (f"{WHO[line.adversary]}: {SEEN_OF_SILOS[line.adversary]}", *line_cells(line))
        for line in answer.lines
    ]


def _groups(answers: Sequence[SiloAnswer]) -> Iterator[list[SiloAnswer]]:
    """Silos that can be compared: those of one unit at one δ."""
    like = operator.attrgetter("unit", "delta")
    for _, group in itertools.groupby(sorted(answers, key=like), like):
        yield list(group)


def _seen_by(answers: Sequence[SiloAnswer], adversary: SiloAdversary) -> dict[str, SiloLine]:
    """What silos have to say of an adversary, by their names."""
    lines = ((answer.silo, line) for answer in answers for line in answer.lines)
    return {silo: line for silo, line in lines if line.adversary == adversary}


def silo_with_most(lines: dict[str, SiloLine]) -> tuple[str, SiloLine] | None:
    """The silo with the largest ε, and its line; ``None`` if none was measured."""
    measured = {silo: line.epsilon for silo, line in lines.items() if line.epsilon is not None}
    if not measured:
        return None
    silo = max(measured, key=measured.__getitem__)
    return silo, lines[silo]


def silo_sentences(answers: Sequence[SiloAnswer]) -> list[str]:
    """What each adversary learns of the silo with the largest ε, of each unit and δ."""
    sentences = [
        _most_exposed(group, adversary)
        for group in _groups(answers)
        for adversary in SEEN_OF_SILOS
        if _seen_by(group, adversary)
    ]
    return sentences or ["Not measured: no silo has answered."]


def _most_exposed(group: Sequence[SiloAnswer], adversary: SiloAdversary) -> str:
    unit, delta = group[0].unit, group[0].delta
    lines = _seen_by(group, adversary)
    beginning = f"{WHO[adversary]}, who sees {SEEN_OF_SILOS[adversary]}"
    most = silo_with_most(lines)
    if most is None:
        reason = next(iter(lines.values())).reason or "no reason was given"
        silos = ", ".join(lines)
        return sentence(f"{beginning}: what leaks of one {unit} of {silos} not measured, as {reason}")
    silo, line = most
    largest = "the largest " if len(group) > 1 else ""
    epsilon, *others = line_cells(line)
    text = f"{beginning}: {largest}ε ≈ {epsilon} of one {unit} of {silo} at δ = {delta:.2g}"
    if line.proved:
        text += f", at least {others[0]}"
    if line.theory is not None:
        text += f"; theory allows {others[1]}"
    unmeasured = [name for name, other in lines.items() if other.epsilon is None]
    if unmeasured:
        text += f"; not measured in {', '.join(unmeasured)}"
    return sentence(text)


def line_cells(line: SiloLine) -> tuple[str, str, str, str]:
    """ε with its interval, what is proved, theory and the linear limit, as text."""
    measured = "not measured"
    if line.epsilon is not None:
        measured = number(line.epsilon)
        if line.low is not None and line.high is not None:
            measured += f" ({number(line.low)} – {number(line.high)})"
    least = number(line.proved) if line.proved else "–"
    theory = "none known" if line.theory is None else number(line.theory)
    limit = "–" if line.linear_limit is None else number(line.linear_limit)
    return measured, least, theory, limit


def silo_title(answer: SiloAnswer) -> str:
    """Whose ε the table of a silo has, and from what."""
    return (
        f"{answer.silo}: ε of one {answer.unit} at δ = {answer.delta:.2g}, intervals at"
        f" {100 * answer.confidence:.3g}%; {counted(answer.rounds, 'round')},"
        f" {counted(answer.canaries, 'canary')}".replace("canarys", "canaries")
    )


def silo_faults(answers: Sequence[SiloAnswer], faults: Sequence[str] = ()) -> list[str]:
    """What is wrong in silos, by their names, and what else is, without a full stop."""
    return [*(text for answer in answers for text in _faults_of(answer)), *faults]


def _faults_of(answer: SiloAnswer) -> Iterator[str]:
    for line in answer.lines:
        if line.exceeds_theory:
            yield (
                f"{answer.silo}: {WHO[line.adversary]} learns more than theory allows: at least"
                f" {number(line.proved)} is proved, and {number(line.theory)} is allowed"
            )
    yield from (f"{answer.silo}: {fault}" for fault in answer.faults)


def silo_notes(answers: Sequence[SiloAnswer]) -> list[str]:
    """Why lines were not measured, what makes others doubtful, and notes, without a full stop."""
    notes = list[str]()
    for answer in answers:
        for line in answer.lines:
            about = f"{answer.silo}, {line.adversary}"
            if line.reason:
                notes.append(f"{about}: not measured, as {line.reason}")
            notes += [f"{about}: {doubt}" for doubt in line.doubts]
        notes += [f"{answer.silo}: {note}" for note in answer.notes]
    return notes


def silos_status(answers: Sequence[SiloAnswer], faults: Sequence[str] = ()) -> Status:
    """What the report is worth."""
    lines = [line for answer in answers for line in answer.lines]
    if silo_faults(answers, faults):
        return "faulty"
    if all(line.epsilon is None for line in lines):
        return "not measured"
    return "unreliable" if any(line.doubts for line in lines) else "ok"


def silos_json(answers: Sequence[SiloAnswer], faults: Sequence[str] = ()) -> JSON:
    """As JSON values; ``None`` for a number that is infinite or unknown."""
    return {
        "schema": SILO_SCHEMA,
        "status": silos_status(answers, faults),
        "answer": silo_sentences(answers),
        "silos": [_silo_values(answer) for answer in answers],
        "faults": silo_faults(answers, faults),
        "reading": list(READING),
    }


def _silo_values(answer: SiloAnswer) -> JSON:
    values: JSON = as_json(dataclasses.replace(answer, records=None))
    del values["records"]
    values["lines"] = [_line_values(line) for line in answer.lines]
    return values


def _line_values(line: SiloLine) -> JSON:
    """A line as JSON values; ``unbounded`` names those of its numbers that are infinite."""
    numbers = {name: getattr(line, name) for name in _NUMBERS}
    known = {"sees": SEEN_OF_SILOS[line.adversary], "exceeds_theory": line.exceeds_theory}
    return as_json(line) | finite_numbers(numbers) | known


def silo_metrics(answers: Sequence[SiloAnswer]) -> dict[str, float]:
    """ε of each silo, and the largest where all have one unit and δ, by the names of loggers.

    For the server these are "silos-server-epsilon", its ends "-low" and "-high", "-proved", and
    "silos-server-epsilon-north" of the silo north.
    """
    comparable = len(list(_groups(answers))) == 1
    metrics = dict[str, float | None]()
    for adversary in SEEN_OF_SILOS:
        lines, name = _seen_by(answers, adversary), f"silos-{adversary}-epsilon"
        most = silo_with_most(lines)
        if comparable and most is not None:
            _, line = most
            metrics |= {name: line.epsilon, f"{name}-low": line.low}
            metrics |= {f"{name}-high": line.high, f"{name}-proved": line.proved}
        for silo, line in lines.items():
            metrics[f"{name}-{_NO_NAME.sub('_', silo)}"] = line.epsilon
    return {name: value for name, value in metrics.items() if value is not None}
