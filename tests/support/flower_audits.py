"""Audits of Flower's strategies, in process."""

import functools
from typing import Any

import numpy as np
from flower_clients import drifting_app, model
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

from fl_epe import AuditRecord
from fl_epe.flower import CanaryAudit, InProcessGrid

NODES, ROUNDS, CANARIES = 10, 6, 30  # 5 canaries a round
REPLIES = NODES + CANARIES // ROUNDS
PLAIN: dict[str, Any] = {
    "fraction_evaluate": 0.0,
    "min_train_nodes": 2,
    "min_available_nodes": NODES,
}
DELTA = 1e-3


def run(
    strategy: flower.Strategy,
    app: ClientApp | None = None,
    arrays: ArrayRecord | None = None,
    rounds: int = ROUNDS,
    nodes: int = NODES,
    **settings: Any,
) -> tuple[CanaryAudit, flower.Result]:
    """The audit after a whole run, and Flower's own result."""
    # Few clients, and no model that could be harmed.
    settings = {
        "num_canaries": CANARIES,
        "seed": 1,
        "delta": DELTA,
        "max_share": 1,
        **settings,
    }
    audit = CanaryAudit(strategy, **settings)
    np.random.seed(0)  # noqa: NPY002 - Flower's DP noise is the global generator's
    with InProcessGrid(app or drifting_app(), nodes) as grid:
        result = audit.start(
            grid, model() if arrays is None else arrays, num_rounds=rounds
        )
    return audit, result


class KilledError(Exception):
    """Ends a server app where it stands."""


def run_until(
    strategy: flower.Strategy,
    arrays: ArrayRecord,
    rounds: int,
    kill: int | None = None,
    app: ClientApp | None = None,
    **settings: Any,
) -> tuple[CanaryAudit, list[ArrayRecord]]:
    """The audit after a run, and the models before its first round and after each.

    The server app is killed in round ``kill``, after the audit has seen it.
    """
    audit = CanaryAudit(strategy, **settings)
    models = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        models.append(arrays)
        if server_round == kill:
            raise KilledError

    with InProcessGrid(app or drifting_app(), NODES) as grid:
        try:
            audit.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)
        except KilledError:
            assert kill is not None
    return audit, models


@functools.cache
def plain_record() -> AuditRecord:
    """Of FedAvg without DP, for every test that compares with it."""
    return run(flower.FedAvg(**PLAIN))[0].record()


def fixed(
    base: flower.Strategy | None = None,
    z: float = 1.0,
    expected: int = REPLIES,
    **more: Any,
) -> flower.Strategy:
    """Flower's own DP around a strategy: the server clips to 0.1 and adds the noise."""
    base = base or flower.FedAvg(**PLAIN)
    return flower.DifferentialPrivacyServerSideFixedClipping(
        base, z, 0.1, expected, **more
    )
