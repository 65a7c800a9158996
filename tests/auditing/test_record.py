"""The record: what is saved comes back, what does not fit is refused."""

import json
from typing import Any

import numpy as np
import pytest
from records import make_record

from fl_epe import AuditRecord, epsilon_from_record
from fl_epe.archive import write_archive
from fl_epe.auditing import (
    EVERY_ROUND,
    FINAL_MODEL,
    Adversary,
    EarlyStop,
    EpsilonEstimate,
    ServerStep,
    seen_by,
)
from fl_epe.auditing.record.file import FILE_NAMES, build_part, read_values
from fl_epe.reporting import summarize, write_report


def test_round_trip(tmp_path):
    record = make_record(
        metrics={"eval_accuracy": np.array([0.1, 0.9])}, faults=("one", "two")
    )
    loaded = AuditRecord.load(record.save(tmp_path / "deep" / "record.npz"))
    found = loaded.by_name()
    for name, value in record.by_name().items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, found[name]), name
        elif name != "metrics":
            assert value == found[name], name
    assert np.array_equal(loaded.metrics["eval_accuracy"], [0.1, 0.9])
    assert loaded.provenance.seeds == {"canary": 2**127, "noise": None}


def test_no_pickle_is_written_or_read(tmp_path):
    path = make_record().save(tmp_path / "record.npz")
    with np.load(path, allow_pickle=False) as archive:
        assert all(archive[key].dtype != object for key in archive.files)
    np.savez(tmp_path / "evil.npz", meta=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="to be a record"):
        AuditRecord.load(tmp_path / "evil.npz")


class TestBadFiles:
    def test_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"nowhere\.npz' to exist"):
            AuditRecord.load(tmp_path / "nowhere.npz")

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"hello", id="text"),
            pytest.param(b"PK\x03\x04 broken", id="zip-broken"),
            pytest.param(b"\x93NUMPY", id="npy"),
        ],
    )
    def test_nonsense(self, content, tmp_path):
        (tmp_path / "record.npz").write_bytes(content)
        with pytest.raises(
            ValueError, match=r"record\.npz' to be a record written by"
        ):
            AuditRecord.load(tmp_path / "record.npz")

    def test_another_archive(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=np.ones(3))
        with pytest.raises(ValueError, match=r"a\.npz' to be a record"):
            AuditRecord.load(tmp_path / "a.npz")
        np.savez(tmp_path / "b.npz", meta=np.frombuffer(b"[1]", np.uint8))
        with pytest.raises(ValueError, match=r"b\.npz' to be a record"):
            AuditRecord.load(tmp_path / "b.npz")

    def test_another_schema(self, tmp_path):
        write_archive(tmp_path / "r.npz", {}, {"meta": {}}, schema=99)
        with pytest.raises(
            ValueError, match=r"schema=99, but this version of fl_epe reads 1"
        ):
            AuditRecord.load(tmp_path / "r.npz")

    def test_incomplete(self, tmp_path):
        write_archive(
            tmp_path / "r.npz",
            {},
            {"meta": {"provenance.faults": []}},
            schema=1,
        )
        with pytest.raises(
            ValueError, match=r"to hold dim: not a whole record"
        ):
            AuditRecord.load(tmp_path / "r.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"delta": 0.0}, r"delta=0\.0 in \(0, 1\)", id="delta=0.0-in-0,1"
        ),
        pytest.param(
            {"delta": 1.5}, r"delta=1\.5 in \(0, 1\)", id="delta=1.5-in-0,1"
        ),
        pytest.param(
            {"dim": 0}, "dim=0 to be an integer >= 1", id="dim=0-at-least-1"
        ),
        pytest.param(
            {"observed.means": np.full((6, 40), np.nan)},
            "observed.means to be finite",
            id="observed-to-be-finite",
        ),
        pytest.param(
            {"unobserved.final": np.full(30, np.inf)},
            "unobserved.final to be finite",
            id="unobserved_final-to-be-finite",
        ),
        pytest.param(
            {"presence": np.ones((6, 3), bool)},
            r"presence\.shape=\(6, 3\) to be \(6, 40\)",
            id="presence.shape=6,3-to-be-6,40",
        ),
        pytest.param(
            {"observed.final": np.zeros(3)},
            r"observed\.final\.shape=\(3,\) to be \(40,\)",
            id="observed_final.shape=3,to-be-40",
        ),
        pytest.param(
            {"clip_norms": np.ones(2)},
            r"clip_norms\.shape=\(2,\) to be \(6,\)",
            id="clip_norms.shape=2,to-be-6",
        ),
        pytest.param(
            {
                "observed.displacement": np.full(40, np.nan),
                "observed.final": np.full(40, np.nan),
            },
            "observed.final to be finite",
            id="nan-cosines-with-a-finite-model",
        ),
    ],
)
def test_refuses_what_does_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        make_record(**changes)


