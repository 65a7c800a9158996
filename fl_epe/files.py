r"""Writes files completely and through no link, and prints text of other parties safely.

A file is first written as ``NAME.0123abcd.fl-epe-part`` with eight random digits, and replaces
``NAME`` at the end. Only files with such names are ever removed.

Examples:
    >>> printable("\x1b[2J\x1b[HA client says: ε ≈ 0")
    '\\u001b[2J\\u001b[HA client says: ε ≈ 0'
"""

import contextlib
import errno
import json
import os
import re
import secrets
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fl_epe.checks import ArgumentError

# The end of a file's name while it is being written.
PART = ".fl-epe-part"

# The file in the folder of a finished run.
RECORD = "record.npz"

# The file in the folder of an unfinished run.
CHECKPOINT = "checkpoint.npz"

# The file in a folder while a process works in it, with the number of the process.
LOCK = "fl-epe.lock"

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_OURS = re.compile(rf".+\.[0-9a-f]{{8}}{re.escape(PART)}")


def printable(text: str) -> str:
    """The text with an escape for every character that moves the cursor or reverses the text.

    Line breaks stay. Escapes are those of JSON, so that the values of a JSON text do not change.
    """
    if text.isprintable():
        return text
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    is_space = unicodedata.category(character) == "Zs"
    if character.isprintable() or character == "\n" or is_space:
        return character
    if character.isspace():
        return " "
    return json.dumps(character)[1:-1]


def on_one_line(text: str) -> str:
    """The text as `printable` writes it, without line breaks."""
    return " ".join(printable(text).splitlines())


def run_folder(name: str) -> Path:
    """``runs/NAME-DATE-TIME``, the default folder of a run."""
    return Path("runs", time.strftime(f"{name}-%Y%m%d-%H%M%S"))


def part_of(path: Path) -> Path:
    """A new temporary name beside ``path``."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")


def remove_parts(folder: Path) -> None:
    """Remove the incomplete files that killed processes of this package left in a folder."""
    for path in folder.glob(f"*{PART}"):
        if (
            _OURS.fullmatch(path.name)
            and path.is_file()
            and not path.is_symlink()
        ):
            path.unlink(missing_ok=True)


def inside(folder: Path, path: Path) -> Path:
    """``path``, a file or folder in ``folder``.

    Raises:
        ValueError: if ``path`` leads out of the folder, as the sender of a folder must not
            choose other files to read or write.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"Expected {path} to be in the folder {folder}, but it leads out of it, to "
            f"{path.resolve()}. Name that itself, or copy it to there."
        )
    return path


def record_in(folder: Path) -> Path:
    """The path of the record in a run's folder, which need not exist; see `inside`."""
    return inside(folder, folder / RECORD)


def no_link(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file without following a link and without waiting for a pipe.

    A file with other names (hard links) is read, but not written to. This function is for
    ``opener=`` of `open`, with a mode that does not truncate.
    """
    special = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags | special, mode)
    if flags & (os.O_WRONLY | os.O_RDWR) and os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(
            errno.EMLINK,
            "It has other names, which would be written to as well",
            path,
        )
    return descriptor


def lock_of(path: Path) -> Any:
    """A `filelock.FileLock` that is not acquired yet, on a file that is created if missing.

    Raises:
        OSError: if the file is a link or has other names, or if it cannot be written.
    """
    import filelock

    os.close(no_link(str(path), os.O_WRONLY | os.O_CREAT, 0o600))
    return filelock.FileLock(path, mode=0o600)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Exclude other processes from ``directory``, which is created if it is missing.

    The kernel releases the lock at the end of the process, even if it is killed. On file
    systems without locks, other processes are not excluded.

    Raises:
        ArgumentError: if another process works in the directory; the message has its number.
        OSError: if the lock's file is a link or has other names, or cannot be written.
    """
    import filelock

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOCK
    lock = lock_of(path)
    try:
        lock.acquire(blocking=False)
        path.write_text(str(os.getpid()))
    except filelock.Timeout:
        owner = path.read_text(errors="replace")[:20].strip() or "another one"
        raise ArgumentError(
            f"Expected {{directory}} to be free: process {owner} is at work in it. Wait until it "
            "is done, or stop it.",
            directory=str(directory),
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def whole_file(
    path: Path, *, private: bool, previous: Path | None = None
) -> Iterator[BinaryIO]:
    """A file to write to, which replaces ``path`` at the end in one step.

    After an error, the old file is unchanged. A link is replaced, not the file that it points
    to. The content is on the disk before the file gets its name, so that a loss of power leaves
    a complete file.

    Args:
        path: the final path; its folder is created if it is missing.
        private: whether only the owner can read the file (mode 0600).
        previous: a path to which the old file is moved, if there is one. At every moment there
            is a complete file at ``path`` or ``previous``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    mode = 0o600 if private else 0o666
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
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


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> Path:
    """Write a file in one step, readable by all users or only by its owner; return ``path``."""
    with whole_file(path, private=private) as file:
        file.write(content)
    return path


def write_json(path: Path, values: Any) -> Path:
    """Write JSON values as `write_text` does."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
    return write_text(path, text + "\n")


def write_text(path: Path, text: str, *, private: bool = False) -> Path:
    """Write the `printable` form of a text as `write_bytes` does; return ``path``."""
    lines = [printable(line) for line in text.split("\n")]
    return write_bytes(path, "\n".join(lines).encode(), private=private)
