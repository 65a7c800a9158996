"""The answers of silos, for a terminal, a page and JSON: of a whole federation, or of one silo.

What is said first is what theory allows, and then for each adversary the silo with the largest ε.
Only silos with the same unit and the same δ are compared, and nobody's ε is averaged.

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
    "A record is one row of the data: several rows that belong together leak more.",
)
"""What has to stand with the numbers."""

HEADINGS = ("seen by", "ε (interval)", "at least", "every step", "linear limit")
"""Of a silo's table."""

UNNAMED = "this silo"
"""A silo without a name, in its own report."""

_NUMBERS = ("epsilon", "low", "high", "proved", "theory", "linear_limit")
_NOT_IN_NAMES = re.compile(r"[^\w.-]")  # of metrics


def silos_text(answers: Sequence[SiloAnswer], faults: Sequence[str] = ()) -> str:
    """The report as plain text.

    Args:
        answers: of silos with different names.
        faults: what else went wrong, in sentences without a full stop.
    """
    console = Terminal(file=io.StringIO(), width=80, color_system=None, highlight=False)
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
    """Write ``report.json`` and ``report.html``; arguments as of `silos_text`."""
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


def silos_json(answers: Sequence[SiloAnswer], faults: Sequence[str] = ()) -> JSON:
    """As JSON values; ``None`` for a number that is infinite or unknown."""
    answers = [dataclasses.replace(one, silo=one.silo or UNNAMED) for one in answers]
    lines = [(answer.silo, line) for answer in answers for line in answer.lines]
    wrong = [
        f"{silo}: more leaks to {WHO[line.adversary]} than theory allows"
        for silo, line in lines
        if line.exceeds_theory
    ]
    wrong += [
        f"{answer.silo}: {fault}" for answer in answers for fault in answer.faults
    ]
    notes = list(_notes(answers))
    status = "unreliable" if faults or any(line.doubts for _, line in lines) else "ok"
    if all(line.epsilon is None for _, line in lines):
        status = "not measured"
    if wrong:
        status = "faulty"
    return {
        "schema": SILO_SCHEMA,
        "status": status,
        "answer": list(_sentences(answers)),
        "faults": [f"{fault}." for fault in (*wrong, *faults)],
        "notes": [f"{note}." for note in notes],
        "silos": [_values(answer) for answer in answers],
        "reading": list(READING),
    }


