"""A record's file whose checksums are right, but not its values: refused by the field's name."""

import json

import numpy as np
import pytest
from records import make_record

from fl_epe import AuditRecord
from fl_epe.archive import read_archive, write_archive
from fl_epe.cli.main import main

T = 6
K = 40
U = 30


def _edited(path, **changes):
    """A file with other values; what is ``...`` is left out."""
    (meta,), arrays = read_archive(
        make_record().save(path), "a record", texts=("meta",)
    )
    for name, value in changes.items():
        meta.pop(name, None)
        arrays.pop(name, None)
        if value is not ...:
            (arrays if isinstance(value, np.ndarray) else meta)[name] = value
    write_archive(path, arrays, {"meta": meta}, schema=1)
    return path


RATES = "mechanism.server.learning_rates"
IDS = "clients.offsets"
EDITS = {
    "dim-text": ("dim", "many", "dim='many' to be an integer"),
    "dim-real": ("dim", 2.5, "dim=2.5 to be an integer"),
    "dim-true": ("dim", True, "dim=True to be an integer"),
    "dim-negative": ("dim", -1, r"dim=-1.0 in \[1, "),
    "dim-huge": ("dim", 2**53, "dim=9007199254740992.0 in"),
    "dim-missing": ("dim", ..., "to hold dim"),
    "delta-nan": ("delta", float("nan"), "delta=nan in"),
    "delta-large": ("delta", 2, "delta=2 in"),
    "cohort-negative": ("mechanism.cohort_size", -3, "cohort_size=-3.0 in"),
    "cohort-missing": (
        "mechanism.cohort_size",
        ...,
        "to hold mechanism.cohort_size",
    ),
    "cohort-tiny": ("mechanism.cohort_size", 1e-300, "cohort_size=1e-300 in"),
    "noise-text": (
        "mechanism.noise_multiplier",
        "1",
        "noise_multiplier='1' to be a finite number",
    ),
    "noise-negative": (
        "mechanism.sum_noise_multiplier",
        -0.5,
        "sum_noise_multiplier=-0.5 in",
    ),
    "noise-tiny": (
        "mechanism.noise_multiplier",
        1e-320,
        "noise_multiplier=1e-320 in",
    ),
    "norm-huge": ("norms.displacement", 1e200, r"displacement=1e\+200 in"),
    "norm-tiny": ("norms.displacement", 1e-300, "displacement=1e-300 in"),
    "norm-negative": ("norms.final", -1.0, "norms.final=-1.0 in"),
    "norm-text": (
        "norms.final",
        "long",
        "norms.final='long' to be a finite number",
    ),
    "norms-tiny": ("norms.means", np.full(T, 1e-300), "norms.means=1e-300 in"),
    "norms-negative": ("norms.means", np.full(T, -1.0), "norms.means=-1.0 in"),
    "norms-nan": ("norms.means", np.full(T, np.nan), "norms.means=nan in"),
    "clip-huge": (
        "mechanism.clip_norms",
        np.full(T, 1e300),
        r"clip_norms=1e\+300 in",
    ),
    "server-name": ("mechanism.server.name", 3, "server.name=3 to be text"),
    "server-rate": (RATES, ..., "server.learning_rates, as the server is sgd"),
    "server-rates": (
        RATES,
        np.ones(1),
        r"learning_rates.shape=\(1,\) to be \(6,\)",
    ),
    "server-rates-nan": (RATES, np.full(T, np.nan), "learning_rates=nan in"),
    "server-momentum": (
        "mechanism.server.momentum",
        "x",
        "momentum='x' to be a finite number",
    ),
    "server-momentum-1": (
        "mechanism.server.momentum",
        1,
        r"momentum=1.0 in \[0, 0.99",
    ),
    "inclusion": (
        "mechanism.inclusion",
        "dice",
        r"inclusion='dice' to be one of \('fixed', 'coin'\)",
    ),
    "participation": (
        "mechanism.participation.name",
        3,
        "participation.name=3 to be text",
    ),
    "participations": (
        "mechanism.canary_participations",
        2**31,
        r"canary_participations=2147483648.0 in \[0, 1000000.0\]",
    ),
    "faults": ("provenance.faults", [1], "provenance.faults=1 to be text"),
    "faults-text": (
        "provenance.faults",
        "x",
        "provenance.faults='x' to be a list",
    ),
    "fault-counts": (
        "provenance.fault_counts",
        [1],
        r"fault_counts=\[1\] to be a table",
    ),
    "fault-count": (
        "provenance.fault_counts",
        {"x": -1},
        r"fault_counts=-1.0 in \[0",
    ),
    "versions": (
        "provenance.versions",
        {"numpy": 2},
        "versions.numpy=2 to be text",
    ),
    "seeds": (
        "provenance.seeds",
        {"canary": "x"},
        "seeds.canary='x' to be an integer",
    ),
    "seeds-negative": (
        "provenance.seeds",
        {"canary": -1},
        r"seeds=-1.0 in \[0",
    ),
    "settings": ("design.settings", "x", "settings='x' to be a table"),
    "task": ("design.task", ["[red]"], "design.task=.* to be text"),
    "votes": ("design.canaries_vote", 1, "canaries_vote=1 to be true or false"),
    "plan": ("findings.plan", [{}], "findings.plan=.* to be text"),
    "cosines-nan": (
        "observed.means",
        np.full((T, K), np.nan),
        "observed.means to be finite",
    ),
    "cosines-large": (
        "unobserved.means",
        np.full((T, U), 1.5),
        r"unobserved.means=1.5 in \[-1",
    ),
    "cosines-whole": (
        "observed.means",
        np.ones((T, K), int),
        "to be an array of real numbers",
    ),
    "cosines-texts": (
        "observed.means",
        np.full((T, K), "x"),
        "to be an array of real numbers",
    ),
    "cosines-axes": (
        "observed.means",
        np.zeros((T, K, 1)),
        "observed.means.shape=.* to be",
    ),
    "cosines-number": (
        "observed.means",
        0.5,
        "to be an array of real numbers, found float",
    ),
    "cosines-length": (
        "observed.final",
        np.zeros(3),
        r"final.shape=\(3,\) to be \(40,\)",
    ),
    "presence-real": (
        "presence",
        np.ones((T, K)),
        "presence to be an array of true and false",
    ),
    "absent-negative": (
        "clients.absent",
        np.full(T, -2),
        r"absent=-2.0 in \[0",
    ),
    "kind": (
        "provenance.canary_kind",
        "cube",
        "canary_kind='cube' to be one of",
    ),
    "factor-rounds": (
        "correlation.factor",
        np.ones((3, 2)),
        r"factor.shape=\(3, 2\) to be",
    ),
    "factor-nan": (
        "correlation.factor",
        np.full((T, 2), np.nan),
        "correlation.factor=nan in",
    ),
    "factor-zero": (
        "correlation.factor",
        np.zeros((T, 2)),
        r"correlation.factor\[:, 0\] to be > 0",
    ),
    "running": (
        "running.scores",
        np.zeros((T, 3)),
        r"running.scores.shape=\(6, 3\) to be",
    ),
    "offsets": (IDS, np.arange(T + 1), None),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "message"), EDITS.values(), ids=EDITS
)
def test_an_edited_field_is_refused_by_its_name(
    name, value, message, tmp_path, capsys
):
    path = _edited(tmp_path / "record.npz", **{name: value})
    if (
        message is None
    ):  # offsets of clients that the record does not list are never read
        AuditRecord.load(path)
        return
    with pytest.raises(ValueError, match=message) as refusal:
        AuditRecord.load(path)
    assert str(path) in str(refusal.value)
    assert main(["report", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_clients_of_each_round_must_fit_their_offsets(tmp_path):
    changes = {
        "clients.ids": np.arange(7),
        "clients.offsets": np.array([0, 1, 2, 3, 4, 5, 9]),
    }
    with pytest.raises(
        ValueError, match=r"clients\.offsets to increase from 0 to 7"
    ):
        AuditRecord.load(_edited(tmp_path / "record.npz", **changes))


def test_series_of_evaluations_have_one_length(tmp_path):
    changes = {
        "metrics.eval_round": np.arange(3),
        "metrics.eval_accuracy": np.ones(2),
    }
    with pytest.raises(
        ValueError, match=r"metrics eval_round, .* of one length"
    ):
        AuditRecord.load(_edited(tmp_path / "record.npz", **changes))


def test_a_record_that_lost_its_checksums_is_refused(tmp_path):
    _, arrays = read_archive(
        make_record().save(tmp_path / "record.npz"), "a record"
    )
    np.savez(tmp_path / "record.npz", **arrays)
    with pytest.raises(ValueError, match="it has no checksums"):
        AuditRecord.load(tmp_path / "record.npz")


def test_the_checksums_can_be_made_by_other_tools(tmp_path):
    """What docs say: the SHA-256 of each member's bytes."""
    import hashlib
    import zipfile

    path = make_record().save(tmp_path / "record.npz")
    with zipfile.ZipFile(path) as archive, np.load(path) as arrays:
        listed = json.loads(arrays["checksums"].tobytes())["sha256"]
        for name, digest in listed.items():
            assert (
                hashlib.sha256(archive.read(f"{name}.npy")).hexdigest()
                == digest
            )
