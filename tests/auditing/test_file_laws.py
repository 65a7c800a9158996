"""Files: what was saved is read back, and a damaged file is refused, never read as another."""

import contextlib
import csv
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from records import make_record

from fl_epe import AuditRecord
from fl_epe.auditing import ServerStep, read_scores
from fl_epe.schedules import ParticipationLaw, Poisson
from fl_epe.schedules.sampled import (
    BallsInBins,
    BMinSep,
    FixedSize,
    MinSeparation,
    RandomAllocation,
)

words = st.text(max_size=8)
names = st.text("abc_é", min_size=1, max_size=8)
scores = st.floats(-1, 1)
lists = st.lists(
    st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | words,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3)
    ),
    max_leaves=5,
)


def table(shape, most=1.0, least=0.0, odd=()):
    """Numbers between ``least`` and ``most``, drawn at once: one at a time takes a second a record.

    Among them are both ends and those whose bits are easily lost: both zeros and the smallest
    number, or those that are ``odd``.
    """
    special = [
        least,
        most,
        most / 3,
        np.nextafter(most, 0),
        *(odd or (0.0, -0.0, 5e-324)),
    ]

    def draw(seed):
        rng = np.random.default_rng(seed)
        return np.where(
            rng.random(shape) < 0.5,
            rng.choice(special, shape),
            rng.uniform(least, most, shape),
        )

    return st.integers(0, 2**64).map(draw)


LAWS = [
    ParticipationLaw(3),
    Poisson(5, 0.3).law(10),
    BallsInBins(6, 2).law(10),
    MinSeparation(9, 0.2, 3).law(10),
    FixedSize(4, 0.5).law(7),
    RandomAllocation(6, 2).law(7),
    BMinSep(6, 0.2, 2).law(7),
]


@st.composite
def records(draw):
    """Valid records of any shape, with or without what may be left out."""
    T = draw(st.integers(1, 5))
    k = draw(st.integers(2, 5))
    u = draw(st.integers(0, 4))
    norms = table(T, 1e6, 1e-40, odd=[0.0, -0.0])
    maybe = st.booleans()
    values = {
        "dim": draw(st.integers(1, 10**9)),
        "delta": draw(st.floats(1e-300, 0.999)),
        "cohort_size": draw(st.floats(0.01, 1e6)),
        "noise_multiplier": draw(
            st.none() | st.just(0.0) | st.floats(1e-6, 100)
        ),
        "sum_noise_multiplier": draw(
            st.none() | st.just(0.0) | st.floats(1e-6, 100)
        ),
        "participation": draw(st.sampled_from(LAWS)),
        "mechanism.participation.unit": draw(words),
        "server": ServerStep("sgd", np.full(T, draw(st.floats(0, 10)))),
        "observed.means": draw(table((T, k), 1.0, -1.0)),
        "unobserved.means": draw(table((T, u), 1.0, -1.0)),
        "presence": draw(arrays.arrays(np.bool_, (T, k))),
        "clip_norms": draw(table(T, 10.0, 1e-40, odd=[0.0, -0.0, np.nan])),
        "norms.means": draw(norms),
        "norms.model_updates": draw(norms),
        "observed.final": draw(table(k, 1.0, -1.0)),
        "unobserved.final": draw(table(u, 1.0, -1.0)),
        "observed.displacement": draw(table(k, 1.0, -1.0)),
        "unobserved.displacement": draw(table(u, 1.0, -1.0)),
        "norms.final": draw(st.just(0.0) | st.floats(1e-40, 1e6)),
        "absent": draw(
            st.none()
            | arrays.arrays(np.int64, T, elements=st.integers(0, 2**40))
        ),
        "metrics": draw(
            st.dictionaries(names, table(T, 1.0, -1.0), max_size=2)
        ),
        "settings": draw(st.dictionaries(words, json_values, max_size=3)),
        "seeds": draw(
            st.dictionaries(
                words, st.none() | st.integers(0, 2**130), max_size=3
            )
        ),
        "versions": draw(st.dictionaries(words, words, max_size=2)),
        "faults": tuple(draw(st.lists(words, max_size=3))),
        "fault_counts": draw(
            st.dictionaries(words, st.integers(0, 2**40), max_size=3)
        ),
    }
    if draw(maybe):
        values |= {
            "observed.model_updates": draw(table((T, k), 1.0, -1.0)),
            "unobserved.model_updates": draw(table((T, u), 1.0, -1.0)),
        }
    if draw(maybe):
        values |= {
            "clients.ids": draw(arrays.arrays(np.int64, 7)),
            "contributions": draw(norms),
        }
    return make_record(**values)


def assert_same(one, other):
    """Every value of two records alike, to the last bit."""
    others = other.by_name()
    for field, value in one.by_name().items():
        again = others[field]
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.shape) == (again.dtype, again.shape), (
                field
            )
            assert value.tobytes() == again.tobytes(), field
        elif field == "metrics":
            assert value.keys() == again.keys()
            assert all(
                value[name].tobytes() == again[name].tobytes() for name in value
            )
        else:
            assert value == again, field


@contextlib.contextmanager
def file(name, content=b""):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        yield path


