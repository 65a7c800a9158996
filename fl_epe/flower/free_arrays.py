"""Finds the arrays of a model that are free parameters, as far as the replies of a round show.

A canary must not move a variance below 0, which breaks a network, nor an array that no client
moves. The names of arrays do not show which these are, but the values in replies do.

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
    """The names of the arrays that all clients' models have unchanged."""
    return {
        name
        for name, value in before.items()
        if all(np.array_equal(model[name], value) for model in models)
    }


def not_free(before: Arrays, models: Sequence[Arrays]) -> set[str]:
    """The names of the arrays that are no free parameters.

    These are the arrays that no client changed, those that are the same in all clients' models
    (unless all arrays are), and those without a negative entry in the sent model and in all
    clients' models.

    Args:
        before: the model that was sent.
        models: the models of clients, at least one.
    """
    same = unmoved(models[0], models[1:])
    if len(same) == len(before):
        # There is one client, or the clients have the same data.
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
    """A canary with zeros in the named arrays, scaled to norm 1 again, shape ``(dim,)``.

    It is the canary itself if no array is named, or all are.
    """
    if len(names) in (0, len(layout.moved)):
        return canary
    remainder = canary.copy()
    arrays = layout.split(remainder)  # views
    for name in names:
        arrays[name][:] = 0
    return np.divide(remainder, norm(remainder), dtype=remainder.dtype)
