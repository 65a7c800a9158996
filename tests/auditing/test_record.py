"""The record: what is saved comes back, what does not fit is refused."""

import json

import numpy as np
import pytest
from records import make_record

from fl_epe import AuditRecord, RunConfig, epsilon_from_record
from fl_epe.auditing import footprints
from fl_epe.reporting import write_report


def test_round_trip(tmp_path):
    record = make_record(metrics={"eval_accuracy": np.array([0.1, 0.9])}, faults=("one", "two"))
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
        with pytest.raises(ValueError, match=r"record\.npz' to be a record written by"):
            AuditRecord.load(tmp_path / "record.npz")

    def test_another_archive(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=np.ones(3))
        with pytest.raises(ValueError, match=r"a\.npz' to be a record"):
            AuditRecord.load(tmp_path / "a.npz")
        np.savez(tmp_path / "b.npz", meta=np.frombuffer(b"[1]", np.uint8))
        with pytest.raises(ValueError, match=r"b\.npz' to be a record"):
            AuditRecord.load(tmp_path / "b.npz")

    def test_newer_schema(self, tmp_path):
        meta = json.dumps({"format": "fl_epe.AuditRecord", "schema": 99})
        np.savez(tmp_path / "r.npz", meta=np.frombuffer(meta.encode(), np.uint8))
        with pytest.raises(ValueError, match=r"schema=99 of .* <= 2: written by a newer fl_epe"):
            AuditRecord.load(tmp_path / "r.npz")

    def test_incomplete(self, tmp_path):
        meta = json.dumps({"format": "fl_epe.AuditRecord", "schema": 1, "faults": []})
        np.savez(tmp_path / "r.npz", meta=np.frombuffer(meta.encode(), np.uint8))
        with pytest.raises(ValueError, match=r"to hold \['delta', 'dim', 'observed', 'presence'\]"):
            AuditRecord.load(tmp_path / "r.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"delta": 0.0}, r"delta=0\.0 in \(0, 1\)", id="delta=0.0-in-0,1"),
        pytest.param({"delta": 1.5}, r"delta=1\.5 in \(0, 1\)", id="delta=1.5-in-0,1"),
        pytest.param({"dim": 0}, "dim=0 >= 1", id="dim=0-at-least-1"),
        pytest.param(
            {"observed": np.full((6, 40), np.nan)},
            "observed to be finite",
            id="observed-to-be-finite",
        ),
        pytest.param(
            {"unobserved_final": np.full(30, np.inf)},
            "unobserved_final to be finite",
            id="unobserved_final-to-be-finite",
        ),
        pytest.param(
            {"presence": np.ones((6, 3), bool)},
            r"presence\.shape=\(6, 3\) to be \(6, 40\)",
            id="presence.shape=6,3-to-be-6,40",
        ),
        pytest.param(
            {"observed_final": np.zeros(3)},
            r"observed_final\.shape=\(3,\) to be \(40,\)",
            id="observed_final.shape=3,to-be-40",
        ),
        pytest.param(
            {"clip_norms": np.ones(2)},
            r"clip_norms\.shape=\(2,\) to be \(6,\)",
            id="clip_norms.shape=2,to-be-6",
        ),
        pytest.param(
            {"observed_displacement": np.full(40, np.nan), "observed_final": np.full(40, np.nan)},
            "observed_final to be finite",
            id="nan-cosines-with-a-finite-model",
        ),
    ],
)
def test_refuses_what_does_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        make_record(**changes)


def test_delta_cosines_need_a_linear_optimizer():
    with pytest.raises(ValueError, match="Expected delta cosines for server="):
        make_record(server={"name": "adam"}).delta_cosines()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"threat": "some"},
            "threat='some' to be 'final' or 'all'",
            id="threat=some-to-be-final-or-all",
        ),
        pytest.param(
            {"threat": "all", "statistic": "sum"},
            "statistic='sum' to be one of",
            id="statistic=sum-to-be-one-of",
        ),
        pytest.param(
            {"threat": "final", "statistic": "maximum"},
            "statistic='maximum' to be one of",
            id="statistic=maximum-to-be-one-of",
        ),
        pytest.param({"variance": "guessed"}, "variance='guessed'", id="variance=guessed"),
        pytest.param({"delta": 2.0}, r"delta=2\.0 in \(0, 1\)", id="delta=2.0-in-0,1"),
        pytest.param(
            {"confidence": 1.0}, r"confidence=1\.0 in \(0, 1\)", id="confidence=1.0-in-0,1"
        ),
    ],
)
def test_estimates_from_a_record_check_their_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        epsilon_from_record(make_record(), **options)


