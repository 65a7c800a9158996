"""Which arrays of a model are free parameters, as far as the replies of a round show.

A variance below 0 breaks a network, and an array that every client sends back as it came moves by
a canary alone. Neither can be known by name, so what is in the replies decides.

Examples:
    >>> before = {"weight": np.array([0.1, -0.2]), "var": np.ones(2), "frozen": np.array([-1.0])}
    >>> models = [
    ...     {**before, "weight": np.array([0.3, -0.1]), "var": np.array([0.9, 1.1])},
    ...     {**before, "weight": np.array([0.2, -0.4]), "var": np.array([1.2, 0.8])},
    ... ]
    >>> sorted(not_free(before, models))
    ['frozen', 'var']
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fl_epe.checks import Vector
from fl_epe.flower.layout import Layout
from fl_epe.mechanism import norm

Arrays = Mapping[str, Vector]
"""Arrays by name, as `Layout.split` returns them."""


def unmoved(before: Arrays, models: Sequence[Arrays]) -> set[str]:
    """Names of the arrays that are the same in all clients' models as before."""
    return {
        name
        for name, value in before.items()
        if all(np.array_equal(model[name], value) for model in models)
    }


def not_free(before: Arrays, models: Sequence[Arrays]) -> set[str]:
    """Names of the arrays that are no free parameters.

    They are those that no client changed, those that are the same in all clients' models (unless
    every array is), and those that are nowhere negative, neither before nor in any client's model.

    Args:
        before: the model that was sent.
        models: the clients', at least one.
    """
    same = unmoved(models[0], models[1:])
    if len(same) == len(before):  # one client, or clients with the same data
        same = set()
    nowhere_negative = {
        name
        for name in before
        if all(model[name].min(initial=0) >= 0 for model in (before, *models))
    }
    return unmoved(before, models) | same | nowhere_negative


def leave_alone(
    names: Collection[str], canary: Vector, layout: Layout
) -> Vector:
    """A canary of norm 1 with 0 in the arrays of these names, of norm 1 again, ``(dim,)``.

    The canary itself if they are all arrays.
    """
    if len(names) in (0, len(layout.moved)):
        return canary
    remainder = canary.copy()
    parts = layout.split(remainder)
    for name in names:
        parts[name][:] = 0
    return np.divide(remainder, norm(remainder), dtype=remainder.dtype)
