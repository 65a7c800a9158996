"""Scores of observed and unobserved canaries from a file, and all that they say.

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
from fl_epe.auditing.scoring import GaussianFit, Scores, check_sign, gaussian_test
from fl_epe.checks import Floats
from fl_epe.table_file import TEXT_ENDINGS, check_header, read_table, shown, table_rows

# Columns by name, NaN in an empty cell, and what to call a row in messages.
Table = tuple[dict[str, Floats], Callable[[int], str]]

LAYOUT = (
    "columns (or keys) 'observed' and, unless --dim is given, 'unobserved'; "
    "or 'score' and 'member' (1 took part, 0 did not)"
)

_NAMES = ("observed", "unobserved", "score", "member")
_MEMBER = {"1": 1.0, "true": 1.0, "yes": 1.0, "0": 0.0, "false": 0.0, "no": 0.0}


def read_scores(path: Path) -> tuple[Floats, Floats | None]:
    """Observed scores ``(k,)`` and unobserved ones ``(u,)``, or ``None`` if there are none.

    Args:
        path: ends with .csv, .tsv or .jsonl, which may be followed by .gz, or with .npz, .npy
            (observed scores alone), .json or .parquet; see `LAYOUT`. The shorter of two columns may
            end in empty cells; no other cell may be empty. Scores may be infinite, but not NaN.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read as scores, in one line that names the file, the reason
            and, where it is about a cell, the row.
    """
    readers = dict.fromkeys((*TEXT_ENDINGS, ".parquet"), _rows)
    readers |= {".npz": _npz, ".json": _json, ".npy": _npy}
    return read_table(
        path,
        {end: functools.partial(_scores, read) for end, read in readers.items()},
        LAYOUT,
    )


def _scores(read: Callable[[Path], Table], path: Path) -> tuple[Floats, Floats | None]:
    columns, place = read(path)
    found = shown(sorted(columns))
    if "score" in columns and "member" not in columns:
        raise ValueError(f"'score' needs a column 'member', found {found}")
    if columns.keys() & {"observed", "unobserved"} and columns.keys() & {
        "score",
        "member",
    }:
        raise ValueError(f"found {found}, of two layouts: keep one of them")
    if "score" in columns:
        scores = columns["score"]
        members = columns["member"]
        if len(scores) != len(members):
            raise ValueError(
                f"score has {len(scores)} values and member {len(members)}"
            )
        for name in ("score", "member"):
            _check_whole(name, columns[name], place)
        observed = scores[members == 1]
        others = scores[members == 0]
    elif columns.keys() & {"observed", "unobserved"}:
        observed, others = (
            _without_end(name, columns.get(name, np.empty(0)), place)
            for name in ("observed", "unobserved")
        )
    else:
        raise ValueError(f"found {found}")
    return observed, others if len(others) else None


def _without_end(name: str, numbers: Floats, place: Callable[[int], str]) -> Floats:
    """The numbers without the empty cells at the end, which fill up the shorter column."""
    numbers = numbers[: np.flatnonzero(~np.isnan(numbers)).max(initial=-1) + 1]
    _check_whole(name, numbers, place)
    return numbers


def _check_whole(name: str, numbers: Floats, place: Callable[[int], str]) -> None:
    if np.isnan(numbers).any():
        raise ValueError(
            f"{place(int(np.argmax(np.isnan(numbers))))}: {name} is missing"
        )


def _cell(name: str, value: Any, place: str) -> float:
    if value is None or (isinstance(value, str) and not value.strip()):
        return math.nan
    if name == "member":
        member = _MEMBER.get(str(value).strip().lower(), _number(value))
        if member not in (0, 1):
            raise ValueError(f"{place}: member={shown(value)} is neither 1 nor 0")
        return member
    if math.isnan(number := _number(value)):
        raise ValueError(f"{place}: {name}={shown(value)} is not a number")
    return number


def _number(value: Any) -> float:
    """A number, which may be infinite if it is written so; NaN if it is none, or too large."""
    try:
        if isinstance(value, bool | np.bool_ | bytes) or "_" in str(value):
            return math.nan  # though `float` takes them
        number = float(value)
    except (ValueError, TypeError, OverflowError):
        return math.nan
    overflown = math.isinf(number) and "inf" not in str(value).lower()
    return math.nan if overflown else number


def _table(columns: Mapping[str, Any]) -> Table:
    """The table of columns in memory, of which only those of `LAYOUT` are looked at."""
    check_header(names := [str(name).strip().lower() for name in columns])
    cells = dict(zip(names, columns.values(), strict=True))
    return {
        name: _column(name, cells[name]) for name in names
    }, lambda row: f"row {row + 1}"


def _column(name: str, cells: Any) -> Floats:
    if name not in _NAMES:
        return np.empty(0)
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf":
        numbers = np.asarray(cells, np.float64)
        good = np.isin(numbers, (0, 1)) if name == "member" else ~np.isnan(numbers)
        if good.all():
            return numbers
    return np.array(
        [_cell(name, cell, f"row {i}") for i, cell in enumerate(cells, 1)], np.float64
    )


def _rows(path: Path) -> Table:
    """Row by row into numbers: of ten million rows only those are kept."""
    table = table_rows(path, _NAMES)
    columns = [array.array("d") for _ in table.names]
    numbers = array.array("q")
    for number, cells in table.rows:
        numbers.append(number)
        for name, column, cell in zip(table.names, columns, cells, strict=True):
            if table.decimal == "," and isinstance(cell, str):
                cell = cell.replace(".", "?").replace(",", ".")
            column.append(_cell(name, cell, table.place(number)))
    arrays = dict(zip(table.names, map(np.asarray, columns), strict=True))
    return arrays, lambda row: table.place(numbers[row])


def _npz(path: Path) -> Table:
    _, columns = read_archive(path, "an archive of scores")
    if {"meta", "presence"} <= columns.keys():
        raise ValueError("this is a run's record; see 'fl-epe report RUN_DIR'")
    for name, values in columns.items():
        if values.ndim > 1 and name.strip().lower() in _NAMES:
            raise ValueError(f"{name}.shape={values.shape} is not (k,)")
    return _table({name: np.atleast_1d(values) for name, values in columns.items()})


def _npy(path: Path) -> Table:
    values = read_npy(path, "an array of observed scores")
    if values.ndim != 1:
        raise ValueError(f"shape={values.shape} is not (k,)")
    return _table({"observed": values})


def _json(path: Path) -> Table:
    content = json_object(path.read_bytes(), "the text")
    by_row = {  # as pandas writes a table: the cells of a column by the names of the rows
        name: list(cells.values()) if isinstance(cells, dict) else cells
        for name, cells in content.items()
    }
    return _table(
        {name: cells for name, cells in by_row.items() if isinstance(cells, list)}
    )


@dataclasses.dataclass(frozen=True)
class ScoreSummary:
    """The answer of bare scores, and all else that they allow.

    Attributes:
        delta: target δ.
        confidence: of the interval (two-sided) and of the proof (one-sided).
        dim: dimension of the cosines; ``None`` if the scores are not cosines.
        observed, unobserved: number of scores in each group.
        estimates: every estimate that applies; the first is the answer's. Empty if there is none.
        proved: ε is above this; ``None`` without a bound.
        proof: the bound's method, chosen by the number of scores and δ alone.
        bounds: every lower bound that applies, by its method.
        gaussian: test of normality for each group with enough scores.
        evidence: about the claim; ``None`` if nothing is claimed.
        overlap: ``m²·k/d`` for a mean score m, the share of k observed canaries in the energy of
            what was released, if they share it; ``None`` if the scores are not cosines.
        refused: why the first estimate that would have applied does not, where the scores refute
            its law.
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
        """The answer's; ``None`` if the scores have no law that an estimate takes them to have."""
        return self.estimates[0] if self.estimates else None

    @property
    def if_gaussian(self) -> bool:
        """Whether the estimate holds only if the scores are Gaussian, which few scores hardly tell.

        Cosines have a known law.
        """
        estimate = self.estimate
        return (
            self.dim is None
            and estimate is not None
            and not estimate.method.endswith(ANY_LAW)
        )


