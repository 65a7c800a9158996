r"""Writes files in one step and not through links, and makes texts of other people printable.

A file is first written as ``NAME.0123abcd.fl-epe-part`` with eight random digits, and replaces
``NAME`` at the end. Files with such names, which a killed process has left, are removed later.

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

# The ending of a file's name while the file is being written.
PART = ".fl-epe-part"

# The file in the folder of a finished run.
RECORD = "record.npz"

# The file in the folder of an unfinished run.
CHECKPOINT = "checkpoint.npz"

# The file in a folder while a process works there; it has the number of the process.
LOCK = "fl-epe.lock"

# Error numbers of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_PART_NAME = re.compile(rf".+\.[0-9a-f]{{8}}{re.escape(PART)}")


def printable(text: str) -> str:
    """The text with an escape for each character that is not printable.

    So it cannot move a terminal's cursor or reverse the text. Line breaks stay. Escapes are those
    of JSON, so a JSON text keeps its values.
    """
    if text.isprintable():
        return text
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    """The character, a space for a tab or the like, or an escape."""
    # Python counts only the plain space as printable.
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
    """A new temporary path beside ``path``."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")


def remove_parts(folder: Path) -> None:
    """Remove the incomplete files that killed processes of this package left in a folder."""
    for path in folder.glob(f"*{PART}"):
        if (
            _PART_NAME.fullmatch(path.name)
            and path.is_file()
            and not path.is_symlink()
        ):
            path.unlink(missing_ok=True)


def inside(folder: Path, path: Path) -> Path:
    """Check that ``path`` is in ``folder`` after following links, and return it.

    Otherwise the sender of a folder could choose files outside of it to be read or written.

    Raises:
        ValueError: if ``path`` leads out of the folder.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"Expected {path} to be in the folder {folder}, but it leads out of it, to "
            f"{path.resolve()}. Name that path itself, or copy it into the folder."
        )
    return path


def record_in(folder: Path) -> Path:
    """The path of the record in a run's folder, which need not exist; it may raise as `inside`."""
    return inside(folder, folder / RECORD)


def open_no_link(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file without following a link and without waiting for a pipe.

    A file with other names (hard links) can be read, but not written to. This function is the
    ``opener`` of `open`, with a mode that does not truncate the file.
    """
    # Windows has neither flag.
    no_link_or_pipe = getattr(os, "O_NOFOLLOW", 0) | getattr(
        os, "O_NONBLOCK", 0
    )
    descriptor = os.open(path, flags | no_link_or_pipe, mode)
    if flags & (os.O_WRONLY | os.O_RDWR) and os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(
            errno.EMLINK,
            "It has other names (hard links), which would be changed as well",
            path,
        )
    return descriptor


def lock_of(path: Path) -> Any:
    """A `filelock.FileLock` on a file, which is created if it is missing. It is not acquired yet.

    Raises:
        OSError: if the file is a link or has other names, or if it cannot be written.
    """
    import filelock

    os.close(open_no_link(str(path), os.O_WRONLY | os.O_CREAT, 0o600))
    return filelock.FileLock(path, mode=0o600)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """In this context, no other process may lock ``directory``, which is created if missing.

    The kernel releases the lock at the end of the process, even if it is killed. On file
    systems without locks, other processes are not excluded.

    Raises:
        ArgumentError: if another process has locked the directory; the message has its number.
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
        # The number of the process, which has not written it yet if the file is empty.
        owner = path.read_text(errors="replace")[:20].strip() or "another one"
        raise ArgumentError(
            f"Expected {{directory}} to be free: process {owner} is at work in it. Wait until it "
            "is done, or stop it.",
            directory=directory,
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
    """Open a temporary file for writing; at the end of the context it replaces ``path``.

    After an error, the old file is unchanged. A link is replaced, not the file that it points
    to. The content is on the disk before the file gets its name, so a loss of power leaves a
    complete file.

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
    """Write a file in one step, see `whole_file`; return ``path``."""
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
