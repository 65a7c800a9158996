"""NumPy archives with checksums, and a reader that is safe for files of other people.

Records, checkpoints and scores are ``.npz`` files, which NumPy can read: a ZIP of ``.npy`` arrays,
some of which are JSON texts as bytes. `write_archive` adds a member ``checksums``, a JSON text with
the schema of the file and the SHA-256 of every other member. The package reads ``.npz`` files only
with `read_archive`. For a file that is damaged, cut off, edited or made to fill the memory, it
raises an `UnreadableFileError`, whose text is one line with the file and the reason.

A file may unpack to 256 MiB, or to 32 times its size if that is more. The environment variable
``FL_EPE_READ_LIMIT`` (in MiB) sets another limit.

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
    some numbers: File is not a zip file.
"""

import hashlib
import io
import json
import lzma
import os
import struct
import tokenize
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fl_epe.checks import NamedArrays, Vector, raise_invalid
from fl_epe.files import printable, whole_file

# Environment variable: the largest MiB that a file may unpack to.
LIMIT_VARIABLE = "FL_EPE_READ_LIMIT"

# Errors in reading a file that is damaged, or of another kind.
UNREADABLE = (
    ArithmeticError,  # for example an integer of 400 digits as a float
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,  # a damaged header may claim any size
    OSError,
    RuntimeError,  # an encrypted file, an unknown compression, or JSON nested too deeply
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,  # by NumPy, for a header that is not a literal of Python
    zipfile.BadZipFile,
    zlib.error,
)

_CHECKSUMS = "checksums"
_MIN_LIMIT = 256 << 20  # bytes to which a file of any size may unpack
_MAX_RATIO = 32  # multiple of its size to which a larger file may unpack
_KINDS = "biufU"  # kinds of NumPy's types that may be read: numbers and texts
# An array with more bytes is written as ZIP64. Without it, `zipfile` refuses a member of 2 GiB, and
# what cannot be compressed gets larger.
_MAX_ZIP32 = 1 << 30


class UnreadableFileError(ValueError):
    """A file cannot be read; the text is one line with the file and the reason."""


def one_line(error: object, max_length: int = 300) -> str:
    """The text of an error as one `printable` line; the error's type if it has no text."""
    # The text may be huge; only its beginning is processed.
    words = str(error)[: 4 * max_length].split()
    text = printable(" ".join(words)) or type(error).__name__
    if len(text) <= max_length:
        return text
    return text[: max_length - 1] + "…"


def error_text(error: BaseException) -> str:
    """An error's type and text; only its type if converting it to text raises an error."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the class of the error may be a user's
        return type(error).__name__


def place_of(error: BaseException) -> str:
    """File and line where an error was raised, in brackets after a space.

    It is empty for a syntax error, whose text already has file and line, and for an error that was
    never raised.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return ""
    return (
        f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"
    )


def check_size(unpacked: int, size: int, min_limit: int = _MIN_LIMIT) -> None:
    """Check the unpacked size of a file against the limit.

    The limit is 32 times the size of the file, but at least ``min_limit``; or it is set by
    ``FL_EPE_READ_LIMIT``.

    Args:
        unpacked: the unpacked size, in bytes.
        size: the size of the file, in bytes.
        min_limit: the limit for small files, in bytes.

    Raises:
        ValueError: if the unpacked size is above the limit, or if ``FL_EPE_READ_LIMIT`` is no
            number.
    """
    limit = max(min_limit, _MAX_RATIO * size)
    setting = os.environ.get(LIMIT_VARIABLE)
    if setting:
        if not setting.isdecimal():
            raise_invalid(LIMIT_VARIABLE, setting, "to be a number of MiB")
        limit = int(setting) << 20
    if unpacked > limit:
        mebibytes = (unpacked >> 20) + 1
        raise ValueError(
            f"it takes {mebibytes:,} MiB unpacked, more than the limit of {limit >> 20:,}. "
            f"If you trust it, set {LIMIT_VARIABLE}={mebibytes}"
        )


