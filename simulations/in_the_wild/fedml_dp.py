"""FedML 0.9.6: two kinds of DP that never add noise, and what is behind them.

    pip install --no-deps --target build/wild/fedml fedml==0.9.6
    PYTHONPATH=build/wild/fedml python simulations/in_the_wild/fedml_dp.py

`enable_dp: true` with `dp_solution_type: nbafl` or `dp_clip` makes an object that clips and adds
noise, and no hook calls it: the server's hooks ask for "cdp", the client's for "ldp". One round
runs here through the hooks of `ClientTrainer` and `ServerAggregator`, as cross-silo training calls
them. The "sp" simulator calls none of these hooks whatever is configured.

If `dp_clip` is called directly, `DP_Clip` passes its clip norm as the order of the norm, and
divides its noise scale by the number of examples again for every array: here it is audited with a
clip norm of 4 (an L4 norm), and with two arrays. `add_global_noise` then returns nothing, so nobody
can have used it. "ldp" adds noise and clips nothing: ``sensitivity`` is the user's word.

The claims: ``epsilon`` of the configuration at its δ of 1e-5; for `dp_clip` ε of its noise
multiplier, of 4.

Expected with `--quick`::

                                                  claimed   proved by       severity
    nbafl, by the hooks                               0.9     5.07 weighted critical
    dp_clip, by the hooks                             0.9     5.07 weighted critical
    cdp, by the hooks                                 0.9        0 weighted none found
    ldp, by the hooks                                 0.9        0 weighted none found

    "DP_Clip, …" are above the claim as well, by more the more arrays and parameters there are.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np

from fl_epe.accounting import gaussian_epsilon
from fl_epe.checks import Floats
from simulations.in_the_wild import wild

DIM, MULTIPLIER = 8, 4.0


def arguments(kind: str, **options: Any) -> Any:
    """A configuration as FedML reads it from its file."""
    values: dict[str, Any] = {
        "enable_dp": True,
        "dp_solution_type": kind,
        "mechanism_type": "gaussian",
        "epsilon": 0.9,
        "delta": wild.DELTA,
        "sensitivity": 1.0,
        "max_grad_norm": 1.0,
        "clipping_norm": 1.0,
        "noise_multiplier": MULTIPLIER,
        "C": 1.0,
        "comm_round": 10,
        "client_num_per_round": 5,
        "client_num_in_total": 5,
        "train_data_num_in_total": 100,
        "federated_optimizer": "FedAvg",
    }
    return SimpleNamespace(**(values | options))


def round_of(kind: str) -> wild.Release:
    """One round by the hooks of FedML's clients and server."""
    import torch
    from fedml.core.alg_frame.client_trainer import ClientTrainer
    from fedml.core.alg_frame.server_aggregator import ServerAggregator

    class Trainer(ClientTrainer):  # type: ignore[misc]
        def get_model_params(self) -> Any:
            return self.model

        def set_model_params(self, model: Any) -> None:
            self.model = model

        def train(self, *_: Any) -> None: ...

    class Aggregator(ServerAggregator):  # type: ignore[misc]
        def get_model_params(self) -> Any: ...

        def set_model_params(self, model: Any) -> None: ...

        def test(self, *_: Any) -> None: ...

    config = arguments(kind)

    def release(updates: Floats) -> Floats:
        server, replies = Aggregator(None, config), []
        for update in updates:
            client = Trainer(OrderedDict(w=torch.tensor(update)), config)
            client.on_after_local_training(None, None, config)
            replies.append((1, client.get_model_params()))
        replies, _ = server.on_before_aggregation(replies)
        model = server.on_after_aggregation(server.aggregate(replies))
        return np.asarray(model["w"], np.float64)

    return release


