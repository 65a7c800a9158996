"""Scores of observed and unobserved canaries from a file, and their estimates and bounds.

`read_scores` reads CSV, TSV, JSON lines, NPZ, NPY, JSON and Parquet files. `summarize_scores`
computes all estimates and all bounds that apply.

Examples:
    >>> summary = summarize_scores(bare_scores([0.01, 0.02, 0.03], None, dim=10_000), 1e-5)
    >>> [estimate.method for estimate in summary.estimates]
    ['cosines, known variance', 'cosines, fitted variance']
"""

import array
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fl_epe.archive import json_object, read_archive, read_npy
from fl_epe.auditing.answer import ANY_LAW, epsilon_of
from fl_epe.auditing.bounds import all_bounds, method_by_design
from fl_epe.auditing.claims.evidence import Evidence, find_evidence
from fl_epe.auditing.estimate import EpsilonEstimate
from fl_epe.auditing.record import LEAST_CANARIES, NotMeasured
from fl_epe.auditing.scoring import (
    GaussianFit,
    Scores,
    check_sign,
    gaussian_test,
)
from fl_epe.checks import Floats
from fl_epe.table_file import (
    TEXT_ENDINGS,
    check_header,
    read_table,
    shown,
    table_rows,
)

LAYOUT = (
    "columns (or keys) 'observed' and, unless --dim is given, 'unobserved'; "
    "or 'score' and 'member' (1 took part, 0 did not)"
)

# The names of the columns that are read.
_NAMES = ("observed", "unobserved", "score", "member")

# Words in the column "member", in lower case. Numbers that are equal to 1 or 0 are read as well.
_MEMBER_WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


@dataclasses.dataclass(frozen=True)
class _Table:
    """The columns of a file.

    Attributes:
        columns: the numbers of each column by its name, NaN for an empty cell. A column whose
            name is not in `_NAMES` has no numbers; its name is only shown in messages.
        place: the name of a row in messages, by its index.
    """

    columns: dict[str, Floats]
    place: Callable[[int], str]

    def check_complete(self, name: str, numbers: Floats) -> None:
        """Raise a `ValueError` if a column has an empty cell."""
        missing = np.flatnonzero(np.isnan(numbers))
        if len(missing):
            raise ValueError(
                f"{self.place(int(missing[0]))}: {name} is missing"
            )

    def without_end(self, name: str) -> Floats:
        """A column without the empty cells at its end, which fill up the shorter column."""
        numbers = self.columns.get(name, np.empty(0))
        last = np.flatnonzero(~np.isnan(numbers)).max(initial=-1)
        numbers = numbers[: last + 1]
        self.check_complete(name, numbers)
        return numbers


def read_scores(path: Path) -> tuple[Floats, Floats | None]:
    """Observed scores ``(k,)``, and unobserved scores ``(u,)`` or ``None`` if there are none.

    Args:
        path: a file whose name ends with .csv, .tsv or .jsonl, which may be followed by .gz, or
            with .npz, .npy (observed scores alone), .json or .parquet; see `LAYOUT`. The
            shorter of two columns may end in empty cells; no other cell may be empty. Scores
            may be infinite, but not NaN.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read as scores; the message is one line with the file, the
            reason and, for a fault of a cell, the row.
    """
    readers = {
        **dict.fromkeys((*TEXT_ENDINGS, ".parquet"), _read_rows),
        ".npz": _read_npz,
        ".json": _read_json,
        ".npy": _read_npy,
    }
    return read_table(
        path,
        {
            ending: functools.partial(_scores, read)
            for ending, read in readers.items()
        },
        LAYOUT,
    )


def _scores(
    read: Callable[[Path], _Table], path: Path
) -> tuple[Floats, Floats | None]:
    """Observed and unobserved scores of a table in either layout."""
    table = read(path)
    columns = table.columns
    names = shown(sorted(columns))
    has_groups = "observed" in columns or "unobserved" in columns
    if "score" in columns and "member" not in columns:
        raise ValueError(f"'score' needs a column 'member', found {names}")
    if has_groups and ("score" in columns or "member" in columns):
        raise ValueError(f"found {names}, of two layouts: keep one of them")
    if has_groups:
        observed = table.without_end("observed")
        unobserved = table.without_end("unobserved")
    elif "score" in columns:
        scores = columns["score"]
        members = columns["member"]
        if len(scores) != len(members):
            raise ValueError(
                f"score has {len(scores)} values and member {len(members)}"
            )
        table.check_complete("score", scores)
        table.check_complete("member", members)
        observed = scores[members == 1]
        unobserved = scores[members == 0]
    else:
        raise ValueError(f"found {names}")
    return observed, unobserved if len(unobserved) else None


