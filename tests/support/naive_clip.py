"""One clipped update at a time, as it is read: what `ClippedSum` must equal to the last bit."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import check_positive
from fl_epe.mechanism import norm


def clip(
    update: NDArray[np.floating], clip_norm: float
) -> tuple[NDArray[np.float64] | None, bool]:
    """Scale ``update`` of shape ``(dim,)`` down to norm ``clip_norm`` if it is longer.

    Entries are cut (towards zero) to a grid of about ``clip_norm / 2^32``; a sum of up to 2^20
    clipped updates is then exact in float64, whatever its order.

    Returns:
        The clipped update as float64, and whether its norm was at most ``clip_norm``. The update
        is ``None``, and its client counts as absent, if an entry is NaN or infinite or it is not
        a floating-point vector.

    Raises:
        ValueError: if ``clip_norm`` is not positive and finite.
    """
    check_positive("clip_norm", clip_norm)
    if update.ndim != 1 or not np.issubdtype(update.dtype, np.floating):
        return None, False
    length = norm(update)
    if not math.isfinite(length):
        return None, False
    step = 2.0 ** (math.frexp(clip_norm)[1] - 32)
    shrink = 1.0 if length <= clip_norm else clip_norm / length * (1 - 2.0**-50)
    clipped = update * np.float64(shrink / step)
    np.trunc(clipped, out=clipped)
    clipped *= step
    return clipped, length <= clip_norm
