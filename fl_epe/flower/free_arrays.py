"""Which arrays of a model are free parameters, as far as the replies of a round show.

A variance below 0 breaks a network, and an array that every client sends back as it came moves by
a canary alone. Neither can be known by name, so what is in the replies decides.

Examples:
    >>> before = {"weight": np.array([0.1, -0.2]), "var": np.ones(2), "frozen": np.array([-1.0])}
    >>> answers = [
    ...     {**before, "weight": np.array([0.3, -0.1]), "var": np.array([0.9, 1.1])},
    ...     {**before, "weight": np.array([0.2, -0.4]), "var": np.array([1.2, 0.8])},
    ... ]
    >>> sorted(not_free(before, answers, "model"))
    ['frozen', 'var']
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import Vector
from fl_epe.flower.arrays import Layout
from fl_epe.mechanism import norm

if TYPE_CHECKING:
    from fl_epe.flower.settings import ReplyKind

Arrays = Mapping[str, NDArray[Any]]
"""Floating-point arrays by the model's names."""


def unmoved(before: Arrays, answers: Iterable[Arrays], kind: ReplyKind | None) -> set[str]:
    """Names of the arrays that no answer changed.

    Args:
        before: the model that was sent.
        answers: the clients'; entries that are NaN say nothing.
        kind: of the answers, models or updates; ``None`` where the model is 0 everywhere.
    """
    names = set(before)
    for answer in answers:
        if not names:
            break
        for name in list(names):
            value = answer[name]
            unchanged = 0 if kind == "update" else before[name].astype(value.dtype, copy=False)
            if _differ(value, unchanged):
                names.remove(name)
    return names


def not_free(before: Arrays, answers: Sequence[Arrays], kind: ReplyKind | None) -> set[str]:
    """Names of the arrays that are no free parameters.

    They are those that no answer changed, those that are the same in all answers (unless every
    array is), and those that are nowhere negative, neither in the model nor in any answer.

    Args:
        before: as in `unmoved`.
        answers: as in `unmoved`, at least one.
        kind: as in `unmoved`.
    """
    still = unmoved(before, answers, kind)
    same = unmoved(answers[0], answers[1:], "model") if len(answers) > 1 else set[str]()
    if len(same) == len(before):
        same = set()
    return still | same | _nowhere_negative(before, answers, kind)


def _nowhere_negative(
    before: Arrays, answers: Sequence[Arrays], kind: ReplyKind | None
) -> set[str]:
    names = {name for name, value in before.items() if not np.any(value < 0)}
    for answer in answers:
        if not names:
            break
        for name in list(names):
            least = -before[name] if kind == "update" else 0
            if np.any(answer[name] < least):
                names.remove(name)
    return names


def _differ(one: NDArray[Any], other: NDArray[Any] | int) -> bool:
    """Whether an entry does; NaN differs from nothing."""
    return bool(np.any((one < other) | (one > other)))


def leave_alone(names: Collection[str], canary: Vector, layout: Layout) -> Vector:
    """A canary of norm 1 with 0 in the arrays of these names, of norm 1 again, ``(dim,)``."""
    if not names:
        return canary
    rest = canary.copy()
    parts = layout.split(rest)
    for name in names:
        parts[name][:] = 0
    return np.divide(rest, norm(rest), dtype=rest.dtype)
