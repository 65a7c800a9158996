"""Fed-BioMed 6.4.1: "central" DP with noise for a gradient on a difference of models.

    pip install --no-deps --target build/wild/fedbiomed fedbiomed==6.4.1
    PYTHONPATH=build/wild/fedbiomed python simulations/in_the_wild/fedbiomed_dp.py

With ``dp_args={"type": "central", "sigma": σ, "clip": C}`` a node clips gradients of examples to C
in each step, and adds noise of standard deviation σ·C once, to its model after the round. What that
noise must hide is what one record moved the model by: up to η·C/B in each step with SGD at a rate
of η and batches of B. Neither the rate nor the number of steps nor the batch size enters, so that
it is too much at a small rate, and too little at a large one.

The claim is that of the documentation's recipe, which the library's tutorial uses for record-level
central DP: Opacus's accountant for one step a round, at the sampling rate of a batch. A record is
in a whole round, though, and not only in a share q of it, so that no sampling hides it.

Here 20 records are trained in batches of 2, with SGD at rates of 0.02 and 4, for 20 steps.

Expected with 100 observations::

                                                  claimed   proved by       severity
    central, rate 4                                  1.69     2.21 weighted theoretical
    central, rate 0.02                               1.69        0 weighted none found
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np

from fl_epe.checks import Floats
from simulations.in_the_wild import wild

DIM, RECORDS, BATCH, STEPS, SIGMA, CLIP = 8, 20, 2, 20, 1.0, 1.0


def leads() -> list[wild.Lead]:
    """One round of a node at two rates, at the recipe's ε."""
    import torch
    from opacus.accountants import PRVAccountant

    wild.skip_init("fedbiomed", "fedbiomed.common")
    sys.modules["fedbiomed"].__version__ = "6.4.1"  # type: ignore[attr-defined]
    wild.placeholders(
        "fedbiomed.common.optimizers",
        "fedbiomed.common.optimizers.generic_optimizers",
    )
    from fedbiomed.common.privacy import DPController

    def node(rate: float) -> wild.Release:
        def release(updates: Floats) -> Floats:
            model = torch.nn.Linear(DIM, 1, bias=False)
            torch.nn.init.zeros_(model.weight)
            data = torch.utils.data.TensorDataset(
                torch.tensor(updates, dtype=torch.float32)
            )
            loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
            controller = DPController(
                {"type": "central", "sigma": SIGMA, "clip": CLIP}
            )
            holder = SimpleNamespace(
                _model=SimpleNamespace(model=model),
                optimizer=torch.optim.SGD(model.parameters(), lr=rate),
            )
            holder, loader = controller.before_training(holder, loader)
            steps = 0
            while steps < STEPS:
                for (records,) in loader:
                    holder.optimizer.zero_grad()
                    (
                        holder._model.model(records).sum()
                        / max(len(records), 1)
                    ).backward()
                    holder.optimizer.step()
                    steps += 1
                    if steps == STEPS:
                        break
            released = controller.after_training(
                dict(holder._model.model.state_dict())
            )
            return -np.asarray(released["weight"][0], np.float64)

        return release

    accountant = PRVAccountant()
    accountant.step(noise_multiplier=SIGMA, sample_rate=BATCH / RECORDS)
    claim, canary = (
        float(accountant.get_epsilon(wild.DELTA)),
        5 * np.eye(DIM)[0],
    )
    other_updates = 0.1 * np.eye(DIM)[1 + np.arange(RECORDS - 1) % (DIM - 1)]

    def lead(rate: float, **options: object) -> wild.Lead:
        game = wild.played(
            node(rate), canary, others=other_updates, adjacency="zero-out"
        )
        title = f"central, rate {rate:g}"
        return wild.Lead(title, claim, game, most=1000, **options)  # type: ignore[arg-type]

    return [
        lead(4.0, defect=True, note="20 steps a round"),
        lead(0.02, note="20 steps a round"),
    ]


if __name__ == "__main__":
    sys.exit(wild.main("fedbiomed", leads))
