"""Messages, words and images: what one row of a source becomes."""

import io
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from data_files import Example, example, handwriting, png, posts

from fl_epe.data.encoders import (
    Encoder,
    Images,
    Rows,
    Words,
    all_words,
    count_words,
    read_vocabulary,
)
from fl_epe.data.examples import BOS, EOS, OOV, images_and_labels, words_and_next
from fl_epe.data.formats import arrow_rows, parse_example


def _batch(**columns) -> Rows:
    length = len(next(iter(columns.values())))
    return arrow_rows({"client": ["someone"] * length, **columns}, "the place")


def _parsed(blob: bytes) -> dict:
    return parse_example(blob, ["pixels", "label", "numbers", "text", "i", "f", "nothing"])


# tf.train.Example


def test_messages_of_googles_library_come_back():
    random = np.random.default_rng(0)
    pixels = random.random((28, 28), np.float32)
    numbers = [0, 1, -1, 2**63 - 1, -(2**63), 300]
    found = _parsed(example(pixels=pixels, label=7, numbers=numbers, text=["é", "", "x" * 300]))
    np.testing.assert_array_equal(found["pixels"], pixels.ravel())
    assert found["pixels"].dtype == np.float32
    assert found["label"].tolist() == [7]
    assert found["numbers"].tolist() == numbers
    assert found["text"] == ["é".encode(), b"", b"x" * 300]


def test_empty_messages_and_features_without_a_list():
    assert _parsed(b"") == {}
    message = Example()
    message.features.feature["nothing"].SetInParent()
    assert _parsed(message.SerializeToString()) == {"nothing": []}


def test_lists_that_are_not_packed_and_unknown_fields_are_read():
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    ints = field(3, b"\x08\x05" + b"\x08\x96\x01")
    floats = field(2, b"\x0d" + np.float32(1.5).tobytes() + b"\x0d" + np.float32(-2).tobytes())
    unknown = b"\x20\x07" + b"\x29" + bytes(8) + field(7, b"abc")
    entries = [field(1, b"i") + field(2, ints), field(1, b"f") + unknown + field(2, floats)]
    found = _parsed(field(1, b"".join(field(1, entry) for entry in entries)) + unknown)
    assert found["i"].tolist() == [5, 150]
    assert found["f"].tolist() == [1.5, -2]


def test_a_message_that_is_cut_off_is_refused():
    message = example(tokens="a b c", score=[1, 2, 3], pixels=[0.5, 0.25])
    for end in range(1, len(message)):
        with pytest.raises(ValueError, match=rf"^{end} bytes that protobuf cannot parse"):
            _parsed(message[:end])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(b"\x0b", "1 bytes that protobuf cannot parse", id="not-a-message"),
        pytest.param(
            b"\x08\x01", "2 bytes in which protobuf finds no field 'features'", id="no-features"
        ),
        pytest.param(b"\xff" * 11, "11 bytes that protobuf cannot parse", id="endless-number"),
    ],
)
def test_what_is_no_example_says_why(message: bytes, reason: str):
    with pytest.raises(ValueError, match=reason):
        _parsed(message)


# Words


def test_sentences_become_the_ids_of_tff():
    words = Words([b"the", b"a", b"code"])
    texts = ["a code", "", "the  b", " ".join(["a"] * 19), " ".join(["a"] * 20 + ["the"])]
    expected = np.zeros((5, 21), np.uint16)
    expected[0, :4] = [BOS, 2, 3, EOS]
    expected[1, :3] = [BOS, OOV, EOS]
    expected[2, :5] = [BOS, 1, OOV, OOV, EOS]  # two spaces have an empty word between them
    expected[3] = [BOS, *[2] * 19, EOS]
    expected[4] = [BOS, *[2] * 20]
    for column in (texts, [text.encode() for text in texts]):
        np.testing.assert_array_equal(words.encode(_batch(tokens=column)), expected)
    inputs, targets = words_and_next(expected)
    assert inputs[0].tolist()[:4] == [BOS, 2, 3, EOS]
    assert targets[0].tolist()[:4] == [2, 3, EOS, 0]
    assert inputs.shape == targets.shape == (5, 20)
    assert inputs.dtype == targets.dtype == np.int64


def test_real_sentences_agree_with_a_version_written_for_reading():
    texts = [text for user in posts().values() for text in user]
    assert len(texts) > 300
    batch = _batch(tokens=texts)
    vocabulary = count_words([all_words(batch)])[:500]
    numbers = {word.decode(): index for index, word in enumerate(vocabulary, 1)}
    found = Words(vocabulary).encode(batch)
    for text, ids in zip(texts, found, strict=True):
        known = [numbers.get(word, OOV) for word in text.split(" ")][:20]
        end = [EOS] if len(known) < 20 else []
        expected = [BOS, *known, *end]
        assert ids.tolist() == expected + [0] * (21 - len(expected))


def test_words_that_are_split_already_are_taken_as_they_are():
    found = Words([b"a"]).encode(_batch(tokens=[["a", "b"], []]))
    assert found[:, :4].tolist() == [[BOS, 1, OOV, EOS], [BOS, EOS, 0, 0]]


def test_counted_words_come_by_frequency_then_by_name():
    batches = [_batch(tokens=["c b a a", "", "b"]), _batch(tokens=["a b c  d"])]
    assert count_words(map(all_words, batches)) == [b"a", b"b", b"c", b"d"]


def test_vocabularies_are_read_plain_and_packed(tmp_path):
    path = tmp_path / "stackoverflow.word_count"
    path.write_text("the 12\n, 9\ncode 3\n", encoding="utf-8")
    packed = tmp_path / "stackoverflow.word_count.tar.bz2"
    with tarfile.open(packed, "w:bz2") as archive:
        archive.add(path, "stackoverflow.word_count")
    for file in (path, packed):
        assert read_vocabulary(file) == [b"the", b",", b"code"]


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


