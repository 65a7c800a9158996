"""Statistics that an auditor would try by hand, each fitted to runs of both worlds.

A statistic maps what was released in m runs, shape (m, s, d), to m numbers that are larger with the
canary. It is fitted on runs that neither choose it nor prove anything by it.
"""

from collections.abc import Callable, Iterator

import numpy as np

from fl_epe.checks import Floats

Score = Callable[[Floats], Floats]
VALUES, DIGITS, RATIO = (
    "counts of values",
    "entries with more digits",
    "likelihood ratio",
)
ALONG = "along the canary"
_MOST = 160  # features of a likelihood ratio
_RIDGE = 1e-12  # of the mean square
_ROUNDING = 1e-9  # below which values are the same
_FEW = 14  # binary digits of a coarse grid


def fitted(
    present: Floats,
    absent: Floats,
    canary: Floats,
    arrays: tuple[int, ...],
    *,
    categories: bool,
) -> Iterator[tuple[str, Score]]:
    """Every statistic that suits, with its name.

    Args:
        present: released with the canary, shape (m, s, d).
        absent: released without it, shape (m, s, d).
        canary: its update in each step, shape (s, d').
        arrays: number of entries of each array of an update.
        categories: whether what is released are categories.
    """
    yield VALUES, _counts(present, absent, _flat)
    if categories:
        return
    yield DIGITS, _few_digits
    base = absent.mean(axis=0)
    yield "largest entry", lambda x: np.abs(x - base).max(axis=(1, 2))
    yield "norm", lambda x: np.linalg.norm(_flat(x - base), axis=1)
    if present.shape[2] == canary.shape[1]:
        norms = np.linalg.norm(canary, axis=1, keepdims=True)
        units, cuts = (
            canary / np.where(norms > 0, norms, 1.0),
            np.append(0, np.cumsum(arrays)[:-1]),
        )
        step, entry = np.unravel_index(np.abs(canary).argmax(), canary.shape)

        def parts(x: Floats) -> Floats:
            return _flat(np.add.reduceat(x * units, cuts, axis=2))

        yield ALONG, lambda x: (x * units).sum(axis=(1, 2))
        yield (
            f"{VALUES} of one entry",
            _counts(present, absent, lambda x: x[:, step, entry, None]),
        )
        if len(canary) * len(arrays) > 1:
            yield f"{RATIO} of arrays and steps", _ratio(present, absent, parts)
    if 1 < present[0].size <= min(_MOST, len(present)):
        yield f"{RATIO} of all entries", _ratio(present, absent, _flat)


def _few_digits(x: Floats) -> Floats:
    """Share of entries with more binary digits than numbers of a coarse grid have."""
    digits = np.frexp(x)[0] * 2.0**_FEW
    return np.asarray((digits != np.rint(digits)).mean(axis=(1, 2)))


def _flat(x: Floats) -> Floats:
    return x.reshape(len(x), -1)


def _ratio(present: Floats, absent: Floats, features: Score) -> Score:
    """Of two Gaussians with one covariance (Fisher 1936), which finds what noise cancels in."""
    one, other = features(present), features(absent)
    shift = one.mean(axis=0) - other.mean(axis=0)
    within = np.concatenate([one - one.mean(axis=0), other - other.mean(axis=0)])
    values, vectors = np.linalg.eigh(within.T @ within / len(within))
    ridge = _RIDGE * float(np.mean(values) + np.mean(shift**2)) + 1e-300
    weights = vectors @ ((vectors.T @ shift) / (np.maximum(values, 0) + ridge))
    return lambda x: np.asarray(features(x) @ weights)


def _counts(present: Floats, absent: Floats, features: Score) -> Score:
    """Log ratio of how often a value was seen, which shows what one world alone makes possible."""
    unit = _ROUNDING * (float(np.abs(absent).max()) or 1.0)

    def keys(x: Floats) -> list[bytes]:
        return [row.tobytes() for row in np.rint(features(x) / unit) + 0.0]

    seen: dict[bytes, list[float]] = {}
    for side, runs in enumerate((present, absent)):
        for value in keys(runs):
            seen.setdefault(value, [0.5, 0.5])[side] += 1
    table = {value: float(np.log(n[0] / n[1])) for value, n in seen.items()}
    return lambda x: np.array([table.get(value, 0.0) for value in keys(x)])
