r"""Files that are written whole and through no link, and text from outside that is harmless.

A file is first written under a name of its own, ``NAME.0123abcd.fl-epe-part`` with eight random
digits, and takes the place of ``NAME`` at the end. Nothing else is ever removed: a file that ends
otherwise is not ours.

Examples:
    >>> printable("\x1b[2J\x1b[HA client says: ε ≈ 0")
    '\\u001b[2J\\u001b[HA client says: ε ≈ 0'
"""

import contextlib
import json
import os
import re
import secrets
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

# How the name of a file ends while it is being written.
PART = ".fl-epe-part"

# The file in a run's folder that says that the run is finished.
RECORD = "record.npz"

# The file in a run's folder while the run is under way.
CHECKPOINT = "checkpoint.npz"

_OURS = re.compile(rf".+\.[0-9a-f]{{8}}{re.escape(PART)}")


def printable(text: str) -> str:
    """The text with every character that would move a cursor or turn the text written out.

    Lines stay lines. What is written out is so as in JSON, so that JSON stays the same JSON.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" or unicodedata.category(c) == "Zs"
        else " " if c.isspace() else json.dumps(c)[1:-1]
        for c in text
    )  # fmt: skip


def run_folder(name: str) -> Path:
    """``runs/NAME-DATE-TIME``, where a run is kept by default."""
    return Path("runs", time.strftime(f"{name}-%Y%m%d-%H%M%S"))


def part_of(path: Path) -> Path:
    """A new name of ours beside ``path``."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")


def remove_parts(folder: Path) -> None:
    """Remove the files in a folder that killed processes of ours left half-written."""
    for path in folder.glob(f"*{PART}"):
        if _OURS.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


def no_link(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file, but neither where a link points nor one to wait for, as a pipe.

    For ``opener=`` of `open`.
    """
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, flags, mode)


@contextlib.contextmanager
def whole_file(path: Path, *, private: bool, previous: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of ``path`` at the end, in one step.

    An error leaves what was there. If that is a link, the link is replaced, not what it points to.
    The content is on the disk before it has its name, so that a loss of power leaves a whole file.

    Args:
        path: where the file goes; its folder is made if it is missing.
        private: for its owner alone (mode 0600).
        previous: a path for the file whose place is taken, if there is one. At every moment there
            is a whole file under ``path`` or ``previous``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            path.replace(previous)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file in one step, for everybody to read; returns ``path``."""
    with whole_file(path, private=False) as file:
        file.write(content)
    return path


def write_json(path: Path, values: Any) -> Path:
    """Write JSON values as `write_text` does."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    return write_text(path, text + "\n")


def write_text(path: Path, text: str) -> Path:
    """Write a text in one step, as `printable` writes it; returns ``path``."""
    return write_bytes(path, "\n".join(map(printable, text.split("\n"))).encode())
