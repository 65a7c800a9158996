"""Runs side by side: their answers at one δ, the settings that differ, and the ε that differ.

`compare_runs` needs only the records. A difference of two ε is called larger than chance only
if its interval excludes 0; with several pairs of runs, the intervals of one adversary hold
simultaneously (Bonferroni). Answers for different adversaries or adjacencies are not compared.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from fl_epe.auditing import (
    Answer,
    AuditRecord,
    EpsilonDifference,
    Sees,
    answers,
    epsilon_difference,
)
from fl_epe.checks import check_probability
from fl_epe.reporting.charts import VIEW_NAMES
from fl_epe.reporting.reliability import SEES
from fl_epe.reporting.summary import (
    CONFIDENCE,
    Summary,
    settings_of,
    summarize,
)
from fl_epe.wording import signed

# With more pairs of runs, every run is compared with the first run only.
_MAX_PAIRS = 15

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_RUNS = len(_LETTERS)
"""Largest number of runs in a comparison."""


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        letter: the run's name in tables.
        name: the name of the run's directory, as it was typed.
        summary: the summary of the run at the common δ.
        record: the record of the run.
        settings: the settings in words, by name.
    """

    letter: str
    name: str
    summary: Summary
    record: AuditRecord = dataclasses.field(repr=False)
    settings: dict[str, str]


@dataclasses.dataclass(frozen=True)
class PairDifference:
    """ε of one run minus that of another, for one adversary.

    Attributes:
        adversary: what the adversary sees, "final" or "all".
        first: letter of the first run.
        second: letter of the second run.
        difference: the difference of their ε, with its interval.
    """

    adversary: Sees
    first: str
    second: str
    difference: EpsilonDifference

    def ranked(self) -> tuple[str, str] | None:
        """The run that leaks more, and the other; ``None`` if the difference may be chance."""
        if not self.difference.larger_than_chance:
            return None
        if self.difference.low > 0:
            return self.first, self.second
        return self.second, self.first

    def sentence(self) -> str:
        """The difference in a sentence that claims no more than the interval supports."""
        value = signed(self.difference.value, "+")
        low = signed(self.difference.low, "+")
        high = signed(self.difference.high, "+")
        size = f"{value} ({low} to {high})"
        pair = f"To an adversary who sees {SEES[self.adversary]}, {self.first} and {self.second}"
        ranked = self.ranked()
        if ranked is None:
            return f"{pair} cannot be told apart, ε differs by {size}."
        return (
            f"{pair} differ by more than chance, {ranked[0]} leaks more than {ranked[1]}: "
            f"ε of {self.first} minus that of {self.second} is {size}."
        )


@dataclasses.dataclass(frozen=True)
class RunsCompared:
    """The result of a comparison of runs.

    Attributes:
        runs: the runs, in the order in which they were named.
        delta: the δ of every ε.
        different: the settings that differ, by name, with a value for each run.
        differences: the differences between pairs of runs.
        notes: explanations and warnings, in sentences.
    """

    runs: tuple[ComparedRun, ...]
    delta: float
    different: dict[str, list[str]]
    differences: tuple[PairDifference, ...]
    notes: tuple[str, ...]

    @property
    def all_ok(self) -> bool:
        """Whether the status of every run is "ok"."""
        return all(run.summary.status == "ok" for run in self.runs)


def compare_runs(
    records: Mapping[str, AuditRecord], delta: float | None = None
) -> RunsCompared:
    """Compare two or more runs.

    Args:
        records: the records, by the names of their runs.
        delta: the δ of every ε; by default the smallest δ of the records.

    Raises:
        ValueError: with fewer than two records or too many, or if δ is not in (0, 1).
    """
    if not 2 <= len(records) <= MOST_RUNS:
        raise ValueError(
            f"Expected 2 to {MOST_RUNS} runs to compare, got {len(records)}."
        )
    if delta is None:
        delta = min(record.delta for record in records.values())
    check_probability("delta", delta)
    runs = tuple(
        ComparedRun(
            letter, name, summarize(record, delta), record, settings_of(record)
        )
        for letter, (name, record) in zip(
            _LETTERS, records.items(), strict=False
        )
    )
    different = dict[str, list[str]]()
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        values = [run.settings.get(name, "–") for run in runs]
        if len(set(values)) > 1:
            different[name] = values
    differences = _differences(runs, delta)
    notes = tuple(_notes(runs, delta, differences))
    return RunsCompared(runs, delta, different, differences, notes)


