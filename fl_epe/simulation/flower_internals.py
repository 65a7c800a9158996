"""The parts of the simulation that use private parts of Flower; check them after its updates."""

import importlib.util
import logging
import os
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fl_epe.messages import NUMPY, DecodedArray

CLIENT_RAISED = 2
"""Flower's error code for a client app that raised an exception."""


def ensure_task_identity(node_id: int) -> None:
    """Let this process create messages outside of a Flower run; inside a run, do nothing."""
    from flwr.supercore.task_identity import TaskIdentity

    if getattr(TaskIdentity, "_task_id", None) is None:
        TaskIdentity.task_id = 0
        TaskIdentity.run_id = 0
        TaskIdentity.node_id = node_id


def set_message_id(message: Message, message_id: str) -> None:
    """Set the id of a message, as a SuperLink would."""
    message.metadata.__dict__["_message_id"] = message_id


def with_own_records(
    message: Message, decoded: dict[int, DecodedArray]
) -> Message:
    """A copy of the message with copies of its records, and with decoded arrays.

    Args:
        message: the original message, which is not changed.
        decoded: decoded arrays by the ``id`` of the original ones; newly decoded ones are
            added.
    """
    records: dict[str, Any] = {}
    for name, item in message.content.items():
        # The constructor of ArrayRecord would copy the arrays, so the record starts empty.
        records[name] = type(item)()
        for key, value in item.items():
            if isinstance(value, Array):
                value = _decoded(value, decoded)
            records[name][key] = value
    make: Any = Message
    copy: Message = make(RecordDict(records), metadata=message.metadata)
    return copy


def _decoded(array: Array, decoded: dict[int, DecodedArray]) -> Array:
    """The array in decoded form; it is not decoded twice."""
    if isinstance(array, DecodedArray) or array.stype != NUMPY:
        return array
    if id(array) not in decoded:
        decoded[id(array)] = DecodedArray(array)
    return decoded[id(array)]


def quiet_flower() -> None:
    """Limit Flower's log to warnings, and turn its telemetry and update check off.

    Variables that the user's environment sets are not changed.
    """
    if "FLWR_TELEMETRY_ENABLED" not in os.environ:
        from flwr.supercore import telemetry

        # Flower has read the variable already, when this process imported it. Other processes of
        # the run will still import it.
        telemetry.FLWR_TELEMETRY_ENABLED = "0"
        os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("flwr").setLevel(logging.WARNING)


def simulate_with_ray(
    server_app: ServerApp,
    client_app: ClientApp,
    nodes: int,
    backend: Mapping[str, Any],
) -> None:
    """Run both apps in Flower's Ray simulation.

    Raises:
        RuntimeError: if Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise RuntimeError(
            "backend='ray' needs Ray: install fl-epe with its 'ray' extra, or leave --backend out."
        )
    from flwr.simulation import run_simulation

    quiet_flower()
    logger = logging.getLogger("flwr")
    # Hide the warning that the entry point is deprecated.
    logger.setLevel(logging.ERROR)
    try:
        run_simulation(
            server_app, client_app, nodes, backend_config=dict(backend)
        )
    finally:
        logger.setLevel(logging.WARNING)