def _cell(name: str, value: Any, place: str) -> float:
    """The number in a cell; NaN if it is empty."""
    text = str(value).strip().lower()
    if value is None or not text:
        return math.nan
    number = _number(value, text)
    if name == "member":
        number = _MEMBER_WORDS.get(text, number)
        if number not in (0, 1):
            raise ValueError(
                f"{place}: member={shown(value)} is neither 1 nor 0"
            )
    if math.isnan(number):
        raise ValueError(f"{place}: {name}={shown(value)} is not a number")
    return number


def _number(value: Any, text: str) -> float:
    """The number in a cell with this text.

    It is NaN for anything else, and for numbers that are too large for a float.
    """
    # `float` accepts these values and texts, which are no numbers in a table.
    if isinstance(value, bool | bytes) or "_" in text:
        return math.nan
    try:
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        return math.nan
    if math.isinf(number) and "inf" not in text:
        return math.nan
    return number


def _read_rows(path: Path) -> _Table:
    """A table that is read row by row into arrays of numbers, to save memory."""
    table = table_rows(path, _NAMES)
    columns = {name: array.array("d") for name in table.names}
    row_numbers = array.array("q")
    for row_number, cells in table.rows:
        row_numbers.append(row_number)
        place = table.place(row_number)
        for name, cell in zip(table.names, cells, strict=True):
            if table.decimal == "," and isinstance(cell, str):
                # With decimal commas a point is an error: "?" is no part of a number.
                cell = cell.replace(".", "?").replace(",", ".")
            columns[name].append(_cell(name, cell, place))
    return _Table(
        {name: np.asarray(column) for name, column in columns.items()},
        lambda row: table.place(row_numbers[row]),
    )


def _read_npz(path: Path) -> _Table:
    _, columns = read_archive(path, "an archive of scores")
    if {"meta", "presence"} <= columns.keys():
        raise ValueError("this is a run's record; see 'fl-epe report RUN_DIR'")
    for name, values in columns.items():
        if values.ndim > 1 and name.strip().lower() in _NAMES:
            raise ValueError(f"{name}.shape={values.shape} is not (k,)")
    return _table(
        {name: np.atleast_1d(values) for name, values in columns.items()}
    )


def _read_npy(path: Path) -> _Table:
    values = read_npy(path, "an array of observed scores")
    if values.ndim != 1:
        raise ValueError(f"shape={values.shape} is not (k,)")
    return _table({"observed": values})


def _read_json(path: Path) -> _Table:
    content = json_object(path.read_bytes(), "the text")
    columns = {}
    for name, cells in content.items():
        # pandas writes the cells of a column by the names of the rows.
        if isinstance(cells, dict):
            cells = list(cells.values())
        if isinstance(cells, list):
            columns[name] = cells
    return _table(columns)


def _table(columns: Mapping[str, Any]) -> _Table:
    """The table of columns in memory."""
    names = [name.strip().lower() for name in columns]
    check_header(names)
    numbers = {}
    for name, cells in zip(names, columns.values(), strict=True):
        numbers[name] = np.empty(0)
        if name in _NAMES:
            numbers[name] = _column(name, cells)
    return _Table(numbers, lambda row: f"row {row + 1}")


def _column(name: str, cells: Any) -> Floats:
    """The numbers of a column in memory."""
    if isinstance(cells, np.ndarray):
        # Millions of numbers are checked at once; if one is invalid, each is, to name its row.
        # A longer type may have numbers that are too large for float64.
        if cells.dtype.kind in "iuf" and cells.dtype.itemsize <= 8:
            numbers = np.asarray(cells, np.float64)
            if name == "member":
                is_valid = np.isin(numbers, (0, 1))
            else:
                is_valid = ~np.isnan(numbers)
            if is_valid.all():
                return numbers
        cells = cells.tolist()
    return np.array(
        [_cell(name, cell, f"row {i}") for i, cell in enumerate(cells, 1)],
        np.float64,
    )


@dataclasses.dataclass(frozen=True)
class ScoreSummary:
    """The result of an audit by bare scores, with all estimates, bounds and tests that apply.

    Attributes:
        delta: target δ.
        confidence: confidence of the interval (two-sided) and of the lower bound (one-sided).
        dim: dimension of the cosines; ``None`` if the scores are not cosines.
        observed: number of observed scores.
        unobserved: number of unobserved scores.
        estimates: every estimate that applies; the first is the primary one. It is empty if
            none applies.
        proved: the primary lower bound on ε; ``None`` without one.
        proof: the method of that bound, chosen by the number of scores and δ alone.
        bounds: every lower bound that applies, by its method.
        gaussian: test of normality for each group with enough scores.
        evidence: the evidence about the claim; ``None`` if nothing is claimed.
        overlap: ``m²·k/d`` for a mean score m, which is the share of k observed canaries in the
            energy of the released vector, if all are in one vector; ``None`` if the scores are
            not cosines.
        refusal: why the first of the missing estimates is missing; ``None`` if none is.
    """

    delta: float
    confidence: float
    dim: int | None
    observed: int
    unobserved: int
    estimates: tuple[EpsilonEstimate, ...]
    proved: float | None
    proof: str | None
    bounds: dict[str, float]
    gaussian: dict[str, GaussianFit]
    evidence: Evidence | None = None
    overlap: float | None = None
    refusal: str | None = None

    @property
    def estimate(self) -> EpsilonEstimate | None:
        """The primary estimate; ``None`` if the scores have no law that an estimate assumes."""
        if self.estimates:
            return self.estimates[0]
        return None

    @property
    def assumes_gaussian(self) -> bool:
        """Whether the estimate holds only if the scores are Gaussian.

        It does not if the scores are cosines, whose law is known, or if it holds for any law.
        """
        if self.dim is not None or self.estimate is None:
            return False
        return not self.estimate.method.endswith(ANY_LAW)


