"""NVIDIA FLARE 2.7.1 to 2.9.0: the budget of `SVTPrivacy`.

    pip install --no-deps --target build/wild/nvflare nvflare==2.9.0 psutil msgpack docker
    PYTHONPATH=build/wild/nvflare python simulations/in_the_wild/nvflare_svt.py

`SVTPrivacy` uploads a noisy share of a model's entries. Up to 2.7.3 its only ε is the argument
``epsilon`` (default 0.1), which is spent on the threshold alone: the choice of entries gets
ε·(2c)^⅔ for c uploaded entries, and each uploaded value its own ``noise_var``, all of it anew in
every upload. Since 2.8.0 it divides its noise among c values, and keeps an account of the choice
and the values over uploads, which says 0.1 + 0.1·c for the defaults: much, but no less than the
truth, as far as this game can tell. So the lead is refuted since 2.8.0, which fixed it. (The file
is the same in 2.7.1 to 2.7.3, and in 2.8.0, 2.8.3 and 2.9.0.)

0-d arrays are uploaded as they are in both; since 2.8.0 it says so in the metadata of each upload.

Neighbours are any two updates of one client; δ is 0.

Expected with `--quick`, 2.9.0::

                                                  claimed   proved by       severity
    one upload                                       50.1     2.47 weighted none found
    four uploads                                      200     4.24 weighted none found

and 2.7.1::

                                                  claimed   proved by       severity
    one upload                                        0.1     3.22 weighted critical
    four uploads                                      0.1     4.81 weighted critical
    a 0-d array                                       0.1     5.07 weighted critical
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

import numpy as np

from fl_epe.checks import Floats
from simulations.in_the_wild import wild

DIM = 5000  # of which a tenth is uploaded
GAMMA = 1e-5  # the default clip bound of each entry


def upload(
    scalar: bool = False, rounds: int = 1, **options: Any
) -> tuple[wild.Release, Any]:
    """What one client uploads, and the filter; a scalar beside it if wanted."""
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    svt = SVTPrivacy(**options)

    def release(updates: Floats) -> Floats:
        total = np.zeros(updates.shape[1])
        for _ in range(rounds):
            data: dict[str, Any] = {"w": updates[0].copy()}
            if scalar:
                data = {
                    "b": np.array(updates[0, 0]),
                    "w": updates[0, 1:].copy(),
                }
            sent = svt.process_dxo(
                DXO(DataKind.WEIGHT_DIFF, data), Shareable(), FLContext()
            )
            parts = [np.ravel(sent.data[name]) for name in sorted(data)]
            total += np.concatenate(parts)
        return total

    return release, svt


def leads() -> list[wild.Lead]:
    """The defaults in one upload and in four, and a scalar."""
    new = not importlib.metadata.version("nvflare").startswith("2.7")

    def lead(
        name: str, rounds: int = 1, scalar: bool = False, **options: Any
    ) -> wild.Lead:
        canary = GAMMA * np.ones(DIM) / (1 if not scalar else DIM)
        weights = np.ones(DIM)
        if scalar:
            canary[0], weights = GAMMA, np.eye(DIM)[0]
        release, svt = upload(scalar, rounds)
        claim = 0.1
        if new:
            release(canary[None])
            claim = svt.get_privacy_spent()
        game = wild.played(
            release, canary, adjacency="substitute", weights=weights
        )
        return wild.Lead(name, claim, game, delta=0.0, most=1000, **options)

    status = "accounted since 2.8.0" if new else "fixed in 2.8.0"
    return [
        lead("one upload", defect=not new, note=status),
        lead("four uploads", 4, defect=not new, note=status),
        *(
            []
            if new
            else [
                lead(
                    "a 0-d array",
                    scalar=True,
                    defect=True,
                    note="as it is: ε = ∞",
                )
            ]
        ),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("nvflare", leads))
