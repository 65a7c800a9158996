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

Table = tuple[dict[str, Floats], Callable[[int], str]]
"""Columns by name, with NaN for empty cells, and a function that names a row in messages."""

LAYOUT = (
    "columns (or keys) 'observed' and, unless --dim is given, 'unobserved'; "
    "or 'score' and 'member' (1 took part, 0 did not)"
)

# The names of the columns that are read.
_NAMES = ("observed", "unobserved", "score", "member")
_MEMBER = {"1": 1.0, "true": 1.0, "yes": 1.0, "0": 0.0, "false": 0.0, "no": 0.0}


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
        **dict.fromkeys((*TEXT_ENDINGS, ".parquet"), _rows),
        ".npz": _npz,
        ".json": _json,
        ".npy": _npy,
    }
    return read_table(
        path,
        {
            end: functools.partial(_scores, read)
            for end, read in readers.items()
        },
        LAYOUT,
    )


def _scores(
    read: Callable[[Path], Table], path: Path
) -> tuple[Floats, Floats | None]:
    """Observed and unobserved scores of a table in either layout."""
    columns, place = read(path)
    names = shown(sorted(columns))
    has_groups = "observed" in columns or "unobserved" in columns
    if "score" in columns and "member" not in columns:
        raise ValueError(f"'score' needs a column 'member', found {names}")
    if has_groups and ("score" in columns or "member" in columns):
        raise ValueError(f"found {names}, of two layouts: keep one of them")
    if "score" in columns:
        scores = columns["score"]
        members = columns["member"]
        if len(scores) != len(members):
            raise ValueError(
                f"score has {len(scores)} values and member {len(members)}"
            )
        _check_complete("score", scores, place)
        _check_complete("member", members, place)
        observed = scores[members == 1]
        unobserved = scores[members == 0]
    elif has_groups:
        observed = _without_end("observed", columns, place)
        unobserved = _without_end("unobserved", columns, place)
    else:
        raise ValueError(f"found {names}")
    return observed, unobserved if len(unobserved) else None


def _without_end(
    name: str, columns: dict[str, Floats], place: Callable[[int], str]
) -> Floats:
    """A column without the empty cells at the end, which fill up the shorter column."""
    numbers = columns.get(name, np.empty(0))
    last = np.flatnonzero(~np.isnan(numbers)).max(initial=-1)
    numbers = numbers[: last + 1]
    _check_complete(name, numbers, place)
    return numbers


def _check_complete(
    name: str, numbers: Floats, place: Callable[[int], str]
) -> None:
    """Raises if a column has an empty cell."""
    missing = np.flatnonzero(np.isnan(numbers))
    if len(missing):
        raise ValueError(f"{place(int(missing[0]))}: {name} is missing")


