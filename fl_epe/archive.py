"""NumPy archives that can be trusted: written with checksums, read without surprises.

Records, checkpoints and scores are ``.npz`` files, which any tool reads: a ZIP of ``.npy`` arrays,
some of which are JSON texts as bytes. `write_archive` adds a member ``checksums``, a JSON text with
the SHA-256 of every other member and one of that list itself. `read_archive` is the only reader: a
file that is damaged, cut off, edited or built to fill the memory is refused in one line, as an
`UnreadableFileError` that names the file and the member.

A reader never allocates more than the members can really hold, and never more than
`size_limit` bytes for a file; the environment variable ``FL_EPE_READ_LIMIT`` (in MiB) raises that.

Examples:
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "some.npz")
    >>> write_archive(path, {"x": np.arange(3)}, {"about": {"schema": 2}})
    >>> archive = read_archive(path, "some numbers")
    >>> archive.text("about"), archive.array("x").tolist(), archive.has_checksums
    ({'schema': 2}, [0, 1, 2], True)
    >>> _ = path.write_bytes(path.read_bytes()[:-1])
    >>> try:
    ...     read_archive(path, "some numbers")
    ... except UnreadableFileError as error:
    ...     print(str(error).partition(" to be ")[2])
    some numbers: File is not a zip file. It is damaged: take the original, or make it again.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import lzma
import math
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.files import printable, whole_file

logger = logging.getLogger(__name__)

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
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a file raises if it is something else, or damaged."""

_FREE = 256 << 20
_RATIO = 32
_DEFLATE = 1032  # no more bytes than that come out of one that is deflated
_BLOCK = 1 << 20
_KINDS = "biufU"
_CHARACTERS = 0x110000
_MEND = "take the original, or make it again"


class UnreadableFileError(ValueError):
    """A file that is not what it should be; the text is one line with the file and the reason."""


class _TooLargeError(ValueError):
    """A file that may be sound, but takes more memory than it may."""

    def __init__(self, size: int, limit: int) -> None:
        mebibytes = (size >> 20) + 1
        super().__init__(
            f"it takes {mebibytes:,} MiB unpacked, more than the limit of {limit >> 20:,}. "
            f"If you trust it, set {LIMIT_VARIABLE}={mebibytes}"
        )


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
            raise ValueError(f"Expected {LIMIT_VARIABLE}={asked!r} to be a number of MiB >= 1.")
        return int(asked[:12]) << 20
    return max(_FREE, _RATIO * size)


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
    compress: bool = True,
    private: bool = True,
    previous: Path | None = None,
) -> None:
    """Write arrays and JSON values as members of a ``.npz`` with checksums, in one step.

    Args:
        path: where to; replaced if it exists.
        arrays: by name; of numbers or texts, never objects.
        texts: JSON values by name, each a member of its own.
        compress: deflate the members.
        private: for its owner alone (mode 0600).
        previous: where the file goes whose place is taken, see `whole_file`; it is lost by default.
    """
    packing = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    found: dict[str, str] = {}
    with (
        whole_file(path, private=private, previous=previous) as file,
        zipfile.ZipFile(file, "w", packing) as archive,
    ):
        for name, array in arrays.items():
            found[name] = _write_member(archive, name, np.asanyarray(array))
        for name, value in texts.items():
            found[name] = _write_member(archive, name, _as_bytes(value))
        listed = {"algorithm": "sha256", "members": found, "list": _digest_of_list(found)}
        _write_member(archive, CHECKSUMS, _as_bytes(listed))


def _as_bytes(value: Any) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _digest_of_list(members: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(members, sort_keys=True).encode()).hexdigest()


