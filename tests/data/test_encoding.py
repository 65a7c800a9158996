"""Messages, words and images: what one row of a source becomes."""

import collections
import io
import pathlib

import numpy as np
import pyarrow as pa
import pytest
from data_files import Example, example, handwriting, png, posts, write_sqlite

from fl_epe.data.encoders import Encoder, Images, Words, read_vocabulary
from fl_epe.data.examples import (
    BOS,
    EOS,
    OOV,
    images_and_labels,
    words_and_next,
)
from fl_epe.data.readers import arrow_rows, read_sqlite


def _batch(**columns) -> pa.RecordBatch:
    length = len(next(iter(columns.values())))
    return arrow_rows({"client": ["someone"] * length, **columns}, "the place")


def _read(folder: pathlib.Path, message: bytes, *names: str) -> dict:
    """The features of these names in a file with one message."""
    (folder / "a.sqlite").unlink(missing_ok=True)
    write_sqlite(folder / "a.sqlite", [("train", "u", message)])
    wanted = {name: (name,) for name in names} | {"client": ("client",)}
    (found,) = read_sqlite(folder / "a.sqlite", "train", wanted)
    return {name: found[1][name].to_pylist()[0] for name in names}


# tf.train.Example


def test_messages_of_googles_library_come_back(tmp_path: pathlib.Path):
    random = np.random.default_rng(0)
    pixels = random.random((28, 28), np.float32)
    numbers, text = [0, 1, -1, 2**63 - 1, -(2**63), 300], ["é", "", "x" * 300]
    message = example(pixels=pixels, label=7, numbers=numbers, text=text)
    found = _read(tmp_path, message, "pixels", "label", "numbers", "text")
    np.testing.assert_array_equal(found["pixels"], pixels.ravel())
    assert found["label"] == 7
    assert found["numbers"] == numbers
    assert found["text"] == [part.encode() for part in text]


def test_features_without_a_list_are_empty(tmp_path: pathlib.Path):
    message = Example()
    message.features.feature["nothing"].SetInParent()
    assert _read(tmp_path, message.SerializeToString(), "nothing") == {
        "nothing": []
    }


def test_lists_that_are_not_packed_and_unknown_fields_are_read(
    tmp_path: pathlib.Path,
):
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    ints = field(3, b"\x08\x05" + b"\x08\x96\x01")
    floats = field(
        2,
        b"\x0d"
        + np.float32(1.5).tobytes()
        + b"\x0d"
        + np.float32(-2).tobytes(),
    )
    unknown = b"\x20\x07" + b"\x29" + bytes(8) + field(7, b"abc")
    entries = [
        field(1, b"i") + field(2, ints),
        field(1, b"f") + unknown + field(2, floats),
    ]
    message = field(1, b"".join(field(1, entry) for entry in entries)) + unknown
    assert _read(tmp_path, message, "i", "f") == {"i": [5, 150], "f": [1.5, -2]}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(example(tokens="a b c")[:-3], id="cut-off"),
        pytest.param(b"\x0b", id="not-a-message"),
        pytest.param(b"\xff" * 11, id="endless-number"),
    ],
)
def test_what_is_no_example_says_where(message: bytes, tmp_path: pathlib.Path):
    with pytest.raises(
        ValueError, match=r"a.sqlite, row 1, to be a tf.train.Example"
    ):
        _read(tmp_path, message, "tokens")


# Words


def test_sentences_become_the_ids_of_tff():
    words = Words([b"the", b"a", b"code"])
    texts = [
        "a code",
        "",
        "the  b",
        " ".join(["a"] * 19),
        " ".join(["a"] * 20 + ["the"]),
    ]
    expected = np.zeros((5, 21), np.uint16)
    expected[0, :4] = [BOS, 2, 3, EOS]
    expected[1, :3] = [BOS, OOV, EOS]
    expected[2, :5] = [
        BOS,
        1,
        OOV,
        OOV,
        EOS,
    ]  # two spaces have an empty word between them
    expected[3] = [BOS, *[2] * 19, EOS]
    expected[4] = [BOS, *[2] * 20]
    for column in (texts, [text.encode() for text in texts]):
        np.testing.assert_array_equal(
            words.encode(_batch(tokens=column)), expected
        )
    inputs, targets = words_and_next(expected)
    assert inputs[0].tolist()[:4] == [BOS, 2, 3, EOS]
    assert targets[0].tolist()[:4] == [2, 3, EOS, 0]
    assert inputs.shape == targets.shape == (5, 20)
    assert inputs.dtype == targets.dtype == np.int64


def test_real_sentences_agree_with_a_version_written_for_reading():
    texts = [text for user in posts().values() for text in user]
    assert len(texts) > 300
    batch = _batch(tokens=texts)
    words = collections.Counter(" ".join(texts).encode().split())
    vocabulary = [word for word, _ in words.most_common(500)]
    numbers = {word.decode(): index for index, word in enumerate(vocabulary, 1)}
    found = Words(vocabulary).encode(batch)
    for text, ids in zip(texts, found, strict=True):
        known = [numbers.get(word, OOV) for word in text.split(" ")][:20]
        end = [EOS] if len(known) < 20 else []
        expected = [BOS, *known, *end]
        assert ids.tolist() == expected + [0] * (21 - len(expected))


