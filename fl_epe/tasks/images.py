"""Image data sets that are partitioned among clients: handwritten digits, and Fashion-MNIST.

The digits come with scikit-learn and need no download; Fashion-MNIST is read from IDX files.
"""

import abc
import dataclasses
import functools
import gzip
import pathlib
import zlib
from typing import ClassVar

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional

from fl_epe.checks import (
    check_count,
    check_not_negative,
    check_positive,
    raise_invalid,
)
from fl_epe.data import absolute
from fl_epe.seeding import generator
from fl_epe.tasks.contract import Task
from fl_epe.tasks.losses import ClientData, CnnClassification

Examples = tuple[np.ndarray, np.ndarray]
"""Images, shape (n, 1, 28, 28), float32 in [0, 1] or uint8; and labels, shape (n,)."""

_DEBIAN_DIR = "/usr/share/datasets/fashion-mnist"
_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_CLASSES = 10
_HELD_OUT_SHARE_OF_DIGITS = 0.2

_GZIP_MAGIC = b"\x1f\x8b"
_IDX_OF_UNSIGNED_BYTES = b"\0\0\x08"

# Largest size of an unpacked IDX file in bytes. Those of Fashion-MNIST have up to 47 million.
_MAX_FILE_SIZE = 256 << 20

# Added to the shares of labels, which may be 0 in floating point, so that every label with examples
# left can be drawn.
_MIN_WEIGHT = 1e-12


@dataclasses.dataclass(frozen=True)
class SplitImages(CnnClassification, Task, abc.ABC):
    """Images for the EMNIST CNN, partitioned among clients with unequal label shares and sizes.

    Attributes:
        num_clients: number of clients, among which the training examples are partitioned.
        alpha: concentration of the clients' label shares (Dirichlet).
        data_seed: seed of the split.
    """

    _min_examples: ClassVar[int]  # of each client
    num_clients: int = 1
    alpha: float = 0.5
    data_seed: int = 0

    def __post_init__(self) -> None:
        check_count("num_clients", self.num_clients)
        check_positive("alpha", self.alpha)
        check_not_negative("data_seed", self.data_seed)

    @abc.abstractmethod
    def _examples(
        self, random: np.random.Generator
    ) -> tuple[Examples, Examples]:
        """The clients' examples, and the held-out ones; ``random`` may choose them."""

    def client(self, client_id: int) -> ClientData:
        """Images of shape (n, 1, 28, 28) and labels of shape (n,).

        Raises:
            FileNotFoundError: if a file is missing; the message names a source.
            ValueError: for a ``client_id`` that does not exist, or a file that is broken.
        """
        self.check_client(client_id)
        (images, labels), _, parts = _load(self)
        rows = parts[client_id]
        return _client_data(images[rows], labels[rows])

    def sizes(self, client_ids: np.ndarray) -> np.ndarray:
        """See `Task.sizes`."""
        _, _, parts = _load(self)
        return np.array([len(parts[client]) for client in client_ids], np.int64)

    def held_out(self) -> ClientData:
        """The held-out images and labels.

        Raises:
            FileNotFoundError: as `client`.
            ValueError: as `client`.
        """
        _, (images, labels), _ = _load(self)
        return _client_data(images, labels)


@functools.lru_cache(maxsize=4)
def _load(task: SplitImages) -> tuple[Examples, Examples, list[np.ndarray]]:
    """The training examples, the held-out ones, and the training examples of each client."""
    random = generator(task.data_seed)
    training, held_out = task._examples(random)
    _, labels = training
    parts = dirichlet_partition(
        labels,
        task.num_clients,
        alpha=task.alpha,
        minimum=task._min_examples,
        random=random,
    )
    return training, held_out, parts


def _client_data(images: np.ndarray, labels: np.ndarray) -> ClientData:
    """The examples as tensors; pixels that are bytes become numbers in [0, 1]."""
    if images.dtype == np.uint8:
        images = images.astype(np.float32) / np.float32(255)
    return ClientData(
        torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))
    )


