"""A record's file whose checksums are right, but not its values: refused by the field's name."""

import json
import logging

import numpy as np
import pytest
from fuzz_seeds import without_checksums
from records import make_record

from fl_epe import AuditRecord
from fl_epe.archive import read_archive, write_archive
from fl_epe.cli.main import main

T, K, U = 6, 40, 30


def _edited(path, **changes):
    """A file with other values; what is ``...`` is left out."""
    archive = read_archive(make_record().save(path), "a record")
    texts = {name: archive.text(name) for name in ("meta", "seeds")}
    arrays = archive.arrays()
    for name, value in changes.items():
        place = arrays if name in arrays or isinstance(value, np.ndarray) else texts["meta"]
        place = texts if name == "seeds" else place
        place.pop(name, None)
        if value is not ...:
            (place if name == "seeds" or isinstance(value, np.ndarray) else texts["meta"])[name] = (
                value
            )
    write_archive(path, arrays, texts)
    return path


EDITS = {
    "dim-text": ("dim", "many", "dim='many' to be a whole number"),
    "dim-real": ("dim", 2.5, "dim=2.5 to be a whole number"),
    "dim-true": ("dim", True, "dim=True to be a whole number"),
    "dim-negative": ("dim", -1, "dim=-1 to be a whole number >= 1"),
    "dim-missing": ("dim", ..., r"to hold \['dim'\]"),
    "delta-nan": ("delta", float("nan"), "delta=nan to be a number > 0"),
    "delta-large": ("delta", 2, "delta=2 in"),
    "cohort-negative": ("cohort_size", -3, "cohort_size=-3 to be a number > 0"),
    "cohort-missing": ("cohort_size", ..., "cohort_size"),
    "noise-text": ("noise_multiplier", "1", "noise_multiplier='1' to be a number"),
    "noise-negative": ("sum_noise_multiplier", -0.5, "sum_noise_multiplier=-0.5 to be"),
    "noise-tiny": ("noise_multiplier", 1e-320, "noise_multiplier=1e-320 to be 0, or from"),
    "norm-huge": ("displacement_norm", 1e200, r"displacement_norm=1e\+200 to be a length"),
    "norm-tiny": ("displacement_norm", 1e-300, "displacement_norm=1e-300 to be a length"),
    "norms-tiny": ("mean_norms", np.full(T, 1e-300), "mean_norms to be lengths that float32"),
    "clip-norms-huge": ("clip_norms", np.full(T, 1e300), "clip_norms to be lengths that float32"),
    "cohort-tiny": ("cohort_size", 1e-300, "cohort_size=1e-300 to be a mean number of clients"),
    "server-list": ("server", [], r"server=\[\] to be a table"),
    "server-rate": ("server", {"name": "sgd", "momentum": 0.5}, "server to have a learning_rate"),
    "server-momentum": (
        "server",
        {"name": "sgd", "learning_rate": 1, "momentum": "x"},
        "server.momentum='x' to be a number",
    ),
    "server-rates": (
        "server",
        {"name": "sgd", "learning_rates": [1.0], "momentum": 0.5},
        "learning_rates of length 1 to be 6",
    ),
    "inclusion": ("inclusion", "dice", "inclusion='dice' to be one of"),
    "participation": ("participation", 3, "participation=3 to be a text"),
    "participations": (
        "canary_participations",
        2**31,
        r"canary_participations=2.14748e\+09 to be possible in 6 rounds",
    ),
    "faults": ("faults", [1], "faults=.* to be a list of texts"),
    "fault-counts": ("fault_counts", [1], "fault_counts=.* to be a table"),
    "fault-count": ("fault_counts", {"x": -1}, "fault_counts.x=-1 to be a number of times"),
    "versions": ("versions", {"numpy": 2}, "versions.numpy=2 to be a text"),
    "seeds": ("seeds", {"canary": "x"}, "seeds.canary to be a whole number"),
    "config": ("config", "x", "config='x' to be a table"),
    "config-task": ("config", {"task": ["[red]"]}, "config.task=.* to be a text"),
    "norm-text": ("final_norm", "long", "final_norm='long' to be a number"),
    "cosines-nan": ("observed", np.full((T, K), np.nan), r"observed to be finite and in \[-1, 1\]"),
    "cosines-large": ("unobserved", np.full((T, U), 1.5), r"unobserved to be finite and in \[-1"),
    "cosines-whole": ("observed", np.ones((T, K), int), "observed to be an array of real numbers"),
    "cosines-texts": ("observed", np.full((T, K), "x"), "observed to be an array of real numbers"),
    "cosines-axes": ("observed", np.zeros((T, K, 1)), "observed.shape=.* to have 2 axes"),
    "cosines-number": ("observed", 0.5, "observed to be an array of real numbers, found float"),
    "cosines-length": ("observed_final", np.zeros(3), r"observed_final.shape=\(3,\) to be \(40,\)"),
    "presence-real": ("presence", np.ones((T, K)), "presence to be an array of true and false"),
    "norms-negative": ("mean_norms", np.full(T, -1.0), "mean_norms to be lengths >= 0"),
    "norms-nan": ("mean_norms", np.full(T, np.nan), "mean_norms to be lengths >= 0"),
    "absent-negative": ("absent", np.full(T, -2), "absent to be counts >= 0, found -2"),
    "kind": ("canary_kind", "cube", "canary_kind='cube' to be one of"),
    "null-names": ("null_statistics", [1], "null_statistics=.* to be a list of texts"),
    "null-shape": ("null_means", np.zeros(3), r"null_means.shape=\(3,\) to be \(0,\)"),
    "null-nan": ("null_deviations", np.full(1, np.nan), "null_deviations to be finite"),
    "null-counts": ("null_counts", np.zeros((1, 50), int), "null_counts to count some scores"),
    "offsets": ("client_offsets", np.arange(T + 1), None),
}


