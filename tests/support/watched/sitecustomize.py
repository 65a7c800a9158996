"""On the path of a child process: every connection that would leave the machine is written down.

The file to write to is named by the variable WATCHED. What leaves is refused, too.
"""

import os
import socket
import sys
from typing import Any

_EVENTS = (
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.sendto",
    "socket.sendmsg",
)
_HERE = ("127.", "::1", "::ffff:127.", "0.0.0.0", "localhost")  # noqa: S104


def _own_address() -> str:
    """What others call this machine; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:  # no network at all
            return "127.0.0.1"
        return str(sock.getsockname()[0])


def _leaves(event: str, details: tuple[Any, ...]) -> str | None:
    """The host that is asked for, unless it is this machine."""
    host: Any = details[0]
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        sock, address = details
        if sock.family == socket.AF_UNIX or not isinstance(address, tuple):
            return None
        host = address[0]
    host = host.decode() if isinstance(host, bytes) else host
    local = not host or host.startswith(_HERE) or host in _OWN
    return None if local else str(host)


def _watch(event: str, details: tuple[Any, ...]) -> None:
    if event not in _EVENTS:
        return
    host = _leaves(event, details)
    if host is None:
        return
    handle = os.open(
        os.environ["WATCHED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    os.write(handle, f"{event} {host}\n".encode())
    os.close(handle)
    raise OSError(f"{host} is outside this machine")


if "WATCHED" in os.environ:
    _OWN = (socket.gethostname(), _own_address())
    sys.addaudithook(_watch)
