"""NumPy archives that can be trusted: written with checksums, read without surprises.

Records, checkpoints and scores are ``.npz`` files, which any tool reads: a ZIP of ``.npy`` arrays,
some of which are JSON texts as bytes. `write_archive` adds a member ``checksums``, a JSON text with
the schema of the file and the SHA-256 of every other member. `read_archive` is the only reader: a
file that is damaged, cut off, edited or built to fill the memory is refused in one line, as an
`UnreadableFileError` that names the file and the member.

A reader never allocates more than the members can really hold, and never more than
`size_limit` bytes for a file; the environment variable ``FL_EPE_READ_LIMIT`` (in MiB) raises that.

Examples:
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "some.npz")
    >>> write_archive(path, {"x": np.arange(3)}, {"about": {"seed": 2}}, schema=1)
    >>> read_archive(path, "some numbers", schema=1, texts=("about",))
    ([{'seed': 2}], {'x': array([0, 1, 2])})
    >>> _ = path.write_bytes(path.read_bytes()[:-1])
    >>> try:
    ...     read_archive(path, "some numbers")
    ... except UnreadableFileError as error:
    ...     print(str(error).partition(" to be ")[2])
    some numbers: File is not a zip file. It is damaged: take the original, or make it again.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import lzma
import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fl_epe.checks import raise_invalid
from fl_epe.files import printable, whole_file

LIMIT_VARIABLE = "FL_EPE_READ_LIMIT"
"""Environment variable: most MiB that a file may unpack to."""

CHECKSUMS = "checksums"

UNREADABLE = (
    ArithmeticError,  # an integer of 400 digits as a float, for one
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,  # a damaged header may claim any size
    OSError,
    RuntimeError,  # encrypted, or packed in a way that is not known, or nested too deeply
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,  # NumPy, on a header that is no Python
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a file raises if it is something else, or damaged."""

_FREE = 256 << 20
_RATIO = 32
_DEFLATE = 1032  # no more bytes than that come out of one that is deflated
_BLOCK = 1 << 20
_KINDS = "biufU"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_CHARACTERS = 0x110000


class UnreadableFileError(ValueError):
    """A file that is not what it should be; the text is one line with the file and the reason."""


class TooLargeError(ValueError):
    """A file that may be sound, but takes more memory than it may."""


def one_line(error: object, most: int = 300) -> str:
    """The text of an error on one `printable` line of at most ``most`` characters, or its type."""
    text = printable(" ".join(str(error)[: 4 * most].split())) or type(error).__name__
    return text if len(text) <= most else text[: most - 1] + "…"


def size_limit(size: int) -> int:
    """Most bytes that a file of ``size`` bytes may unpack to: 256 MiB, or 32 times its size.

    Raises:
        ValueError: if ``FL_EPE_READ_LIMIT`` is set to something else than a positive number.
    """
    if asked := os.environ.get(LIMIT_VARIABLE):
        if not asked.isdecimal() or not int(asked[:12]):
            raise_invalid(LIMIT_VARIABLE, asked, "to be a number of MiB >= 1")
        return int(asked[:12]) << 20
    return max(_FREE, _RATIO * size)


def check_size(unpacked: int, size: int) -> None:
    """Raise a `TooLargeError` if a file of ``size`` bytes unpacks to more than its `size_limit`."""
    if unpacked > (limit := size_limit(size)):
        mebibytes = (unpacked >> 20) + 1
        raise TooLargeError(
            f"it takes {mebibytes:,} MiB unpacked, more than the limit of {limit >> 20:,}. "
            f"If you trust it, set {LIMIT_VARIABLE}={mebibytes}"
        )


def require_file(path: Path) -> None:
    """Raise unless ``path`` is a regular file: a device or a pipe may have no end.

    Raises:
        FileNotFoundError: if there is nothing.
        UnreadableFileError: if it is a folder or anything else.
    """
    if not path.exists():
        raise FileNotFoundError(f"Expected path={str(path)!r} to exist.")
    if not path.is_file():
        raise UnreadableFileError(f"Expected path={str(path)!r} to be a file.")


def write_archive(
    path: Path,
    arrays: Mapping[str, NDArray[Any]],
    texts: Mapping[str, Any],
    *,
    schema: int,
    compress: bool = True,
    private: bool = True,
    previous: Path | None = None,
) -> None:
    """Write arrays and JSON values as members of a ``.npz`` with checksums, in one step.

    Args:
        path: where to; replaced if it exists.
        arrays: by name; of numbers or texts, never objects.
        texts: JSON values by name, each a member of its own.
        schema: version of what the members mean, see `read_archive`.
        compress: deflate the members.
        private: for its owner alone (mode 0600).
        previous: where the file goes whose place is taken, see `whole_file`; it is lost by default.
    """
    packing = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with (
        whole_file(path, private=private, previous=previous) as file,
        zipfile.ZipFile(file, "w", packing) as archive,
    ):
        found = {name: _write(archive, name, array) for name, array in arrays.items()}
        found |= {name: _write(archive, name, _as_bytes(value)) for name, value in texts.items()}
        _write(archive, CHECKSUMS, _as_bytes({"schema": schema, "sha256": found}))


