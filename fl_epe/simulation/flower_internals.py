"""The only file that uses what Flower does not publish; look here first after its update."""

import importlib.util
import logging
import os
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fl_epe.messages import DecodedArray

# Flower's error code for a client app that raised.
CLIENT_RAISED = 2


def ensure_task_identity(node_id: int) -> None:
    """Let this process create messages outside a Flower run; inside a run, change nothing."""
    from flwr.supercore.task_identity import TaskIdentity

    if getattr(TaskIdentity, "_task_id", None) is None:
        TaskIdentity.task_id = 0
        TaskIdentity.run_id = 0
        TaskIdentity.node_id = node_id


def set_message_id(message: Message, message_id: str) -> None:
    """Number a message, as a SuperLink would."""
    message.metadata.__dict__["_message_id"] = message_id


def with_own_records(
    message: Message, decoded: dict[int, DecodedArray]
) -> Message:
    """A copy of the message with copies of its records, and its arrays decoded.

    Args:
        message: the original, which is not changed.
        decoded: arrays that are decoded already, by the id of the original; more are added.
    """
    records: dict[str, Any] = {}
    for name, item in message.content.items():
        records[name] = type(item)()  # an ArrayRecord copies what it is made of
        for key, value in item.items():
            if isinstance(value, Array) and value.stype == "numpy.ndarray":
                if (
                    not isinstance(value, DecodedArray)
                    and id(value) not in decoded
                ):
                    decoded[id(value)] = DecodedArray(value)
                value = decoded.get(id(value), value)
            records[name][key] = value
    make: Any = Message
    copy: Message = make(RecordDict(records), metadata=message.metadata)
    return copy


def quiet_flower() -> None:
    """Keep Flower's own log to warnings, and its telemetry and update check off.

    The user's environment may say otherwise. Flower reads the first variable when it is imported,
    which was before; other processes of the run are yet to import it.
    """
    if "FLWR_TELEMETRY_ENABLED" not in os.environ:
        from flwr.supercore import telemetry

        telemetry.FLWR_TELEMETRY_ENABLED = os.environ[
            "FLWR_TELEMETRY_ENABLED"
        ] = "0"
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
    logger.setLevel(logging.ERROR)  # hides that the entry point is deprecated
    try:
        run_simulation(
            server_app, client_app, nodes, backend_config=dict(backend)
        )
    finally:
        logger.setLevel(logging.WARNING)