@pytest.mark.parametrize(("name", "value", "message"), EDITS.values(), ids=EDITS)
def test_an_edited_field_is_refused_by_its_name(name, value, message, tmp_path, capsys):
    path = _edited(tmp_path / "record.npz", **{name: value})
    if message is None:  # offsets of clients that the record does not list are never read
        AuditRecord.load(path)
        return
    with pytest.raises(ValueError, match=message) as refusal:
        AuditRecord.load(path)
    assert str(path) in str(refusal.value)
    assert main(["report", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_clients_of_each_round_must_fit_their_offsets(tmp_path):
    changes = {"client_ids": np.arange(7), "client_offsets": np.array([0, 1, 2, 3, 4, 5, 9])}
    with pytest.raises(ValueError, match="client_offsets to rise from 0 to 7 in 7 steps"):
        AuditRecord.load(_edited(tmp_path / "record.npz", **changes))


def test_series_of_evaluations_have_one_length(tmp_path):
    changes = {"metrics.eval_round": np.arange(3), "metrics.eval_accuracy": np.ones(2)}
    with pytest.raises(ValueError, match=r"metrics eval_round, .* of one length"):
        AuditRecord.load(_edited(tmp_path / "record.npz", **changes))


def test_an_old_record_is_read_with_a_warning(tmp_path, caplog):
    path = make_record().save(tmp_path / "record.npz")
    path.write_bytes(without_checksums(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        record = AuditRecord.load(path)
    assert "schema 1, without checksums: take its numbers with care" in caplog.text
    assert record.provenance.seeds["canary"] == 2**127
    assert np.array_equal(record.observed.means, make_record().observed.means)


def test_a_record_that_lost_its_checksums_is_refused(tmp_path):
    archive = read_archive(make_record().save(tmp_path / "record.npz"), "a record")
    np.savez(tmp_path / "record.npz", **archive.arrays())
    with pytest.raises(ValueError, match="it has no checksums"):
        AuditRecord.load(tmp_path / "record.npz")


@pytest.mark.parametrize("schema", [None, "2", True, 0], ids=str)
def test_a_schema_that_is_none(schema, tmp_path):
    with pytest.raises(ValueError, match=r"schema=.* is no version"):
        AuditRecord.load(_edited(tmp_path / "record.npz", schema=schema))


def test_the_checksums_can_be_made_by_other_tools(tmp_path):
    """What docs say: the SHA-256 of each member's bytes."""
    import hashlib
    import zipfile

    path = make_record().save(tmp_path / "record.npz")
    with zipfile.ZipFile(path) as archive, np.load(path) as arrays:
        listed = json.loads(arrays["checksums"].tobytes())["members"]
        for name, digest in listed.items():
            assert hashlib.sha256(archive.read(f"{name}.npy")).hexdigest() == digest