def test_a_vocabulary_is_the_words_of_its_lines(tmp_path):
    path = tmp_path / "stackoverflow.word_count"
    path.write_text("the 12\n, 9\ncode 3\n", encoding="utf-8")
    assert read_vocabulary(path) == [b"the", b",", b"code"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("the\n", id="no-count"),
        pytest.param("the 1 2\n", id="two-counts"),
        pytest.param("the many\n", id="count-not-a-number"),
    ],
)
def test_a_broken_vocabulary_is_named(tmp_path, text: str):
    (tmp_path / "words").write_text(text)
    with pytest.raises(ValueError, match=r"words.* to be lines 'word count'"):
        read_vocabulary(tmp_path / "words")
    with pytest.raises(FileNotFoundError, match=r"vocabulary='.*missing'"):
        read_vocabulary(tmp_path / "missing")


# Images


@pytest.mark.parametrize("bright_paper", [False, True])
@pytest.mark.parametrize("form", ["files", "floats", "arrays"])
def test_every_form_of_an_image_becomes_the_same_ink(
    form: str, bright_paper: bool
):
    ink, labels = handwriting(20)
    source = 255 - ink if bright_paper else ink
    shares = source / np.float32(255)
    forms = {
        "files": [{"bytes": png(image), "path": None} for image in source],
        "floats": [image.ravel().tolist() for image in shares],
        "arrays": shares,
    }
    images = Images()
    found = images.encode(_batch(image=forms[form], label=labels))
    np.testing.assert_array_equal(found[:, :-1], ink.reshape(20, -1))
    np.testing.assert_array_equal(found[:, -1], labels)
    values, targets = images_and_labels(found)
    assert values.shape == (20, 1, 28, 28)
    np.testing.assert_array_equal(
        values[:, 0], ink.astype(np.float32) / np.float32(255)
    )
    np.testing.assert_array_equal(targets, labels)


def test_the_first_rows_decide_which_way_round_all_are():
    ink, labels = handwriting(20)
    images = Images()
    images.encode(_batch(image=1 - ink / 255, label=labels))
    found = images.encode(
        _batch(image=[[1.0] * 784, [0.0] * 784], label=[0, 1])
    )
    assert found[:, 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        pytest.param(
            [[0.0] * 783], [1], r"784 numbers an image, found \[783\]", id="783"
        ),
        pytest.param(
            [[0.0] * 783, [0.0] * 785],
            [1, 1],
            r"found \[783, 785\]",
            id="other-sizes",
        ),
        pytest.param(
            [[1.5] * 784],
            [1],
            r"pixels in \[0, 1\], found 1.5",
            id="pixels-in-0,1,found-1.5",
        ),
        pytest.param(
            [[0] * 784], [1], r"pixels in \[0, 1\]", id="whole-numbers"
        ),
        pytest.param([[float("nan")] * 784], [1], "pixels in", id="pixels-in"),
        pytest.param(
            [[0.5] * 784],
            [1],
            "dark or bright borders of images",
            id="borders-to-be-dark-or-bright",
        ),
        pytest.param(
            [[0.0] * 784], [62], r"labels in \[0, 62\), found 62", id="label-62"
        ),
        pytest.param([[0.0] * 784], [-1], "found -1", id="label-below-0"),
        pytest.param(
            [[0.0] * 784],
            ["a"],
            "labels to be integers, found string",
            id="label-a",
        ),
        pytest.param(
            [{"bytes": b"none"}], [1], "28.: cannot identify", id="no-picture"
        ),
        pytest.param(
            [{"bytes": png(np.zeros((28, 27), np.uint8))}],
            [1],
            r"found one of \(27, 28\)",
            id="28,27",
        ),
    ],
)
def test_what_is_no_image_is_named(images: list, labels: list, message: str):
    with pytest.raises(ValueError, match=message):
        Images().encode(_batch(image=images, label=labels))


# What all encoders promise


@pytest.mark.parametrize(
    ("encoder", "columns"),
    [
        pytest.param(
            Images(),
            {"image": [[0.0] * 784] * 3, "label": [1, 2, 3]},
            id="images",
        ),
        pytest.param(Words([b"a"]), {"tokens": ["a", "", "b a"]}, id="words"),
    ],
)
def test_examples_have_the_width_and_type_that_the_encoder_says(
    encoder: Encoder, columns: dict
):
    found = encoder.encode(_batch(**columns))
    assert found.shape == (3, encoder.width)
    assert found.dtype == encoder.dtype
    assert encoder.encode(_batch(**columns)[:0]).shape == (0, encoder.width)


def test_missing_values_and_mixed_types_are_named():
    with pytest.raises(
        ValueError, match="no missing tokens in the place, found 1"
    ):
        _batch(tokens=["a", None])
    with pytest.raises(
        ValueError, match="columns of one type and length in the place"
    ):
        _batch(tokens=["a", 1])


def test_clients_of_any_simple_type_become_texts():
    found = arrow_rows(
        {"client": pa.array([7, 8]), "x": pa.chunked_array([[1], [2]])}, "there"
    )
    assert found.to_pydict() == {"client": ["7", "8"], "x": [1, 2]}


def test_a_png_in_colour_is_read_as_grey(tmp_path):
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (28, 28), (255, 255, 255)).save(file, "PNG")
    found = Images().encode(
        _batch(image=[{"bytes": file.getvalue()}], label=[3])
    )
    assert found[0].tolist() == [*[0] * 784, 3]
