"""The only file that touches what Flower does not publish; look here first after its update."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

CLIENT_RAISED = 2
"""Flower's error code for a client app that raised."""


def ensure_task_identity(node_id: int) -> None:
    """Let this process create messages outside a Flower run; inside one, change nothing."""
    from flwr.supercore.task_identity import TaskIdentity

    if getattr(TaskIdentity, "_task_id", None) is None:
        TaskIdentity.task_id = 0
        TaskIdentity.run_id = 0
        TaskIdentity.node_id = node_id


def set_message_id(message: Message, message_id: str) -> None:
    """Number a message, as a SuperLink would."""
    message.metadata.__dict__["_message_id"] = message_id


def with_own_records(message: Message) -> Message:
    """The same message with records of its own, which share no more than the arrays' bytes."""
    records: Any = {name: type(item)(dict(item)) for name, item in message.content.items()}  # type: ignore[arg-type]
    make: Any = Message
    own: Message = make(RecordDict(records), metadata=message.metadata)
    return own


def quiet_flower() -> None:
    """Keep Flower's own log to warnings, and its telemetry and update check off."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    logging.getLogger("flwr").setLevel(logging.WARNING)


def simulate_with_ray(
    server_app: ServerApp, client_app: ClientApp, nodes: int, backend: Mapping[str, Any]
) -> None:
    """Run both apps in Flower's Ray simulation.

    Raises:
        RuntimeError: if Ray is not installed.
    """
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise RuntimeError(
            "backend='ray' needs Ray: install fl-epe with its 'ray' extra, or leave --backend out."
        ) from error
    from flwr.simulation import run_simulation

    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)  # hides only that the entry point is deprecated
    try:
        run_simulation(server_app, client_app, nodes, backend_config=dict(backend))
    finally:
        logger.setLevel(level)