def _notes(answers: Sequence[SiloAnswer]) -> Iterator[str]:
    """Why lines are not measured, and what is doubtful: each once, with whom it is said of."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for answer in answers:
        of_lines: dict[str, list[str]] = {}
        for line in answer.lines:
            reasons = (line.reason,) if line.reason else ()
            for text in (*reasons, *line.doubts):
                of_lines.setdefault(text, []).append(line.adversary)
        for text, adversaries in of_lines.items():
            who = () if len(adversaries) == len(answer.lines) else tuple(adversaries)
            found.setdefault((text, who), []).append(answer.silo)
        for text in answer.notes:
            found.setdefault((text, ()), []).append(answer.silo)
    for (text, who), silos in found.items():
        of_whom = f" ({', '.join(who)})" if who else ""
        yield f"{', '.join(silos)}{of_whom}: {text}"


def _values(answer: SiloAnswer) -> JSON:
    values: JSON = as_json(answer)
    for name in (
        "faults",
        "notes",
        "records",
    ):  # which stand elsewhere, or leave no silo here
        del values[name]
    for shown, line in zip(values["lines"], answer.lines, strict=True):
        shown |= finite_numbers({name: getattr(line, name) for name in _NUMBERS})
    return values


def _lines(
    answers: Sequence[SiloAnswer], adversary: SiloAdversary
) -> dict[str, SiloLine]:
    """What silos have to say of an adversary, by their names."""
    return {
        answer.silo: line
        for answer in answers
        for line in answer.lines
        if line.adversary == adversary
    }


def _sentences(answers: Sequence[SiloAnswer]) -> Iterator[str]:
    """What theory allows, and what each adversary learns, of the silo with the largest ε.

    For each unit and δ.
    """
    for unit, delta in dict.fromkeys((answer.unit, answer.delta) for answer in answers):
        alike = [one for one in answers if (one.unit, one.delta) == (unit, delta)]
        yield sentence(f"theory: ε of one {unit} at δ = {delta:.2g} {_allowed(alike)}")
        for adversary, seen in SEEN_OF_SILOS.items():
            if lines := _lines(alike, adversary):
                about = (
                    f"{WHO[adversary]}, who sees {seen}, "
                    f"learns of one {unit} at δ = {delta:.2g}"
                )
                yield sentence(f"{about}: {_largest(lines)}")
    if not answers:
        yield "Not measured: no silo has answered."


def _allowed(answers: Sequence[SiloAnswer]) -> str:
    """What theory allows in these silos, in words."""
    theories = {
        answer.silo: [line.theory for line in answer.lines if line.theory is not None]
        for answer in answers
    }
    known = {silo: max(theory) for silo, theory in theories.items() if theory}
    unknown = [silo for silo, theory in theories.items() if not theory]
    texts = []
    if known:
        silo = max(known, key=lambda silo: known[silo])
        text = f"is not bounded in {silo}"
        if known[silo] < math.inf:
            text = f"is at most {number(known[silo])} (in {silo})"
            text += ", if clipping, sampling and noise are as claimed"
        texts.append(text)
    if unknown:
        texts.append(f"is not known in {', '.join(unknown)}")
    return "; ".join(texts)


def _largest(lines: dict[str, SiloLine]) -> str:
    """The largest ε of the silos with these lines, in words."""
    unmeasured = [silo for silo, line in lines.items() if line.epsilon is None]
    silo = max(lines, key=lambda silo: lines[silo].epsilon or 0.0)
    text = ""
    if lines[silo].epsilon is not None:
        epsilon, least, *_ = line_cells(lines[silo])
        most = "most in " if len(lines) > 1 else "in "
        text = f"{most}{silo}, ε ≈ {epsilon}"
        if lines[silo].proved:
            text += f", at least {least}"
    if unmeasured:
        text += f"; not measured in {', '.join(unmeasured)}"
    return text.removeprefix("; ")


def line_cells(line: SiloLine) -> tuple[str, str, str, str]:
    """ε with its interval, what is proved, theory and the linear limit, as text."""
    measured = "not measured"
    if line.epsilon is not None:
        measured = f"{number(line.epsilon)} ({number(line.low)} – {number(line.high)})"
    least = number(line.proved) if line.proved else "–"
    theory = "none known" if line.theory is None else number(line.theory)
    limit = "–" if line.linear_limit is None else number(line.linear_limit)
    return measured, least, theory, limit


def silo_title(answer: SiloAnswer) -> str:
    """Whose ε the table of a silo has, and from what."""
    silo = answer.silo or UNNAMED
    canaries = "" if answer.canaries is None else f", {answer.canaries} canaries"
    return (
        f"{silo}: one {answer.unit}, δ = {answer.delta:.2g}, {100 * answer.confidence:.3g}%"
        f" intervals, {counted(answer.rounds, 'round')}{canaries}"
    )


def silo_metrics(answers: Sequence[SiloAnswer]) -> dict[str, float]:
    """ε of each silo, and the largest where all have one unit and δ, by the names of loggers.

    For the server these are "silos-server-epsilon-north" of the silo north, and
    "silos-server-epsilon".
    """
    are_alike = len({(answer.unit, answer.delta) for answer in answers}) == 1
    metrics = dict[str, float]()
    for adversary in SEEN_OF_SILOS:
        name = f"silos-{adversary}-epsilon"
        for silo, line in _lines(answers, adversary).items():
            if line.epsilon is not None:
                metrics[f"{name}-{_NOT_IN_NAMES.sub('_', silo)}"] = line.epsilon
                if are_alike:
                    metrics[name] = max(line.epsilon, metrics.get(name, 0.0))
    return metrics
