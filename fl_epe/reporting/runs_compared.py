"""Runs side by side: their answers at one δ, what differs in their settings, and which ε differ.

`compare_runs` computes it from records alone. A difference of two ε is called larger than chance
only if its interval leaves 0 out; with several pairs of runs the intervals of one adversary hold
together (Bonferroni). Answers against different adversaries, or for different adjacency, have no
difference.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

from fl_epe.auditing import (
    Answer,
    AuditRecord,
    EpsilonDifference,
    EpsilonEstimate,
    answers,
    epsilon_difference,
)
from fl_epe.checks import ArgumentError
from fl_epe.reporting.charts import SEEN
from fl_epe.reporting.reliability import SEES
from fl_epe.reporting.summary import Summary, settings_of, summarize
from fl_epe.wording import signed

_CONFIDENCE = 0.95  # of the intervals
_MOST_PAIRS = 15  # above, every run is compared with the first alone
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# How many runs a comparison may have.
MOST_RUNS = len(_LETTERS)


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        letter: by which tables call it.
        name: as it was typed.
        summary: at the common δ.
        record: of the run.
        settings: by name, in words.
    """

    letter: str
    name: str
    summary: Summary
    record: AuditRecord = dataclasses.field(repr=False)
    settings: dict[str, str]


@dataclasses.dataclass(frozen=True)
class PairDifference:
    """ε of one run less that of another, for one adversary.

    Attributes:
        adversary: what is seen, a key of `SEEN`.
        first: letter of the one run.
        second: letter of the other.
        found: the difference.
    """

    adversary: str
    first: str
    second: str
    found: EpsilonDifference

    def leak(self) -> tuple[str, str] | None:
        """The letters of the run that leaks more and of the other; ``None`` if that is chance."""
        if not self.found.larger_than_chance:
            return None
        return (
            (self.first, self.second)
            if self.found.low > 0
            else (self.second, self.first)
        )

    def sentence(self) -> str:
        """What the interval supports, and no more."""
        found = self.found
        value, low, high = (
            signed(one, "+") for one in (found.value, found.low, found.high)
        )
        told = f"To an adversary who sees {SEES[self.adversary]}, {self.first} and {self.second}"
        if (leak := self.leak()) is None:
            return (
                f"{told} cannot be told apart, ε differs by {value} ({low} to {high})."
            )
        return (
            f"{told} differ by more than chance, {leak[0]} leaks more than {leak[1]}: "
            f"ε of {self.first} less that of {self.second} is {value} ({low} to {high})."
        )


@dataclasses.dataclass(frozen=True)
class RunsCompared:
    """All that a comparison of runs says.

    Attributes:
        runs: in the order in which they were named.
        delta: of every ε.
        confidence: of the intervals of each run, and of the differences of an adversary together.
        different: settings that differ, by name, a value for each run.
        differences: of pairs of runs.
        notes: what has to be known, in sentences.
    """

    runs: tuple[ComparedRun, ...]
    delta: float
    confidence: float
    different: dict[str, list[str]]
    differences: tuple[PairDifference, ...]
    notes: tuple[str, ...]

    @property
    def measured(self) -> bool:
        """Whether every run's status is "ok"."""
        return all(run.summary.status == "ok" for run in self.runs)


def compare_runs(
    records: Mapping[str, AuditRecord], delta: float | None = None
) -> RunsCompared:
    """Compare two or more runs.

    Args:
        records: by what they are called.
        delta: of every ε; by default that of the records, and if they differ the smallest.

    Raises:
        ValueError: with fewer than two records or too many, or if δ is not in (0, 1).
    """
    if not 2 <= len(records) <= MOST_RUNS:
        raise ValueError(
            f"Expected 2 to {MOST_RUNS} runs to compare, got {len(records)}."
        )
    if delta is not None and not 0 < delta < 1:
        raise ArgumentError("Expected {delta} in (0, 1).", delta=delta)
    at = min(record.delta for record in records.values()) if delta is None else delta
    runs = tuple(
        ComparedRun(letter, name, summarize(record, at), record, settings_of(record))
        for letter, (name, record) in zip(_LETTERS, records.items(), strict=False)
    )
    differences = _differences(runs, at)
    notes = tuple(_notes(runs, at, differences))
    return RunsCompared(runs, at, _CONFIDENCE, _different(runs), differences, notes)