def _write(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> str:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        member.write(content.getbuffer())
    return hashlib.sha256(content.getbuffer()).hexdigest()


def _as_bytes(value: Any) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _text(array: NDArray[Any], name: str) -> dict[str, Any]:
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ValueError(f"{name!r} is no text")
    return json_object(array.tobytes(), repr(name))


def json_object(content: bytes, name: str) -> dict[str, Any]:
    """A JSON object in which no key is twice.

    Raises:
        ValueError: if it is something else.
    """
    try:
        found = json.loads(content, object_pairs_hook=_pairs)
    except UNREADABLE as error:
        raise ValueError(f"{name} is no JSON ({one_line(error, 80)})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} is a {type(found).__name__}, not a JSON object")
    return found


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate key")
    return found


def refusal(path: Path, what: str, reason: object) -> UnreadableFileError:
    """The error for a file that is not ``what`` it should be, with how to fix it."""
    fix = (
        ""
        if isinstance(reason, TooLargeError)
        else " It is damaged: take the original, or make it again."
    )
    return UnreadableFileError(
        f"Expected path={str(path)!r} to be {what}: {one_line(reason).rstrip('.')}.{fix}"
    )


def read_archive(
    path: Path,
    what: str,
    *,
    schema: int | None = None,
    texts: Collection[str] = (),
    texts_only: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    """The JSON objects and the arrays in a ``.npz``, all of which is checked.

    Args:
        path: the file.
        what: what it should be, for messages: "a record written by …".
        schema: that of `write_archive`; a file with another one, or without, is refused. By default
            any file is read, and its checksums are checked if it has some.
        texts: names of the members that are JSON objects, each of which there must be.
        texts_only: leave the arrays out.

    Raises:
        FileNotFoundError: if there is no such file.
        UnreadableFileError: for whatever is wrong with it.
    """
    require_file(path)
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = _members(archive, os.fstat(file.fileno()).st_size)
            sums = _checksums(archive, members, schema)
            members.pop(CHECKSUMS, None)
            if missing := [name for name in texts if name not in members]:
                raise ValueError(f"it has no {missing[0]!r}")
            arrays = {}
            for name in texts if texts_only else members:
                content = _content(archive, members[name])
                if sums and hashlib.sha256(content).hexdigest() != sums[name]:
                    raise ValueError(f"{name!r} is not as it was written: its checksum differs")
                arrays[name] = _array(content, name)
            return [_text(arrays.pop(name), name) for name in texts], arrays
    except UNREADABLE as error:
        raise refusal(path, what, error) from error


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members by name, whose sizes are honest and within the limit."""
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in found:
            raise ValueError(f"its member {info.filename[:80]!r} is no array, or is a duplicate")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name!r} is packed in a way that NumPy does not use")
        most = info.compress_size
        if info.compress_type == zipfile.ZIP_DEFLATED:
            most = _DEFLATE * info.compress_size + _DEFLATE
        if info.compress_size > size or info.file_size > most:
            raise ValueError(f"{name!r} claims {info.file_size} bytes, more than it can hold")
        found[name] = info
    check_size(sum(info.file_size for info in found.values()), size)
    return found


def _checksums(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], schema: int | None
) -> dict[str, str] | None:
    """Checksums by member; ``None`` in a file that NumPy made, where any is read."""
    if CHECKSUMS not in members:
        if schema is None:
            return None
        raise ValueError("it has no checksums")
    about = _text(_array(_content(archive, members[CHECKSUMS]), CHECKSUMS), CHECKSUMS)
    if schema is not None and about.get("schema") != schema:
        found = repr(about.get("schema"))[:40]
        raise ValueError(f"it is of schema={found}, and this version of fl_epe reads {schema}")
    sums = about.get("sha256")
    if not isinstance(sums, dict):
        raise ValueError(f"{CHECKSUMS!r} has no sums")
    if names := sorted(sums.keys() ^ (members.keys() - {CHECKSUMS})):
        how = "is missing" if names[0] in sums else "was added"
        raise ValueError(f"{names[0][:80]!r} {how}")
    return sums


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """All bytes of a member, so that its CRC is checked too, and never more than it claims."""
    try:
        with archive.open(info) as member:
            content = b"".join(iter(functools.partial(member.read, _BLOCK), b""))
    except UNREADABLE as error:
        name = info.filename.removesuffix(".npy")
        raise ValueError(f"{name!r} cannot be unpacked ({one_line(error, 80)})") from error
    if len(content) != info.file_size:
        raise ValueError(f"{info.filename!r} has {len(content)} of {info.file_size} bytes")
    return content


def read_npy(path: Path, what: str) -> NDArray[Any]:
    """Read a ``.npy`` file; raises what `read_archive` does."""
    require_file(path)
    try:
        check_size(path.stat().st_size, path.stat().st_size)
        return _array(path.read_bytes(), path.name)
    except UNREADABLE as error:
        raise refusal(path, what, error) from error


def _array(content: bytes, name: str) -> NDArray[Any]:
    """The array in the bytes of a ``.npy`` file, which hold as much as its header claims."""
    stream = io.BytesIO(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python and NumPy, on what is in the header
            shape, _, kind = _HEADERS[npy.read_magic(stream)](stream)
    except UNREADABLE as error:
        raise ValueError(f"{name!r} is no array ({one_line(error, 80)})") from error
    if kind.kind not in _KINDS:
        raise ValueError(f"{name!r} holds {one_line(kind, 40)}, neither numbers nor texts")
    count, held = math.prod(shape), len(content) - stream.tell()
    if min(shape, default=0) < 0 or count * kind.itemsize != held or (count and not held):
        raise ValueError(f"{name!r} claims shape {one_line(shape, 60)}, but holds {held} bytes")
    array = np.load(io.BytesIO(content), allow_pickle=False)
    if kind.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        raise ValueError(f"{name!r} holds bytes that are neither true nor false")
    array = np.asarray(array, kind.newbyteorder("="), order="C")
    if kind.kind == "U" and count and array.reshape(-1).view(np.uint32).max() >= _CHARACTERS:
        raise ValueError(f"{name!r} holds what is no text")
    return array