def test_model_update_cosines_need_a_linear_optimizer():
    with pytest.raises(
        ValueError, match="server='adam' to be sgd, or observed"
    ):
        make_record(server=ServerStep("adam")).model_update_cosines()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"adversary": EVERY_ROUND, "statistic": "sum"},
            "statistic='sum' to be one of",
            id="statistic=sum-to-be-one-of",
        ),
        pytest.param(
            {"adversary": FINAL_MODEL, "statistic": "maximum"},
            "statistic='maximum' to be one of",
            id="statistic=maximum-to-be-one-of",
        ),
        pytest.param(
            {"variance": "guessed"}, "variance='guessed'", id="variance=guessed"
        ),
        pytest.param(
            {"delta": 2.0}, r"delta=2\.0 in \(0, 1\)", id="delta=2.0-in-0,1"
        ),
        pytest.param(
            {"confidence": 1.0},
            r"confidence=1\.0 in \(0, 1\)",
            id="confidence=1.0-in-0,1",
        ),
    ],
)
def test_estimates_from_a_record_check_their_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        epsilon_from_record(make_record(), **options)


@pytest.mark.slow
def test_without_known_signals_the_matched_filter_weighs_rounds_alike(tmp_path):
    record = make_record(clip_norms=np.full(6, np.nan))
    assert not record.signal_known()
    assert epsilon_from_record(record, adversary=EVERY_ROUND).epsilon > 0
    summary = summarize(record)
    write_report(summary, tmp_path)
    assert summary.answers[1].estimate.epsilon > 0


def test_contributions_stand_for_clip_norms():
    """A strategy that weighs replies: what counts is what a canary adds to the mean."""
    plain = make_record()
    told = make_record(
        contributions=plain.mechanism.clip_norms / plain.mechanism.cohort_size,
        cohort_size=1e6,
    )
    for sees in ("all", "final"):
        np.testing.assert_allclose(
            seen_by(told, Adversary(sees)).expected_scores.observed,
            seen_by(plain, Adversary(sees)).expected_scores.observed,
        )
    unknown = make_record(contributions=np.full(6, np.nan))
    assert not unknown.signal_known()
    with pytest.raises(ValueError, match=r"contributions\.shape"):
        make_record(contributions=np.ones(5))


def test_a_file_has_the_names_of_the_record(tmp_path):
    """Other tools read a file under a record's names, or those of `FILE_NAMES`."""
    stopped = EarlyStop(
        3, EpsilonEstimate(1.0, 0.5, 2.0, 1e-3, 0.95, "m", EVERY_ROUND)
    )
    record = make_record(
        **{
            "clients.ids": np.arange(12),
            "clients.offsets": np.arange(0, 14, 2),
        },
        metrics={"eval_loss": np.ones(2)},
        faults=("one",),
        fault_counts={"client failed": 3},
        stopped=stopped,
        settings={"clipping": "fixed"},
    )
    with np.load(record.save(tmp_path / "record.npz")) as archive:
        meta = json.loads(bytes(archive["meta"]))
        arrays = {
            name: archive[name]
            for name in archive.files
            if name not in ("meta", "checksums")
        }
    names = {file_name: name for name, file_name in FILE_NAMES.items()}
    assert set(names.values()) <= record.by_name().keys()
    assert not names.keys() & record.by_name().keys()
    for file_name, value in arrays.items():
        name = names.get(file_name, file_name)
        found: Any = record.metrics if name.startswith("metrics.") else record
        for part in name.removeprefix("metrics.").split("."):
            found = (
                found[part] if isinstance(found, dict) else getattr(found, part)
            )
        assert np.array_equal(value, found), name
    assert {
        "observed.means",
        "norms.means",
        "mechanism.server.learning_rates",
    } <= arrays.keys()
    assert meta["mechanism.server.name"] == "sgd"
    assert meta["findings.stopped.after"] == 3
    assert meta["provenance.seeds"] == {"canary": 2**127, "noise": None}
    assert meta["findings.unseen"] == []
    assert "norms.deltas" in arrays
    assert arrays.keys() | meta.keys() - {"metrics"} >= {
        FILE_NAMES.get(name, name)
        for name, value in record.by_name().items()
        if value is not None and name != "metrics"
    }
    assert AuditRecord.load(tmp_path / "record.npz").findings.stopped == stopped


@pytest.mark.parametrize(
    "name", ["findings.stopped", "mechanism.participation.coins"]
)
def test_an_optional_part_may_be_missing_in_a_file(name, tmp_path):
    record = make_record()
    record.save(tmp_path / "record.npz")
    values = read_values(tmp_path / "record.npz")
    assert values.pop(name) is None
    part = build_part(AuditRecord, values)
    assert part.findings.stopped is None
    assert part.mechanism.participation.coins is None


def test_names_that_a_record_does_not_have_are_refused():
    with pytest.raises(
        ValueError, match="name='colour' to be that of one value"
    ):
        make_record(colour="red")


def test_a_strategy_may_have_negative_entries(tmp_path):
    rounds = make_record().rounds
    strategy = np.eye(rounds) - 0.1 * np.eye(rounds, k=-1)
    saved = (
        make_record()
        .with_values(strategy=strategy)
        .save(tmp_path / "record.npz")
    )
    np.testing.assert_array_equal(
        AuditRecord.load(saved).mechanism.strategy, strategy
    )