def bare_scores(
    observed: ArrayLike, unobserved: ArrayLike | None, dim: int | None
) -> Scores:
    """The `Scores` of the columns of a file, for `summarize_scores`.

    Args:
        observed: scores of observed canaries, larger for "took part", shape ``(k,)``.
        unobserved: scores of unobserved canaries, shape ``(u,)``, or ``None`` if ``dim`` is given.
        dim: if given, the scores are cosines in that many dimensions, whose null is known exactly.

    Raises:
        ValueError: for bad scores.
        NotMeasured: a `ValueError`, for fewer than two scores of a group, or neither
            ``unobserved`` nor ``dim``.
    """
    remedy = ""
    if dim is None:
        remedy = ", or --dim if the scores are cosines"
        unobserved = () if unobserved is None else unobserved
    _check_count("took part", observed, "")
    if unobserved is not None:
        _check_count("did not take part", unobserved, remedy)
    scores = np.asarray(observed)
    null_scores = None if unobserved is None else np.asarray(unobserved)
    if dim is None:
        return Scores(scores, null_scores)
    return Scores.from_cosines(scores, dim, null_scores)


def _check_count(group: str, scores: ArrayLike, remedy: str) -> None:
    """Raise `NotMeasured` if a vector has too few scores. `Scores` refuses any other shape."""
    count = np.size(scores)
    if np.ndim(scores) == 1 and count < LEAST_CANARIES:
        raise NotMeasured(
            f"there is {'only 1' if count else 'no'} score of a canary that {group}; "
            f"an ε needs at least {LEAST_CANARIES}{remedy}"
        )


def summarize_scores(
    scores: Scores,
    delta: float,
    *,
    confidence: float = 0.95,
    coins: bool = False,
    claim: float | None = None,
) -> ScoreSummary:
    """The result of an audit by bare scores.

    Args:
        scores: the scores, see `bare_scores`.
        delta: target δ in (0, 1).
        confidence: confidence of the intervals (two-sided) and of the bounds (one-sided).
        coins: whether the canaries were included by independent fair coins.
        claim: the ε that is claimed, which `find_evidence` tests at that confidence.

    Raises:
        NotMeasured: a `ValueError`, for observed scores that are far below unobserved ones.
    """
    check_sign(scores)
    bare = Scores(scores.observed, scores.unobserved)
    overlap = None
    candidates: list[tuple[Scores, str]] = []
    if scores.dim is not None:
        candidates += [(scores, "known"), (scores, "fitted")]
        mean = max(float(scores.observed.mean()), 0.0)
        overlap = mean**2 * len(scores.observed) / scores.dim
    if bare.unobserved is not None:
        candidates.append((bare, "fitted"))
    estimates: list[EpsilonEstimate] = []
    refusal = None
    for candidate, variance in candidates:
        try:
            estimates.append(
                epsilon_of(candidate, delta, variance, confidence, refuse=True)
            )
        except NotMeasured as error:
            refusal = refusal or str(error)
    gaussian = {}
    groups = {"observed": bare.observed, "unobserved": bare.unobserved}
    for name, group in groups.items():
        test = None if group is None else gaussian_test(group)
        if test is not None:
            gaussian[name] = test
    evidence = None
    if claim is not None:
        evidence = find_evidence(scores, claim, delta, confidence)
    bounds = all_bounds(scores, delta, confidence, coins=coins)
    proof = method_by_design(scores, delta, confidence)
    return ScoreSummary(
        delta=delta,
        confidence=confidence,
        dim=scores.dim,
        observed=len(scores.observed),
        unobserved=0 if scores.unobserved is None else len(scores.unobserved),
        estimates=tuple(estimates),
        refusal=refusal,
        proved=None if proof is None else bounds.get(proof),
        proof=proof,
        bounds=bounds,
        gaussian=gaussian,
        evidence=evidence,
        overlap=overlap,
    )