@settings(max_examples=10)
@given(records())
def test_a_saved_record_is_read_back_to_the_last_bit(record):
    with file("record.npz") as path:
        assert_same(AuditRecord.load(record.save(path)), record)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A record and the bytes of its file."""
    record = make_record(metrics={"loss": np.arange(6.0)})
    return record, record.save(
        tmp_path_factory.mktemp("sound") / "record.npz"
    ).read_bytes()


def _tried(read, path):
    """What was read and "", or None and why it was refused."""
    try:
        return read(path), ""
    except ValueError as error:
        return None, str(error)


def _refused_or_the_same(record, content):
    with file("record.npz", content) as path:
        loaded, refusal = _tried(AuditRecord.load, path)
    if loaded is None:
        assert "record.npz" in refusal
    else:  # the damage hit nothing that is read, such as a date
        assert_same(loaded, record)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        pytest.param((b"PK\x01\x02", 6), 99, id="version"),
        pytest.param((b"PK\x01\x02", 8), 1, id="encrypted"),
        pytest.param((b"PK\x01\x02", 10), 7, id="compression"),
        pytest.param((b".npy", 40), 255, id="compressed-data"),
    ],
)
def test_damage_that_only_zip_understands_is_told_as_any_other(
    sound, place, value
):
    damaged = bytearray(sound[1])
    damaged[damaged.index(place[0]) + place[1]] = value
    with (
        file("record.npz", bytes(damaged)) as path,
        pytest.raises(
            ValueError, match=r"record\.npz.* to be a record written by"
        ),
    ):
        AuditRecord.load(path)


@settings(max_examples=80)
@given(data=st.data())
def test_a_record_with_a_changed_byte_is_refused_or_the_same(sound, data):
    record, content = sound
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(
            st.integers(0, 255)
        )
    _refused_or_the_same(record, bytes(damaged))


@given(data=st.data())
def test_a_record_that_was_cut_off_is_refused(sound, data):
    _, content = sound
    cut = data.draw(st.integers(0, len(content) - 1))
    with (
        file("record.npz", content[:cut]) as path,
        pytest.raises(
            ValueError, match=r"record\.npz.* to be a record written by"
        ),
    ):
        AuditRecord.load(path)


@given(data=st.data())
def test_a_record_with_a_hole_or_a_stretch_twice_is_refused_or_the_same(
    sound, data
):
    record, content = sound
    ends = sorted(data.draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    hole = content[: ends[0]] + content[ends[1] :]
    twice = content[: ends[1]] + content[ends[0] :]
    for damaged in (hole, twice):
        _refused_or_the_same(record, damaged)


@given(st.binary(max_size=200))
def test_any_bytes_are_no_record(content):
    with (
        file("record.npz", content) as path,
        pytest.raises(ValueError, match=r"record\.npz"),
    ):
        AuditRecord.load(path)


@given(lists, lists | st.just([]), st.sampled_from(["csv", "json", "npz"]))
def test_scores_are_read_back_to_the_last_bit(observed, unobserved, suffix):
    with file(f"scores.{suffix}") as path:
        columns = {"observed": observed, "unobserved": unobserved}
        if suffix == "json":
            path.write_text(json.dumps(columns))
        elif suffix == "npz":
            np.savez(
                path,
                **{name: np.array(values) for name, values in columns.items()},
            )
        else:
            with path.open("w", newline="") as out:
                rows = max(len(observed), len(unobserved))
                padded = [
                    [*values, *[""] * (rows - len(values))]
                    for values in columns.values()
                ]
                csv.writer(out).writerows([columns, *zip(*padded, strict=True)])
        ours, others = read_scores(path)
    assert ours.tolist() == observed
    assert (
        (others is None) if not unobserved else (others.tolist() == unobserved)
    )


@given(st.lists(st.tuples(scores, st.booleans()), min_size=1, max_size=20))
def test_scores_with_membership_are_split(rows):
    lines = [
        "score,member",
        *(f"{score!r},{int(member)}" for score, member in rows),
        "",
    ]
    with file("scores.csv", "\n".join(lines).encode()) as path:
        ours, others = read_scores(path)
    assert ours.tolist() == [score for score, member in rows if member]
    left = [score for score, member in rows if not member]
    assert (others is None) if not left else (others.tolist() == left)


@given(st.binary(max_size=100), st.sampled_from(["csv", "json", "npz"]))
def test_any_bytes_are_no_scores(content, suffix):
    with (
        file(f"scores.{suffix}", content) as path,
        pytest.raises(ValueError, match="to hold"),
    ):
        read_scores(path)


@pytest.mark.parametrize("suffix", ["csv", "json", "npz"])
@given(data=st.data())
def test_damaged_scores_are_read_or_refused_by_name(suffix, data):
    """Text holds no checksum: another digit is another score. An archive holds one."""
    observed = np.arange(6) / 8
    unobserved = np.arange(5) / 16
    with file(f"scores.{suffix}") as path:
        if suffix == "csv":
            path.write_text(
                "observed,unobserved\n0.0,0.0\n0.125,0.0625\n0.25,\n"
            )
        elif suffix == "json":
            path.write_text(
                json.dumps(
                    {"observed": [*observed], "unobserved": [*unobserved]}
                )
            )
        else:
            np.savez(path, observed=observed, unobserved=unobserved)
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
            st.integers(0, 255)
        )
        path.write_bytes(content)
        found, refusal = _tried(read_scores, path)
    if found is None:
        assert f"scores.{suffix} to hold" in refusal
        assert "\n" not in refusal
        return
    ours, others = found
    assert ours.dtype == np.float64
    if suffix == "npz" and others is not None:
        assert np.array_equal(ours, observed)
        assert np.array_equal(others, unobserved)