def _cell(name: str, value: Any, place: str) -> float:
    """The number in a cell; NaN if it is empty."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return math.nan
    if name == "member":
        member = _MEMBER.get(str(value).strip().lower(), _number(value))
        if member not in (0, 1):
            raise ValueError(
                f"{place}: member={shown(value)} is neither 1 nor 0"
            )
        return member
    number = _number(value)
    if math.isnan(number):
        raise ValueError(f"{place}: {name}={shown(value)} is not a number")
    return number


def _number(value: Any) -> float:
    """A number, or infinity if it is written so; NaN for anything else, and too large numbers."""
    try:
        # `float` accepts these values and texts, which are no numbers in a table.
        if isinstance(value, bool | np.bool_ | bytes) or "_" in str(value):
            return math.nan
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        return math.nan
    if math.isinf(number) and "inf" not in str(value).lower():
        return math.nan
    return number


def _table(columns: Mapping[str, Any]) -> Table:
    """The table of columns in memory, of which only those of `LAYOUT` are read."""
    names = [name.strip().lower() for name in columns]
    check_header(names)
    numbers = {
        name: _column(name, cells)
        for name, cells in zip(names, columns.values(), strict=True)
    }
    return numbers, lambda row: f"row {row + 1}"


def _column(name: str, cells: Any) -> Floats:
    """The numbers of a column in memory; empty if its name is not in `LAYOUT`."""
    if name not in _NAMES:
        return np.empty(0)
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf":
        numbers = np.asarray(cells, np.float64)
        if name == "member":
            is_valid = np.isin(numbers, (0, 1))
        else:
            is_valid = ~np.isnan(numbers)
        if is_valid.all():
            return numbers
    return np.array(
        [_cell(name, cell, f"row {i}") for i, cell in enumerate(cells, 1)],
        np.float64,
    )


def _rows(path: Path) -> Table:
    """A table that is read row by row into arrays of numbers, to save memory."""
    table = table_rows(path, _NAMES)
    columns = {name: array.array("d") for name in table.names}
    row_numbers = array.array("q")
    for row_number, cells in table.rows:
        row_numbers.append(row_number)
        place = table.place(row_number)
        for name, cell in zip(table.names, cells, strict=True):
            if table.decimal == "," and isinstance(cell, str):
                cell = cell.replace(".", "?").replace(",", ".")
            columns[name].append(_cell(name, cell, place))
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    return arrays, lambda row: table.place(row_numbers[row])


def _npz(path: Path) -> Table:
    _, columns = read_archive(path, "an archive of scores")
    if {"meta", "presence"} <= columns.keys():
        raise ValueError("this is a run's record; see 'fl-epe report RUN_DIR'")
    for name, values in columns.items():
        if values.ndim > 1 and name.strip().lower() in _NAMES:
            raise ValueError(f"{name}.shape={values.shape} is not (k,)")
    return _table(
        {name: np.atleast_1d(values) for name, values in columns.items()}
    )


def _npy(path: Path) -> Table:
    values = read_npy(path, "an array of observed scores")
    if values.ndim != 1:
        raise ValueError(f"shape={values.shape} is not (k,)")
    return _table({"observed": values})


def _json(path: Path) -> Table:
    content = json_object(path.read_bytes(), "the text")
    columns = {}
    for name, cells in content.items():
        # pandas writes the cells of a column by the names of the rows.
        if isinstance(cells, dict):
            cells = list(cells.values())
        if isinstance(cells, list):
            columns[name] = cells
    return _table(columns)


@dataclasses.dataclass(frozen=True)
class ScoreSummary:
    """The answer of bare scores, with every estimate, bound and test that applies to them.

    Attributes:
        delta: target δ.
        confidence: confidence of the interval (two-sided) and of the lower bound (one-sided).
        dim: dimension of the cosines; ``None`` if the scores are not cosines.
        observed, unobserved: number of scores in each group.
        estimates: every estimate that applies; the first is the answer's. It is empty if none
            does.
        proved: a lower bound on ε; ``None`` without one.
        proof: the method of the lower bound, chosen by the number of scores and δ alone.
        bounds: every lower bound that applies, by its method.
        gaussian: test of normality for each group with enough scores.
        evidence: the evidence about the claim; ``None`` if nothing is claimed.
        overlap: ``m²·k/d`` for a mean score m: the share of k observed canaries in the energy
            of the released vector, if all are in one vector; ``None`` if the scores are not
            cosines.
        refused: why the first estimate whose law the scores refute does not apply; ``None`` if
            there is none.
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
    refused: str | None = None

    @property
    def estimate(self) -> EpsilonEstimate | None:
        """The answer's estimate; ``None`` if the scores have no law that an estimate assumes."""
        if self.estimates:
            return self.estimates[0]
        return None

    @property
    def if_gaussian(self) -> bool:
        """Whether the estimate holds only if the scores are Gaussian, which few scores cannot show.

        Cosines have a known law.
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
    groups: dict[str, ArrayLike | None] = {
        "took part": observed,
        "did not take part": unobserved,
    }
    if unobserved is None and dim is None:
        groups["did not take part"] = ()
    for name, group in groups.items():
        if (
            group is None
            or np.ndim(group) != 1
            or np.size(group) >= LEAST_CANARIES
        ):
            continue
        count = "only 1" if np.size(group) else "no"
        alternative = ""
        if dim is None and group is not observed:
            alternative = ", or cosines their --dim"
        raise NotMeasured(
            f"there is {count} score of a canary that {name}; "
            f"an ε needs at least {LEAST_CANARIES}{alternative}"
        )
    scores = np.asarray(observed)
    null_scores = None if unobserved is None else np.asarray(unobserved)
    if dim is None:
        return Scores(scores, null_scores)
    return Scores.from_cosines(scores, dim, null_scores)


def summarize_scores(
    scores: Scores,
    delta: float,
    *,
    confidence: float = 0.95,
    coins: bool = False,
    claim: float | None = None,
) -> ScoreSummary:
    """The answer of bare scores, and all estimates and bounds that apply to them.

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
    refused = None
    for candidate, variance in candidates:
        try:
            estimates.append(
                epsilon_of(candidate, delta, variance, confidence, refuse=True)
            )
        except NotMeasured as error:
            refused = refused or str(error)
    gaussian = {}
    for name, group in (
        ("observed", bare.observed),
        ("unobserved", bare.unobserved),
    ):
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
        refused=refused,
        proved=None if proof is None else bounds.get(proof),
        proof=proof,
        bounds=bounds,
        gaussian=gaussian,
        evidence=evidence,
        overlap=overlap,
    )