def bare_scores(
    observed: ArrayLike, unobserved: ArrayLike | None, dim: int | None
) -> Scores:
    """`Scores` from what a file holds; for `summarize_scores`.

    Args:
        observed: scores of observed canaries, larger for "took part", shape ``(k,)``.
        unobserved: scores of unobserved canaries, shape ``(u,)``, or ``None`` if ``dim`` is given.
        dim: if given, the scores are cosines in that many dimensions, whose null is known exactly.

    Raises:
        ValueError: for bad scores.
        NotMeasured: a `ValueError`, for fewer than two scores of a side, or neither ``unobserved``
            nor ``dim``.
    """
    others: ArrayLike | None = () if unobserved is None and dim is None else unobserved
    for name, side in (("took part", observed), ("did not take part", others)):
        if side is not None and np.ndim(side) == 1 and np.size(side) < LEAST_CANARIES:
            cosines = (
                ", or cosines their --dim" if side is others and dim is None else ""
            )
            raise NotMeasured(
                f"there is {'only 1' if np.size(side) else 'no'} score of a canary that {name}; "
                f"an ε needs at least {LEAST_CANARIES}{cosines}"
            )
    bare = Scores(
        np.asarray(observed), None if unobserved is None else np.asarray(unobserved)
    )
    return (
        bare
        if dim is None
        else Scores.from_cosines(bare.observed, dim, bare.unobserved)
    )


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
        scores: from `bare_scores`.
        delta: target δ in (0, 1).
        confidence: of the intervals (two-sided) and of the bounds (one-sided).
        coins: whether the canaries were included by independent fair coins.
        claim: the ε that is claimed, which `find_evidence` tests at that confidence.

    Raises:
        NotMeasured: a `ValueError`, for observed scores that are far below unobserved ones.
    """
    check_sign(scores)
    bare = Scores(scores.observed, scores.unobserved)
    shared = None
    asked = [(bare, "fitted")] if bare.unobserved is not None else []
    if scores.dim is not None:
        shared = (
            max(float(scores.observed.mean()), 0.0) ** 2
            * len(scores.observed)
            / scores.dim
        )
        asked = [(scores, "known"), (scores, "fitted"), *asked]
    estimates: list[EpsilonEstimate] = []
    refused = None
    for each, variance in asked:
        try:
            estimates.append(epsilon_of(each, delta, variance, confidence, refuse=True))
        except NotMeasured as error:
            refused = refused or str(error)
    groups = {"observed": bare.observed, "unobserved": bare.unobserved}
    tests = {
        name: gaussian_test(group)
        for name, group in groups.items()
        if group is not None
    }
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
        proved=bounds.get(proof or ""),
        proof=proof,
        bounds=bounds,
        gaussian={name: test for name, test in tests.items() if test is not None},
        evidence=None
        if claim is None
        else find_evidence(scores, claim, delta, confidence),
        overlap=shared,
    )