def independent(first: ComparedRun, second: ComparedRun) -> bool:
    """Whether the runs are known to share no random stream."""
    seeds = first.record.provenance.seeds
    second_seeds = second.record.provenance.seeds
    if seeds.get("canary") is None or second_seeds.get("canary") is None:
        return False
    return not any(
        seed is not None and seed == second_seeds.get(name)
        for name, seed in seeds.items()
    )


def alike(first: Answer, second: Answer) -> bool:
    """Whether two answers are for the same adversary and the same adjacency."""
    return (
        first.analytical.adjacency == second.analytical.adjacency
        and first.adversary == second.adversary
    )


def _differences(
    runs: Sequence[ComparedRun], delta: float
) -> tuple[PairDifference, ...]:
    """The differences of all pairs of runs, or of the first run to all others.

    The intervals for one adversary hold simultaneously. A run that was not measured, or that
    diverged, has no difference.
    """
    pairs = list(itertools.combinations(runs, 2))
    if len(pairs) > _MAX_PAIRS:
        # The first pairs are those of the first run.
        pairs = pairs[: len(runs) - 1]
    error = (1 - CONFIDENCE) / len(pairs)
    answers_at = dict[tuple[str, float], tuple[Answer, Answer]]()
    differences = []
    # The two answers of a run are in the order of the adversaries in `VIEW_NAMES`.
    for index, adversary in enumerate(VIEW_NAMES):
        for pair in pairs:
            are_independent = independent(*pair)
            # The interval of a dependent difference uses both intervals, so each gets half.
            level = 1 - error / (1 if are_independent else 2)
            for run in pair:
                if (run.letter, level) not in answers_at:
                    answers_at[run.letter, level] = answers(
                        run.record, delta, level
                    )
            first, second = (
                answers_at[run.letter, level][index] for run in pair
            )
            if (
                first.estimate is not None
                and second.estimate is not None
                and alike(first, second)
                and all(run.summary.status != "diverged" for run in pair)
            ):
                difference = epsilon_difference(
                    first.estimate, second.estimate, independent=are_independent
                )
                differences.append(
                    PairDifference(
                        adversary, pair[0].letter, pair[1].letter, difference
                    )
                )
    return tuple(differences)


def _notes(
    runs: Sequence[ComparedRun],
    delta: float,
    differences: Sequence[PairDifference],
) -> list[str]:
    """Explanations and warnings, in sentences."""
    notes = list[str]()
    if {run.record.delta for run in runs} != {delta}:
        deltas = ", ".join(
            f"{run.letter} {run.record.delta:.2g}" for run in runs
        )
        notes.append(
            f"The runs were made for another δ ({deltas}). Every ε here was computed again at δ = "
            f"{delta:.2g}; --delta chooses another."
        )
    letters_by_question = dict[str, list[str]]()
    for run in runs:
        for warning in run.summary.warnings[:1]:
            notes.append(
                f"Run {run.letter} ({warning.status}): {warning.text}."
            )
        answer = run.summary.answers[1]
        knows = "knows" if answer.adversary.knows_rounds else "does not know"
        adjacency = answer.analytical.adjacency
        question = (
            f"the adversary {knows} the client's rounds, {adjacency} adjacency"
        )
        letters_by_question.setdefault(question, []).append(run.letter)
    if len(letters_by_question) > 1:
        questions = "; ".join(
            f"{', '.join(letters)}: {question}"
            for question, letters in letters_by_question.items()
        )
        notes.append(
            f"Runs that answer different questions are not compared. {questions}."
        )
    if differences:
        notes.append(
            "A difference is larger than chance if its interval excludes 0. All intervals of one "
            f"adversary hold simultaneously with {CONFIDENCE:.0%} confidence (Bonferroni)."
        )
    dependent = dict.fromkeys(
        f"{pair.first} and {pair.second}"
        for pair in differences
        if not pair.difference.independent
    )
    if dependent:
        notes.append(
            "Runs that share a seed, or whose seeds are not recorded, may be dependent: "
            f"{', '.join(dependent)}. The intervals of their differences are valid all the same."
        )
    notes.append(
        "ε is of the median client of each run. Estimates are no bounds: a run with a smaller ε "
        "need not be safer against another attack. Accuracies have no intervals here."
    )
    return notes