def require_file(path: Path) -> None:
    """Check that ``path`` is a regular file. A device or a pipe may have no end.

    Raises:
        FileNotFoundError: if nothing is there.
        UnreadableFileError: if it is a folder, a device or a pipe.
    """
    if not path.exists():
        raise FileNotFoundError(f"Expected path={str(path)!r} to exist.")
    if not path.is_file():
        raise UnreadableFileError(f"Expected path={str(path)!r} to be a file.")


def write_archive(
    path: Path,
    arrays: NamedArrays,
    texts: Mapping[str, Any],
    *,
    schema: int,
    compress: bool = True,
    private: bool = True,
    previous: Path | None = None,
) -> None:
    """Write arrays and JSON values as members of a ``.npz`` with checksums, in one step.

    Args:
        path: the path of the file, which is replaced if it exists.
        arrays: arrays of numbers or texts by name, never of objects.
        texts: JSON values by name, each in a separate member.
        schema: version of the members' meaning, see `read_archive`.
        compress: whether to deflate the members.
        private: whether only the owner may read the file (mode 0600).
        previous: a path to which the file that is replaced is moved, see `whole_file`; by
            default it is lost.
    """
    packing = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with (
        whole_file(path, private=private, previous=previous) as file,
        zipfile.ZipFile(file, "w", packing) as archive,
    ):
        members = arrays | {
            name: _json_bytes(value) for name, value in texts.items()
        }
        checksums = {
            name: _write_member(archive, name, array)
            for name, array in members.items()
        }
        stored = {"schema": schema, "sha256": checksums}
        _write_member(archive, _CHECKSUMS, _json_bytes(stored))


def _write_member(
    archive: zipfile.ZipFile, name: str, array: np.ndarray
) -> str:
    """Write an array as a member of an archive; return the SHA-256 of the member's bytes."""
    is_large = array.nbytes > _MAX_ZIP32
    with archive.open(f"{name}.npy", "w", force_zip64=is_large) as member:
        content = _HashingFile(member)
        np.save(content, array, allow_pickle=False)
    return content.sha256.hexdigest()