def test_without_known_signals_the_matched_filter_weighs_rounds_alike(tmp_path):
    record = make_record(clip_norms=np.full(6, np.nan))
    assert not record.signal_known()
    assert epsilon_from_record(record, threat="all").epsilon > 0
    for statistic in ("likelihood-ratio",):
        with pytest.raises(ValueError, match="to be known in every round"):
            epsilon_from_record(record, threat="all", statistic=statistic)
    summary = write_report(record, tmp_path)
    every_round = summary.every_round
    assert every_round.footprints is None
    assert every_round.matched_filter.estimate.epsilon > 0


def test_contributions_stand_for_clip_norms():
    """A strategy that weighs replies: what counts is what a canary adds to the mean."""
    plain = make_record()
    told = make_record(
        contributions=plain.mechanism.clip_norms / plain.mechanism.cohort_size, cohort_size=1e6
    )
    for threat in ("all", "final"):
        np.testing.assert_allclose(footprints(told, threat), footprints(plain, threat))
    unknown = make_record(contributions=np.full(6, np.nan))
    assert not unknown.signal_known()
    with pytest.raises(ValueError, match=r"contributions\.shape"):
        make_record(contributions=np.ones(5))


def test_names_of_the_first_version_are_read():
    config = RunConfig.from_dict({"clients": 50, "canaries": 7, "canary_repeats": 2})
    assert (config.num_canaries, config.canary_participations) == (7, 2)


def test_a_file_keeps_the_names_of_its_schema(tmp_path):
    """The flat names, under which other tools read a record's file; the seeds stand alone."""
    rng = np.random.default_rng(5)
    made_up = {
        f"{side}_{what}": rng.random((6, count))
        for side, count in (("observed", 40), ("unobserved", 30))
        for what in ("delta", "residual")
    }
    record = make_record(
        **made_up,
        residual_norms=rng.random(6),
        contributions=rng.random(6),
        observed_ids=np.arange(40),
        unobserved_ids=np.arange(40, 70),
        client_ids=np.arange(12),
        client_offsets=np.arange(0, 14, 2),
        metrics={"eval_loss": np.ones(2)},
        faults=("one",),
        null_statistics=("displacement",),
        null_means=rng.random(1),
        null_deviations=rng.random(1),
        null_counts=rng.integers(0, 9, (1, 50)),
        fault_counts={"client failed": 3},
    )
    sides = {"observed": record.observed, "unobserved": record.unobserved}
    arrays: dict[str, np.ndarray | None] = {name: side.means for name, side in sides.items()}
    arrays |= {f"{name}_final": side.final for name, side in sides.items()}
    arrays |= {f"{name}_displacement": side.displacement for name, side in sides.items()}
    arrays |= {f"{name}_delta": side.deltas for name, side in sides.items()}
    arrays |= {f"{name}_residual": side.residuals for name, side in sides.items()}
    arrays |= {f"{name}_ids": side.ids for name, side in sides.items()}
    arrays |= {
        "presence": record.presence,
        "clip_norms": record.mechanism.clip_norms,
        "contributions": record.mechanism.contributions,
        "mean_norms": record.norms.means,
        "delta_norms": record.norms.deltas,
        "residual_norms": record.norms.residuals,
        "client_ids": record.clients.ids,
        "client_offsets": record.clients.offsets,
        "absent": record.clients.absent,
        "null_means": record.null.means,
        "null_deviations": record.null.deviations,
        "null_counts": record.null.counts,
        "metrics.eval_loss": record.metrics["eval_loss"],
    }
    with np.load(record.save(tmp_path / "record.npz")) as archive:
        meta = json.loads(bytes(archive["meta"]))
        seeds = json.loads(bytes(archive["seeds"]))
        assert set(archive.files) == {*arrays, "meta", "seeds", "checksums"}
        for name, value in arrays.items():
            assert np.array_equal(archive[name], value), name
    assert meta == {
        "format": "fl_epe.AuditRecord",
        "schema": 2,
        "dim": 10_000,
        "delta": 1e-3,
        "cohort_size": 10.0,
        "noise_multiplier": 0.5,
        "sum_noise_multiplier": 0.5,
        "participation": "epochs",
        "canary_repeats": 3,
        "server": {"name": "sgd", "learning_rate": 1.0, "momentum": 0.5},
        "final_norm": 3.0,
        "displacement_norm": 2.0,
        "inclusion": "fixed",
        "config": {"task": "made up"},
        "versions": {"fl-epe": "0"},
        "faults": ["one"],
        "canary_kind": "sphere",
        "null_statistics": ["displacement"],
        "fault_counts": {"client failed": 3},
    }
    assert seeds == {"canary": 2**127, "noise": None}


def test_names_that_a_record_does_not_have_are_refused():
    with pytest.raises(TypeError, match=r"got \['colour'\]"):
        make_record(colour="red")
