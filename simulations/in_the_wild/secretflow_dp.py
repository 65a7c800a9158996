r"""SecretFlow 1.13.0b0: noise of a federated average that is divided twice, and in the wrong unit.

    pip download --no-deps --python-version 3.10 --only-binary :all: -d build/wild \
        secretflow==1.13.0b0
    python -m zipfile -e build/wild/secretflow-1.13.0b0-*.whl build/wild/secretflow
    PYTHONPATH=build/wild/secretflow python simulations/in_the_wild/secretflow_dp.py

1.13.0b0 is the newest release that holds the package for federated learning; 1.14.0b0 left it out,
and where it went it was not looked for.

Every client of a federated strategy calls `GaussianModelDP` on its update, and the server averages
the results. With ``l2_norm_clip=C`` and n clients each adds noise of standard deviation z·C²/n, so
that their average has noise z·C²/n^1.5 for a sensitivity of C/n: a noise multiplier of z·C/√n, and
z is what `privacy_spent_rdp` accounts. At C = 1 and n = 4 it is half of it, at n = 100 a tenth.
``is_clip_each_layer`` scales each array by C over the root of two norms, which leaves a longer
update than C if there are several arrays.

Expected::

                                                  claimed   proved by       severity
    average of 10 clients, C = 1                     1.01        3 gdp      critical
    average of 100 clients, C = 1                    1.01     11.8 gdp      critical
    average of 10 clients, C = 0.1                   1.01       48 gdp      critical
    1 client, C = 0.25                               1.01     4.06 gdp      critical
    1 client, C = 1, 8 arrays clipped                1.01     1.36 gdp      theoretical
    1 client, C = 1                                  1.01    0.666 gdp      none found
"""

from __future__ import annotations

import sys

import numpy as np

from fl_epe.checks import Floats
from simulations.in_the_wild import wild

DIM, MULTIPLIER = 8, 4.0


def leads() -> list[wild.Lead]:
    """Averages of several clients, and the mechanism of a single one."""
    wild.skip_init(
        "secretflow_fl",
        "secretflow_fl.security",
        "secretflow_fl.security.privacy",
        "secretflow_fl.security.privacy.mechanism",
    )
    from secretflow_fl.security.privacy.mechanism.mechanism_fl import (
        GaussianModelDP,
    )

    def lead(
        name: str, clients: int, clip_norm: float = 1.0, **options: object
    ) -> wild.Lead:
        layers = int(options.pop("layers", 0))  # type: ignore[call-overload]
        mechanism = GaussianModelDP(
            MULTIPLIER,
            clients,
            l2_norm_clip=clip_norm,
            delta=wild.DELTA,
            is_clip_each_layer=layers > 0,
        )

        def release(updates: Floats) -> Floats:
            replies = [
                mechanism(np.split(update, max(layers, 1)))
                for update in updates
            ]
            return np.concatenate(
                [np.mean(each, axis=0) for each in zip(*replies, strict=True)]
            )

        canary = (
            2
            * clip_norm
            * (np.ones(DIM) / np.sqrt(DIM) if layers else np.eye(DIM)[0])
        )
        other_updates = (
            0.1 * clip_norm * np.eye(DIM)[np.arange(clients - 1) % DIM]
        )
        game = wild.played(
            release, canary, others=other_updates, adjacency="zero-out"
        )
        claim = float(mechanism.privacy_spent_rdp(1)[0])
        return wild.Lead(name, claim, game, method="gdp", **options)  # type: ignore[arg-type]

    typical = "noise multiplier z·C/√n"
    return [
        lead("average of 10 clients, C = 1", 10, defect=True, note=typical),
        lead(
            "average of 100 clients, C = 1",
            100,
            defect=True,
            note=typical,
            most=1000,
        ),
        lead(
            "average of 10 clients, C = 0.1", 10, 0.1, defect=True, note=typical
        ),
        lead("1 client, C = 0.25", 1, 0.25, defect=True, note="noise z·C·C"),
        lead(
            "1 client, C = 1, 8 arrays clipped",
            1,
            layers=8,
            defect=True,
            note="clip each layer",
        ),
        lead("1 client, C = 1", 1),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("secretflow", leads, observations=12_000))