@dataclasses.dataclass(frozen=True)
class Digits(SplitImages):
    """UCI digits (1,797 images 8×8 of 10 classes, Alpaydin & Kaynak 1998) for the EMNIST CNN.

    A fifth of each class is held out; the rest is partitioned among the clients with unequal label
    shares and sizes, at least 4 examples each. Images are scaled to 28×28 with values in [0, 1].

    Attributes:
        num_clients: number of clients, at most 359.
        alpha: concentration of the clients' label shares (Dirichlet).
        data_seed: seed of the held-out part and of the split.
    """

    name: ClassVar[str] = "digits"
    _min_examples: ClassVar[int] = 4
    num_clients: int = 120

    def _examples(
        self, random: np.random.Generator
    ) -> tuple[Examples, Examples]:
        bunch = load_digits()
        # Pixels are 0 … 16.
        small = torch.from_numpy(bunch.images.astype(np.float32) / 16)[:, None]
        scaled = functional.interpolate(
            small, size=(28, 28), mode="bilinear", align_corners=False
        )
        images = scaled.numpy()
        labels = bunch.target
        training, held_out = stratified_split(
            labels, _HELD_OUT_SHARE_OF_DIGITS, random
        )
        training_examples = images[training], labels[training]
        return training_examples, (images[held_out], labels[held_out])


@dataclasses.dataclass(frozen=True)
class FashionMnist(SplitImages):
    """Fashion-MNIST (70,000 images 28×28 of 10 classes, Xiao et al. 2017) for the EMNIST CNN.

    The 60,000 training images are partitioned among the clients with unequal label shares and
    sizes, at least 16 examples each; the 10,000 test images are held out. Values are in [0, 1].

    Attributes:
        num_clients: number of clients.
        alpha: concentration of the clients' label shares (Dirichlet).
        data_seed: seed of the split.
        data_dir: folder of the four IDX files, each with or without ``.gz``.
    """

    name: ClassVar[str] = "fashion-mnist"
    _min_examples: ClassVar[int] = 16
    num_clients: int = 500
    data_dir: str = _DEBIAN_DIR

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "data_dir", absolute(self.data_dir))

    def _examples(
        self, random: np.random.Generator
    ) -> tuple[Examples, Examples]:
        arrays = [read_idx(_find(self.data_dir, file)) for file in _FILES]
        train_images, train_labels, test_images, test_labels = arrays
        training = self._checked(train_images, train_labels)
        return training, self._checked(test_images, test_labels)

    def _checked(self, images: np.ndarray, labels: np.ndarray) -> Examples:
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
            shapes = f"images of {images.shape} and labels of {labels.shape}"
            raise ValueError(
                f"Expected (n, 28, 28) and (n,) in {self.data_dir}, found {shapes}."
            )
        highest = int(labels.max(initial=0))
        if highest >= _CLASSES:
            raise ValueError(
                f"Expected labels in {self.data_dir} < {_CLASSES}, found {highest}."
            )
        return images[:, None], labels