def _different(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for run in runs for name in run.settings)
    values = {name: [run.settings.get(name, "–") for run in runs] for name in names}
    return {name: row for name, row in values.items() if len(set(row)) > 1}


def independent(first: ComparedRun, second: ComparedRun) -> bool:
    """Whether no random stream of one is known to be, or may be, that of the other."""
    one, other = first.record.provenance.seeds, second.record.provenance.seeds
    if one.get("canary") is None or other.get("canary") is None:
        return False
    return not any(
        seed is not None and seed == other.get(name) for name, seed in one.items()
    )


def alike(one: Answer, other: Answer) -> bool:
    """Whether two answers are to the same question: of one adversary and one adjacency."""
    same = one.analytical.adjacency == other.analytical.adjacency
    return same and one.adversary == other.adversary


def _differences(
    runs: Sequence[ComparedRun], delta: float
) -> tuple[PairDifference, ...]:
    """Of all pairs, or of all runs with the first; those of one adversary hold together."""
    places = range(len(runs))
    pairs = list(itertools.combinations(places, 2))
    if len(pairs) > _MOST_PAIRS:
        pairs = [(0, other) for other in places[1:]]
    error = (1 - _CONFIDENCE) / len(pairs)
    answers_at = functools.cache(
        lambda place, level: answers(runs[place].record, delta, level)
    )

    def estimate(
        place: int, level: float, seen: int
    ) -> tuple[Answer, EpsilonEstimate | None]:
        """That of a run that was measured and did not diverge."""
        one: Answer = answers_at(place, level)[seen]
        return one, None if runs[place].summary.status == "diverged" else one.estimate

    found = []
    for seen, adversary in enumerate(SEEN):
        for first, second in pairs:
            alone = independent(runs[first], runs[second])
            level = 1 - error / (1 if alone else 2)
            (one, ours), (other, theirs) = (
                estimate(p, level, seen) for p in (first, second)
            )
            if ours is not None and theirs is not None and alike(one, other):
                difference = epsilon_difference(ours, theirs, independent=alone)
                letters = runs[first].letter, runs[second].letter
                found.append(PairDifference(adversary, *letters, difference))
    return tuple(found)


def _notes(
    runs: Sequence[ComparedRun], delta: float, differences: Sequence[PairDifference]
) -> list[str]:
    lines, questions = list[str](), dict[str, list[str]]()
    if {run.record.delta for run in runs} != {delta}:
        each = ", ".join(f"{run.letter} {run.record.delta:.2g}" for run in runs)
        lines.append(
            f"The runs were made for another δ ({each}). Every ε here was computed again at δ = "
            f"{delta:.2g}; --delta chooses another."
        )
    for run in runs:
        lines += [
            f"Run {run.letter} ({one.status}): {one.text}."
            for one in run.summary.warnings[:1]
        ]
        questions.setdefault(_question(run.summary.answers[1]), []).append(run.letter)
    if len(questions) > 1:
        told = "; ".join(
            f"{', '.join(who)}: {question}" for question, who in questions.items()
        )
        lines.append(f"Runs that answer different questions are not compared. {told}.")
    if differences:
        lines.append(
            "A difference is larger than chance if its interval leaves 0 out. All intervals of one "
            f"adversary hold together {_CONFIDENCE:.0%} of the time (Bonferroni)."
        )
    if shared := [
        f"{one.first} and {one.second}"
        for one in differences
        if not one.found.independent
    ]:
        lines.append(
            f"Not known to be independent, as they share a seed or do not tell it: "
            f"{', '.join(dict.fromkeys(shared))}. Their intervals hold whatever they share."
        )
    lines.append(
        "ε is of the median client of each run. Estimates are no bounds: a run with a smaller ε "
        "need not be safer against another attack. Accuracies have no intervals here."
    )
    return lines


def _question(one: Answer) -> str:
    knows = "knows" if one.adversary.knows_rounds else "does not know"
    return f"the adversary {knows} the client's rounds, {one.analytical.adjacency} adjacency"