@pytest.mark.parametrize("vocabulary", [[], [b"a", b"a"]])
def test_a_vocabulary_has_distinct_words(vocabulary: list[bytes]):
    with pytest.raises(ValueError, match="distinct"):
        Words(vocabulary)


# Images


@pytest.mark.parametrize("bright_paper", [False, True])
@pytest.mark.parametrize("form", ["png", "struct", "floats", "bytes", "square"])
def test_every_form_of_an_image_becomes_the_same_ink(form: str, bright_paper: bool):
    ink, labels = handwriting(20)
    source = 255 - ink if bright_paper else ink
    files = [png(image) for image in source]
    forms = {
        "png": files,
        "struct": [{"bytes": file, "path": None} for file in files],
        "floats": [(image.ravel() / np.float32(255)).tolist() for image in source],
        "bytes": source.reshape(20, -1).tolist(),
        "square": source.tolist(),
    }
    images = Images()
    found = images.encode(_batch(image=forms[form], label=labels))
    np.testing.assert_array_equal(found[:, :-1], ink.reshape(20, -1))
    np.testing.assert_array_equal(found[:, -1], labels)
    values, targets = images_and_labels(found)
    assert values.shape == (20, 1, 28, 28)
    np.testing.assert_array_equal(values[:, 0], ink.astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(targets, labels)


def test_a_picture_may_be_a_file_beside(tmp_path):
    ink, _ = handwriting(1)
    (tmp_path / "a.png").write_bytes(png(ink[0]))
    picture = {"bytes": None, "path": str(tmp_path / "a.png")}
    found = Images().encode(_batch(image=[picture], label=[0]))
    np.testing.assert_array_equal(found[0, :-1], ink[0].ravel())


def test_the_first_rows_decide_which_way_round_all_are():
    ink, labels = handwriting(20)
    images = Images()
    images.encode(_batch(image=list(255 - ink.reshape(20, -1)), label=labels))
    found = images.encode(_batch(image=[[255] * 784, [0] * 784], label=[0, 1]))
    assert found[:, 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        pytest.param(
            [[0.0] * 783],
            [1],
            "784 numbers an image, found 783",
            id="784-numbers-an-image,found-783",
        ),
        pytest.param(
            [[0] * 783, [0] * 785],
            [1, 1],
            r"of one size, found \[783, 785\]",
            id="of-one-size,found-783,785",
        ),
        pytest.param(
            [[1.5] * 784], [1], r"pixels in \[0, 1\], found 1.5", id="pixels-in-0,1,found-1.5"
        ),
        pytest.param([[256] * 784], [1], r"pixels in \[0, 255\]", id="pixels-in-0,255"),
        pytest.param([[float("nan")] * 784], [1], "pixels in", id="pixels-in"),
        pytest.param(
            [[0.5] * 784],
            [1],
            "images' borders to be dark or bright",
            id="borders-to-be-dark-or-bright",
        ),
        pytest.param(
            [[0] * 784], [62], r"labels in \[0, 62\), found 62", id="labels-in-0,62,found-62"
        ),
        pytest.param([[0] * 784], [-1], "found -1", id="found-1"),
        pytest.param(
            [[0] * 784],
            ["a"],
            "labels to be integers, found string",
            id="labels-to-be-integers,found-string",
        ),
        pytest.param(
            [b"no picture"],
            [1],
            "images: cannot identify",
            id="images-in-the-place:-cannot-identify",
        ),
        pytest.param(
            [png(np.zeros((28, 27), np.uint8))],
            [1],
            r"images.shape=\(28, 27\)",
            id="images.shape=28,27",
        ),
        pytest.param(
            ["text"],
            [1],
            "numbers an image, found 1 of type string",
            id="numbers-an-image,found-1-of-type",
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
        pytest.param(Images(), {"image": [[0] * 784] * 3, "label": [1, 2, 3]}, id="images"),
        pytest.param(Words([b"a"]), {"tokens": ["a", "", "b a"]}, id="words"),
    ],
)
def test_examples_have_the_width_and_type_that_the_encoder_says(encoder: Encoder, columns: dict):
    found = encoder.encode(_batch(**columns))
    assert found.shape == (3, encoder.width)
    assert found.dtype == encoder.dtype
    empty = {name: pa.array(values)[:0] for name, values in columns.items()}
    assert encoder.encode(empty).shape == (0, encoder.width)


def test_missing_values_and_mixed_types_are_named():
    with pytest.raises(ValueError, match="no missing tokens in the place, found 1"):
        _batch(tokens=["a", None])
    with pytest.raises(ValueError, match="columns of one type in the place"):
        _batch(tokens=["a", 1])


def test_clients_of_any_simple_type_become_texts():
    dictionary = pa.array(["b", "a", "b"]).dictionary_encode()
    found = arrow_rows({"client": dictionary, "x": pa.chunked_array([[1], [2, 3]])}, "there")
    assert found["client"].to_pylist() == ["b", "a", "b"]
    assert found["x"].to_pylist() == [1, 2, 3]
    assert arrow_rows({"client": [7, 8]}, "there")["client"].to_pylist() == ["7", "8"]


def test_a_png_in_colour_is_read_as_grey(tmp_path):
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (28, 28), (255, 255, 255)).save(file, "PNG")
    found = Images().encode(_batch(image=[file.getvalue()], label=[3]))
    assert found[0].tolist() == [*[0] * 784, 3]