def read_idx(path: pathlib.Path) -> np.ndarray:
    """The array in an IDX file of unsigned bytes, with or without gzip compression.

    The format is two zero bytes, the type (8: unsigned byte), the number of axes, the length of
    each axis as a big-endian 32-bit integer, and then the entries (LeCun et al., the MNIST page).

    Raises:
        ValueError: for another format, or a size that differs from the header.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == _GZIP_MAGIC:
            with gzip.open(path) as packed:
                raw = packed.read(_MAX_FILE_SIZE)
        if raw[:3] != _IDX_OF_UNSIGNED_BYTES:
            raise ValueError(f"it begins with {raw[:4].hex()!r}")
        axes = raw[3]
        start = 4 + 4 * axes
        shape = np.frombuffer(raw[4:start], ">u4").tolist()
        return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
    except (EOFError, IndexError, OSError, ValueError, zlib.error) as error:
        raise ValueError(
            f"Expected {path} to be IDX of unsigned bytes: {error}."
        ) from error


def _find(data_dir: str, name: str) -> pathlib.Path:
    """The path of a file of Fashion-MNIST, which may be packed."""
    for file in (f"{name}.gz", name):
        path = pathlib.Path(data_dir, file)
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"Expected {name}.gz or {name} in data_dir={data_dir!r}. On Debian and Ubuntu "
        f"'apt install dataset-fashion-mnist' puts them in {_DEBIAN_DIR}; elsewhere download "
        f"{', '.join(f'{file}.gz' for file in _FILES)} and name their folder with --data-dir."
    )


def dirichlet_partition(
    labels: np.ndarray,
    num_clients: int,
    *,
    alpha: float,
    minimum: int,
    random: np.random.Generator,
) -> list[np.ndarray]:
    """Assign every example to exactly one client, with unequal label shares and sizes.

    A client's size is ``minimum`` plus a Dirichlet(2) share of the remaining examples. Its label
    shares are drawn from Dirichlet(alpha), as in Hsu et al. (2019). The clients then draw one after
    another from the examples that are left.

    Args:
        labels: int of shape (examples,).
        num_clients: number of parts.
        alpha: concentration. If it is small, a client has few labels; if it is large, all labels
            have nearly equal shares.
        minimum: smallest number of examples of a client.
        random: the source of all randomness.

    Returns:
        For each client the sorted indices of its examples.

    Raises:
        ValueError: if there are fewer than ``num_clients * minimum`` examples.
    """
    spare = len(labels) - num_clients * minimum
    if spare < 0:
        limit = len(labels) // minimum
        expected = f"<= {limit}, so that each has at least {minimum} examples"
        raise_invalid("num_clients", num_clients, expected)
    size_shares = random.dirichlet(np.full(num_clients, 2.0))
    sizes = minimum + random.multinomial(spare, size_shares)
    rows_left = _shuffled_by_label(labels, random)
    parts = []
    for size in sizes:
        shares = random.dirichlet(np.full(len(rows_left), alpha))
        available = np.array([len(rows) for rows in rows_left])
        counts = _draw_counts(int(size), shares, available, random)
        drawn_rows = []
        for label, count in enumerate(counts):
            drawn_rows.append(rows_left[label][:count])
            rows_left[label] = rows_left[label][count:]
        parts.append(np.sort(np.concatenate(drawn_rows)))
    # The last clients got the labels that were left, so the order of clients is shuffled.
    return [parts[i] for i in random.permutation(num_clients)]


def _shuffled_by_label(
    labels: np.ndarray, random: np.random.Generator
) -> list[np.ndarray]:
    """The rows of each label, in random order."""
    return [
        random.permutation(np.flatnonzero(labels == label))
        for label in np.unique(labels)
    ]


def stratified_split(
    labels: np.ndarray, share: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The indices of the training and the held-out examples, with a share of each label held out.

    Args:
        labels: int of shape (examples,).
        share: the share, which is rounded to a whole number of examples of each label.
        random: the source of all randomness.
    """
    held_out_by_label = [
        rows[: round(share * len(rows))]
        for rows in _shuffled_by_label(labels, random)
    ]
    held_out = np.sort(np.concatenate(held_out_by_label))
    training = np.setdiff1d(np.arange(len(labels)), held_out)
    return training, held_out


def _draw_counts(
    size: int,
    shares: np.ndarray,
    available: np.ndarray,
    random: np.random.Generator,
) -> np.ndarray:
    """The number of examples of each label, ``size`` together.

    They are drawn from a multinomial distribution. If a label has fewer examples than were
    drawn, the missing ones are drawn again, from the labels that have some left.
    """
    counts = np.zeros(len(available), np.int64)
    while counts.sum() < size:
        weights = np.where(counts < available, shares + _MIN_WEIGHT, 0)
        missing = size - counts.sum()
        counts += random.multinomial(missing, weights / weights.sum())
        counts = np.minimum(counts, available)
    return counts