class _Hashing:
    """A stream that hashes what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)


def _write_member(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> str:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        stream = _Hashing(member)
        np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.digest.hexdigest()


class Archive:
    """The members of a file that was read and checked.

    Attributes:
        path: the file.
        what: what it should be, for messages.
        has_checksums: whether it has checksums, which then were right.
    """

    def __init__(
        self, path: Path, what: str, members: dict[str, NDArray[Any]], has_checksums: bool
    ) -> None:
        self.path, self.what = path, what
        self._members = members
        self.has_checksums = has_checksums

    def check_schema(self, schema: object, newest: int) -> None:
        """Raise unless this version of the format can be read; from 2 on it has checksums.

        Raises:
            UnreadableFileError: if it is no version, or the file lacks its checksums.
            ValueError: if it is newer than ``newest``.
        """
        if type(schema) is not int or schema < 1:
            raise refusal(self.path, self.what, f"schema={schema!r:.40} is no version")
        if schema > newest:
            raise ValueError(
                f"Expected schema={schema} of {self.path} <= {newest}: written by a newer fl_epe."
            )
        if self.has_checksums:
            return
        if schema > 1:
            raise refusal(self.path, self.what, "it has no checksums")
        logger.warning(
            "%s is of schema 1, without checksums: take its numbers with care.", self.path
        )

    @property
    def names(self) -> list[str]:
        """Names of the members that are left, without the checksums."""
        return list(self._members)

    def array(self, name: str) -> NDArray[Any]:
        """Take the member ``name`` out; raises `UnreadableFileError` if there is none."""
        if name not in self._members:
            raise refusal(self.path, self.what, f"it has no {name!r}")
        return self._members.pop(name)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Take all members out."""
        found, self._members = self._members, {}
        return found

    def text(self, name: str) -> dict[str, Any]:
        """Take the JSON object ``name`` out; raises `UnreadableFileError` if it is none."""
        found = json_object(bytes_of(self.array(name)))
        if isinstance(found, str):
            raise refusal(self.path, self.what, f"{name!r} {found}")
        return found


def bytes_of(array: NDArray[Any]) -> bytes | None:
    """The bytes of a text that was stored as an array; ``None`` if it is no such array."""
    return array.tobytes() if array.dtype == np.uint8 and array.ndim == 1 else None


def json_object(content: bytes | None) -> dict[str, Any] | str:
    """A JSON object without a key twice, or what is wrong with it."""
    if content is None:
        return "is no text"
    try:
        found = json.loads(content, object_pairs_hook=_pairs)
    except UNREADABLE as error:
        return f"is no JSON ({one_line(error, 80)})"
    return found if isinstance(found, dict) else f"is a {type(found).__name__}, not a JSON object"


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def refusal(path: Path, what: str, reason: object) -> UnreadableFileError:
    """The error for a file that is not ``what`` it should be, with how to mend it."""
    text = one_line(reason).rstrip(".")
    mend = "" if isinstance(reason, _TooLargeError) else f" It is damaged: {_MEND}."
    return UnreadableFileError(f"Expected path={str(path)!r} to be {what}: {text}.{mend}")