def direct(clip_norm: float, sizes: tuple[int, ...]) -> wild.Release:
    """`DP_Clip`, called as its methods are written: clients' part, a sum, noise."""
    import torch
    from fedml.core.dp.frames.dp_clip import DP_Clip

    cuts, names = (
        np.cumsum(sizes)[:-1],
        [f"array{i}" for i in range(len(sizes))],
    )
    config = arguments("dp_clip", clipping_norm=clip_norm)

    def arrays(vector: Floats) -> Any:
        return OrderedDict(
            zip(names, map(torch.tensor, np.split(vector, cuts)), strict=True)
        )

    def release(updates: Floats) -> Floats:
        frame, share = DP_Clip(config), 1 / config.train_data_num_in_total
        zeros = arrays(np.zeros(sum(sizes)))
        total = arrays(np.zeros(sum(sizes)))
        for update in updates:
            clipped = frame.add_local_noise(arrays(update), zeros)
            total = OrderedDict(
                (name, total[name] + share * clipped[name]) for name in names
            )
        noisy = frame.add_noise(total, config.train_data_num_in_total)
        return np.concatenate([np.asarray(noisy[name]) for name in names])

    return release


def leads() -> list[wild.Lead]:
    """Both kinds by the hooks, what `DP_Clip` would do, and the kinds that do add noise."""
    wild.skip_init(
        "fedml",
        "fedml.core",
        "fedml.core.alg_frame",
        "fedml.ml",
        "fedml.ml.aggregator",
    )
    wild.placeholders(
        "fedml.core.contribution.contribution_assessor_manager",
        "fedml.core.security.fedml_attacker",
        "fedml.core.security.fedml_defender",
        "fedml.core.fhe.fhe_agg",
    )
    _without_other_features()
    claim, canary = 0.9, np.eye(DIM)[0]
    clip = gaussian_epsilon(MULTIPLIER, wild.DELTA)
    other_updates = 0.1 * np.eye(DIM)[1:5]
    flat = np.ones(1000) / np.sqrt(1000)
    two = np.zeros(2 * DIM)
    two[DIM] = 1.0  # all in the second array

    def by_hooks(kind: str, **options: Any) -> wild.Lead:
        game = wild.played(
            round_of(kind), canary, others=other_updates, adjacency="zero-out"
        )
        return wild.Lead(f"{kind}, by the hooks", claim, game, **options)

    return [
        by_hooks("nbafl", defect=True, note="no noise at all: ε is infinite"),
        by_hooks("dp_clip", defect=True, note="no noise at all: ε is infinite"),
        wild.Lead(
            "DP_Clip, clip norm 4, 1,000 parameters",
            clip,
            wild.played(direct(4.0, (1000,)), 1000 * flat),
            defect=True,
            method="gdp",
            note="only if called directly",
        ),
        wild.Lead(
            "DP_Clip, two arrays",
            clip,
            wild.played(direct(1.0, (DIM, DIM)), two),
            defect=True,
            method="gdp",
            note="only if called directly",
        ),
        by_hooks("cdp", note="for a sensitivity that is the user's word"),
        by_hooks("ldp", note="for a sensitivity that is the user's word"),
    ]


def _without_other_features() -> None:
    """FedML's attacks, defences and encryption, switched off, as they are by default."""
    core = sys.modules

    class Off:
        @classmethod
        def get_instance(cls) -> Off:
            return cls()

        def init(self, _: Any) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: False

    for module, name in (
        ("fedml.core.security.fedml_attacker", "FedMLAttacker"),
        ("fedml.core.security.fedml_defender", "FedMLDefender"),
        ("fedml.core.fhe.fhe_agg", "FedMLFHE"),
    ):
        setattr(core[module], name, Off)
    assessor = type("Assessor", (), {"__init__": lambda self, _: None})
    contribution = core["fedml.core.contribution.contribution_assessor_manager"]
    contribution.ContributionAssessorManager = assessor  # type: ignore[attr-defined]
    core["fedml.core"].Context = object  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(wild.main("fedml", leads))