class _HashingFile:
    """A file that computes the checksum of the bytes that are written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return self._file.write(data)


def _json_bytes(value: Any) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def json_object(content: str | bytes, name: str) -> dict[str, Any]:
    """The JSON object in a text.

    Args:
        content: the text.
        name: the text's name in error messages.

    Raises:
        ValueError: if the text is not a JSON object, or if a key is duplicate.
    """
    try:
        value = json.loads(content, object_pairs_hook=_dict_of_pairs)
    except UNREADABLE as error:
        raise ValueError(
            f"{name} is no JSON ({one_line(error, 80)})"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(
            f"{name} is a {type(value).__name__}, not a JSON object"
        )
    return value


def _dict_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("duplicate key")
    return values


def refusal(path: Path, what: str, reason: object) -> UnreadableFileError:
    """The error for a file that is not what was expected.

    Args:
        path: the file.
        what: the expected content, as for `read_archive`.
        reason: why the file is not that.
    """
    return UnreadableFileError(
        f"Expected path={str(path)!r} to be {what}: {one_line(reason).rstrip('.')}."
    )


def read_archive(
    path: Path,
    what: str,
    *,
    schema: int | None = None,
    texts: Collection[str] = (),
) -> tuple[list[dict[str, Any]], NamedArrays]:
    """Read a ``.npz`` and check all its content.

    Args:
        path: the file.
        what: the expected content, for messages: "a record written by …".
        schema: the schema that was given to `write_archive`; a file with another schema, or
            without one, is refused. By default every file is read, and its checksums are verified
            if it has them.
        texts: names of the members that are JSON objects; all of them are required.

    Returns:
        The JSON objects, in the order of ``texts``, and the other members as arrays by name.

    Raises:
        FileNotFoundError: if there is no such file.
        UnreadableFileError: if the file is not valid.
    """
    require_file(path)
    try:
        arrays: NamedArrays = {}
        computed = {}
        for name, content in _members(path):
            arrays[name] = _array(content, name)
            computed[name] = hashlib.sha256(content).hexdigest()
        if _CHECKSUMS in arrays:
            del computed[_CHECKSUMS]
            stored = json_object(arrays.pop(_CHECKSUMS).tobytes(), _CHECKSUMS)
            _check_checksums(stored, computed, schema)
        elif schema is not None:
            raise ValueError("it has no checksums")
        objects = []
        for name in texts:
            if name not in arrays:
                raise ValueError(f"it has no {name!r}")
            objects.append(json_object(arrays.pop(name).tobytes(), repr(name)))
        return objects, arrays
    except UNREADABLE as error:
        raise refusal(path, what, error) from error


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The name and the content of each member, after a check of their total size."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_size(sum(info.file_size for info in members), path.stat().st_size)
        names = set[str]()
        for info in members:
            name = info.filename.removesuffix(".npy")
            if name == info.filename or name in names:
                raise ValueError(
                    f"its member {name[:80]!r} is no array, or is a duplicate"
                )
            if info.compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):
                raise ValueError(
                    f"{name!r} is packed in a way that NumPy does not use"
                )
            names.add(name)
            with archive.open(info) as member:
                # For these compressions, `read` unpacks no more than `file_size` bytes.
                content = member.read(info.file_size)
            yield name, content


def _check_checksums(
    stored: dict[str, Any], computed: dict[str, str], schema: int | None
) -> None:
    """Check a file's schema, if one is expected, and its checksums.

    Args:
        stored: the JSON object in the member ``checksums``.
        computed: the SHA-256 of every other member.
        schema: the expected schema.
    """
    file_schema = stored.get("schema")
    if schema is not None and file_schema != schema:
        raise ValueError(
            f"it has schema={file_schema!r:.40}, but this version of fl_epe reads {schema}"
        )
    expected = stored["sha256"]
    for name in sorted(expected.keys() | computed.keys()):
        if name not in computed:
            raise ValueError(f"{name[:80]!r} is missing, but has a checksum")
        if name not in expected:
            raise ValueError(f"{name[:80]!r} was added: it has no checksum")
        if expected[name] != computed[name]:
            raise ValueError(
                f"{name[:80]!r} is not as it was written: its checksum differs"
            )


def read_npy(path: Path, what: str) -> np.ndarray:
    """Read a ``.npy`` file; it raises the errors of `read_archive`."""
    require_file(path)
    try:
        size = path.stat().st_size
        # A .npy is not compressed, so only `FL_EPE_READ_LIMIT` can refuse it.
        check_size(size, size)
        return _array(path.read_bytes(), path.name)
    except UNREADABLE as error:
        raise refusal(path, what, error) from error


def _array(content: bytes, name: str) -> np.ndarray:
    """The array in the bytes of a ``.npy`` file."""
    try:
        with warnings.catch_warnings():
            # Python and NumPy may warn about the header.
            warnings.simplefilter("ignore")
            array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
            dtype = array.dtype
    except UNREADABLE as error:
        raise ValueError(
            f"{name!r} is no array ({one_line(error, 80)})"
        ) from error
    # With items of size 0 ("U0"), a file of a few bytes may claim any shape.
    if dtype.kind not in _KINDS or not dtype.itemsize:
        raise ValueError(
            f"{name!r} holds {one_line(dtype, 40)}, neither numbers nor texts"
        )
    return np.asarray(array, dtype.newbyteorder("="), order="C")


def digest(theta: Vector) -> str:
    """The hash that identifies a model, which is given as a flat vector."""
    return hashlib.blake2b(
        np.ascontiguousarray(theta).data, digest_size=16
    ).hexdigest()


def packed_json(values: Any) -> NDArray[np.uint8]:
    """JSON values as an array of compressed bytes."""
    return np.frombuffer(zlib.compress(json.dumps(values).encode()), np.uint8)


def unpacked_json(packed: NDArray[np.uint8]) -> Any:
    """The inverse of `packed_json`."""
    return json.loads(zlib.decompress(packed.tobytes()))


def select_prefix(arrays: NamedArrays, prefix: str) -> NamedArrays:
    """The arrays whose names begin with a prefix, by their names without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def add_prefix(arrays: NamedArrays, prefix: str) -> NamedArrays:
    """All arrays, with the prefix before their names; `select_prefix` removes it."""
    return {f"{prefix}{name}": array for name, array in arrays.items()}