def read_archive(path: Path, what: str, only: Collection[str] | None = None) -> Archive:
    """Read a ``.npz`` and check it.

    Args:
        path: the file.
        what: what it should be, for messages: "a record written by …".
        only: names of the members to read; all by default.

    Raises:
        FileNotFoundError: if there is no such file.
        UnreadableFileError: for whatever is wrong with it.
    """
    require_file(path)
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = _members(archive, os.fstat(file.fileno()).st_size)
            listed = _listed(archive, members)
            names = [n for n in members if n != CHECKSUMS and (only is None or n in only)]
            return Archive(
                path, what, _checked(archive, members, names, listed), listed is not None
            )
    except UNREADABLE as error:
        raise refusal(path, what, error) from error


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The members by name, whose sizes are honest and within the limit."""
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in found:
            raise ValueError(f"its member {info.filename[:80]!r} is no array, or is there twice")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name!r} is packed in a way that NumPy does not use")
        most = info.compress_size
        if info.compress_type == zipfile.ZIP_DEFLATED:
            most = _DEFLATE * info.compress_size + _DEFLATE
        if info.compress_size > size or info.file_size > most:
            raise ValueError(f"{name!r} claims {info.file_size} bytes, more than it can hold")
        found[name] = info
    total = sum(info.file_size for info in found.values())
    if total > (limit := size_limit(size)):
        raise _TooLargeError(total, limit)
    return found


def _listed(
    archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]
) -> dict[str, str] | None:
    """The checksums, ``None`` if the file has none (schema 1, or made by NumPy)."""
    if CHECKSUMS not in members:
        return None
    about = json_object(bytes_of(_parsed(_content(archive, members[CHECKSUMS]), CHECKSUMS)))
    if isinstance(about, str):
        raise ValueError(f"{CHECKSUMS!r} {about}")
    listed = about.get("members")
    if not isinstance(listed, dict) or about.get("list") != _digest_of_list(listed):
        raise ValueError(f"{CHECKSUMS!r} is not as it was written")
    if names := sorted(listed.keys() ^ (members.keys() - {CHECKSUMS})):
        how = "is missing" if names[0] in listed else "was added"
        raise ValueError(f"{names[0][:80]!r} {how}")
    return listed


def _checked(
    archive: zipfile.ZipFile,
    members: Mapping[str, zipfile.ZipInfo],
    names: list[str],
    listed: Mapping[str, str] | None,
) -> dict[str, NDArray[Any]]:
    found = {}
    for name in names:
        try:
            content = _content(archive, members[name])
        except UNREADABLE as error:
            raise ValueError(f"{name!r} cannot be unpacked ({one_line(error, 80)})") from error
        if listed is not None and hashlib.sha256(content).hexdigest() != listed[name]:
            raise ValueError(f"{name!r} is not as it was written: its checksum differs")
        found[name] = _parsed(content, name)
    return found


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytearray:
    """All bytes of a member, so that its CRC is checked too."""
    content = bytearray()
    with archive.open(info) as member:
        while block := member.read(_BLOCK):
            content += block
    if len(content) != info.file_size:
        raise ValueError(f"{len(content)} of {info.file_size} bytes")
    return content


def read_npy(path: Path, what: str) -> NDArray[Any]:
    """Read a ``.npy`` file; raises what `read_archive` does."""
    require_file(path)
    try:
        size = path.stat().st_size
        if size > (limit := size_limit(size)):
            raise _TooLargeError(size, limit)
        return _parsed(bytearray(path.read_bytes()), path.name)
    except UNREADABLE as error:
        raise refusal(path, what, error) from error


def _parsed(content: bytearray, name: str) -> NDArray[Any]:
    """The array in the bytes of a ``.npy`` file, whose memory it uses."""
    try:
        shape, columns_first, kind, start = _header(memoryview(content))
    except UNREADABLE as error:
        raise ValueError(f"{name!r} is no array ({one_line(error, 80)})") from error
    if kind.kind not in _KINDS:
        raise ValueError(f"{name!r} holds {one_line(kind, 40)}, neither numbers nor texts")
    count = math.prod(shape)
    if count * kind.itemsize != len(content) - start or (count and not kind.itemsize):
        raise ValueError(
            f"{name!r} claims shape {one_line(shape, 60)}, but holds {len(content) - start} bytes"
        )
    if not count:
        return np.empty(shape, kind)
    if kind.kind == "b" and np.frombuffer(content, np.uint8, count, start).max() > 1:
        raise ValueError(f"{name!r} holds bytes that are neither true nor false")
    flat: NDArray[Any] = np.frombuffer(content, kind, count, start)
    array = flat.reshape(shape[::-1]).T if columns_first else flat.reshape(shape)
    array = np.ascontiguousarray(array, kind.newbyteorder("=")).reshape(shape)
    if kind.kind == "U" and array.view(np.uint32).max() >= _CHARACTERS:
        raise ValueError(f"{name!r} holds what is no text")
    return array


def _header(content: memoryview) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns come first, type, and where the values start."""
    if bytes(content[:6]) != b"\x93NUMPY":
        raise ValueError("its first bytes are not those of NumPy")
    length, at = {1: ("<H", 2), 2: ("<I", 4), 3: ("<I", 4)}[content[6]]
    start = 8 + at + struct.unpack_from(length, content, 8)[0]
    if not 8 + at < start <= min(len(content), 10_000):
        raise ValueError("its header is too long")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python and NumPy, on what is in the text
        header = ast.literal_eval(bytes(content[8 + at : start]).decode("latin-1").strip())
        kind = np.dtype(str(header["descr"]))
    if set(header) != {"descr", "fortran_order", "shape"} or type(header["descr"]) is not str:
        raise ValueError("its header is not that of an array of numbers or texts")
    shape = header["shape"]
    if type(shape) is not tuple or len(shape) > 8 or any(type(n) is not int for n in shape):
        raise ValueError("its shape is no tuple of up to 8 integers")
    if any(not 0 <= n < 2**48 for n in shape) or type(header["fortran_order"]) is not bool:
        raise ValueError("its shape or its order is impossible")
    return shape, header["fortran_order"], kind, start
